"""How far an upgrade is, what comes next, and in which order it is undone: pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

import msgspec

from winpod.cluster.custom_resources import Condition, condition
from winpod.cluster.upgrade.moves import Fate, Move
from winpod.cluster.upgrade.plan import Do, Plan, Step
from winpod.cluster.upgrade.resource import (
    NodeRecord,
    Status,
    StepRecord,
    WindowsUpgrade,
    WorkloadRecord,
)

RUNNING, BLOCKED, UNDOING, UNDONE, DONE = "Running", "Blocked", "Undoing", "Undone", "Done"
PENDING, SETTLED = "Pending", (UNDONE, DONE)
_TAKEN = (RUNNING, DONE, "Failed")
_AFTER_ALL_MOVED = (Do.MARK_NODE, Do.REMOVE_NODE)
_UNDONE_IN_ORDER = (Do.CORDON, Do.RETIRE_CLASS, Do.CHANGE_CLASS, Do.PATCH_WORKLOAD, Do.ADD_CLASS)
"""Old nodes and old classes take pods again before workloads are sent back to them."""
_NODE_STATES = {
    Do.CORDON: "cordoned",
    Do.DRAIN: "drained",
    Do.MARK_NODE: "marked",
    Do.REMOVE_NODE: "removed",
}
LARGEST = 1 << 20
"""Of a status, in bytes: an API server keeps no object above one and a half times that."""
_STEP_BYTES = 190
"""What a step's record grows by until it is done: its state, two times, and a node's uid."""
_ROOM_BYTES = 16 << 10
_MOST_TOLD = 10
_MOST_TOGETHER = 100
"""Steps that are written down at once: of a thousand nodes, a status is long."""


def blockers(plan: Plan) -> list[str]:
    """Why it cannot begin."""
    too_large = too_large_sentence(_bare_status(plan))
    return [*plan.blockers, *([too_large] if too_large else [])]


def too_large_sentence(status: Status) -> str:
    size = expected_size(status)
    if size <= LARGEST:
        return ""
    old = sum(node.role == "old" for node in status.nodes)
    return (
        f"{old} old nodes and {len(status.workloads)} workloads are too many for one upgrade: its "
        f"status would take {size >> 10} KiB, and {LARGEST >> 10} KiB are safe with an API server; "
        "drain and delete some old nodes by hand first"
    )


def expected_size(status: Status) -> int:
    """In bytes, at the end: what is there, and what is still to be written into it."""
    waiting = [step for step in status.steps if step.state == PENDING]
    before = sum(_STEP_BYTES + len(msgspec.json.encode(step.after)) for step in waiting)
    ready = sum(len(str(workload)) + 10 for workload in status.workloads)
    return len(msgspec.json.encode(status)) + before + ready + _ROOM_BYTES


def planned_status(plan: Plan) -> Status:
    """A status as it is before anything is done."""
    status = _bare_status(plan)
    status.message = "; ".join(blockers(plan))
    return status


def _bare_status(plan: Plan) -> Status:
    old = [NodeRecord(name, "old", "in use") for name in plan.old_nodes]
    new = [NodeRecord(name, "new", "in use") for name in plan.new_nodes]
    return Status(
        notes=list(plan.notes),
        steps=[StepRecord(s.do, s.target, after=dict(s.after)) for s in plan.steps],
        nodes=old + new,
        workloads=[record_of(move) for move in plan.moves],
    )


def record_of(move: Move) -> WorkloadRecord:
    workload = move.workload
    return WorkloadRecord(
        workload.kind,
        workload.namespace,
        workload.name,
        len(workload.pods),
        str(move.fate),
        str(move.change),
        move.stays,
        list(move.reasons),
    )


def is_settled(upgrade: WindowsUpgrade) -> bool:
    """Nothing is left to do about it; one that is done can still be undone."""
    phase = upgrade.status.phase
    return phase == UNDONE or (phase == DONE and not upgrade.is_to_be_undone)


def is_to_go_back(upgrade: WindowsUpgrade) -> bool:
    """Who deletes one that is under way wants what it did undone; one that is done is history."""
    return upgrade.is_to_be_undone or upgrade.is_leaving


def is_over(upgrade: WindowsUpgrade) -> bool:
    """And nothing of it keeps it from being deleted."""
    return not upgrade.is_held and (is_settled(upgrade) or upgrade.is_leaving)


def next_steps(status: Status) -> list[StepRecord]:
    """One, or several nodes' that may be taken together."""
    waiting = (step for step in status.steps if step.state in (PENDING, RUNNING))
    return _alike(waiting)


def _alike(steps: Iterable[StepRecord]) -> list[StepRecord]:
    """The first, and those right after it that are of the same kind."""
    found: list[StepRecord] = []
    for step in steps:
        if found and (step.do != found[0].do or step.do not in _NODE_STATES):
            break
        found.append(step)
        if len(found) == _MOST_TOGETHER:
            break
    return found


def with_steps_before(
    step: StepRecord, steps: list[StepRecord], found: Iterable[Step]
) -> list[StepRecord]:
    """What was found while a step was being done comes before it, and it is begun anew.

    A step that was taken before is taken again instead of a second one: what it did is gone.
    """
    found = list(found)
    again = {(s.do, s.target) for s in found}
    if (step.do, step.target) in again:
        step.before = {}
    step.state, step.message, step.started_at = PENDING, "", ""
    place = next(i for i, one in enumerate(steps) if one is step)
    earlier = [one for one in steps[:place] if (one.do, one.target) not in again]
    later = [one for one in steps[place + 1 :] if (one.do, one.target) not in again]
    added = [
        StepRecord(s.do, s.target, after=dict(s.after))
        for s in found
        if (s.do, s.target) != (step.do, step.target)
    ]
    return [*earlier, *added, step, *later]


def most_ready(known: Mapping[str, int], now: Mapping[str, int]) -> dict[str, int]:
    return {**known, **{name: max(count, known.get(name, 0)) for name, count in now.items()}}


def drained_uid(status: Status, node: str) -> str:
    """Of the node that was drained; nothing where none was."""
    drains = (step for step in status.steps if step.do == Do.DRAIN and step.target == node)
    return next((str(step.before.get("uid", "")) for step in drains), "")


def next_to_undo(status: Status) -> list[StepRecord]:
    """Of the steps that were taken or begun; what undoing cannot bring back is passed over."""
    taken = [step for step in reversed(status.steps) if step.state in _TAKEN]
    order = (Do.MARK_NODE, *_UNDONE_IN_ORDER)
    return _alike(step for do in order for step in taken if step.do == do)


def is_undone_on_failure(step: StepRecord) -> bool:
    """Once everything has moved and was verified, a node that cannot be removed is no reason."""
    return step.do not in _AFTER_ALL_MOVED


def node_states(status: Status) -> list[NodeRecord]:
    """Each node's as the steps say it."""
    states = {node.name: "in use" for node in status.nodes}
    for step in status.steps:
        if step.target in states and (state := _NODE_STATES.get(Do(step.do))):
            if step.state == DONE:
                states[step.target] = state
            elif step.state == RUNNING and step.do == Do.DRAIN:
                states[step.target] = "draining"
    return [NodeRecord(node.name, node.role, states[node.name]) for node in status.nodes]


def with_conditions(status: Status, now: datetime) -> list[Condition]:
    """Each with the time since when it is so."""
    return [condition(status.conditions, *said, now) for said in _conditions(status)]


def _conditions(status: Status) -> Iterable[tuple[str, bool, str, str]]:
    phase, message = status.phase, status.message
    staying = [str(w) for w in status.workloads if w.stays]
    yield "Progressing", phase in (RUNNING, UNDOING), phase or "Planning", message
    yield "Blocked", phase == BLOCKED, "Blocked" if phase == BLOCKED else "NotBlocked", message
    yield "Complete", phase == DONE, phase or "Planning", message
    yield "Failed", bool(status.failure), "Failed" if status.failure else "Well", status.failure
    says = f"cannot move: {some(staying)}" if staying else "every workload can move"
    yield "WorkloadsMovable", not staying, "Staying" if staying else "AllMovable", says


def counts(workloads: Iterable[WorkloadRecord]) -> dict[Fate, int]:
    found = dict.fromkeys(Fate, 0)
    for workload in workloads:
        found[Fate(workload.fate)] += 1
    return found


def show_steps(steps: Sequence[StepRecord]) -> str:
    first = f"{steps[0].do} {steps[0].target}".strip()
    return first if len(steps) == 1 else f"{first} and {len(steps) - 1} more"


def summary(status: Status) -> str:
    """Of an upgrade that is done."""
    staying = [str(w) for w in status.workloads if w.stays]
    said = f"left behind: {some(staying)}" if staying else "everything has moved"
    failed = [step for step in status.steps if step.state == "Failed"]
    told = some([f"{show_steps([step])} failed: {step.message}" for step in failed], "; ")
    return f"{said}; {told}" if told else said


def some(told: Sequence[str], between: str = ", ") -> str:
    """The first of many, and how many more there are."""
    more = len(told) - _MOST_TOLD
    return between.join(told[:_MOST_TOLD]) + (f" and {more} more" if more > 0 else "")
