"""How far an upgrade is, what comes next, and in which order it is undone: pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from winpod.cluster.upgrade.moves import Fate, Move
from winpod.cluster.upgrade.plan import Do, Plan, Step
from winpod.cluster.upgrade.resource import (
    Condition,
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


def planned_status(plan: Plan) -> Status:
    """A status as it is before anything is done."""
    old = [NodeRecord(name, "old", "in use") for name in plan.old_nodes]
    new = [NodeRecord(name, "new", "in use") for name in plan.new_nodes]
    return Status(
        message="; ".join(plan.blockers),
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


def next_step(status: Status) -> StepRecord | None:
    return next((step for step in status.steps if step.state in (PENDING, RUNNING)), None)


def with_steps_before(
    step: StepRecord, steps: list[StepRecord], found: Iterable[Step]
) -> list[StepRecord]:
    """What was found while a step was being done comes before it, and it is begun anew."""
    place = next(i for i, one in enumerate(steps) if one is step)
    step.state, step.message, step.started_at = PENDING, "", ""
    added = [StepRecord(s.do, s.target, after=dict(s.after)) for s in found]
    return [*steps[:place], *added, *steps[place:]]


def next_to_undo(status: Status) -> StepRecord | None:
    """Of the steps that were taken or begun; what undoing cannot bring back is passed over."""
    taken = [step for step in reversed(status.steps) if step.state in _TAKEN]
    for do in (Do.MARK_NODE, *_UNDONE_IN_ORDER):
        for step in taken:
            if step.do == do:
                return step
    return None


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
    known = {condition.type: condition for condition in status.conditions}
    found = []
    for kind, holds, reason, message in _conditions(status):
        truth = "True" if holds else "False"
        before = known.get(kind)
        since = before.last_transition_time if before and before.status == truth else stamp(now)
        found.append(Condition(kind, truth, reason, message, since))
    return found


def _conditions(status: Status) -> Iterable[tuple[str, bool, str, str]]:
    phase, message = status.phase, status.message
    staying = [str(w) for w in status.workloads if w.stays]
    yield "Progressing", phase in (RUNNING, UNDOING), phase or "Planning", message
    yield "Blocked", phase == BLOCKED, "Blocked" if phase == BLOCKED else "NotBlocked", message
    yield "Complete", phase == DONE, phase or "Planning", message
    yield "Failed", bool(status.failure), "Failed" if status.failure else "Well", status.failure
    says = f"cannot move: {', '.join(staying)}" if staying else "every workload can move"
    yield "WorkloadsMovable", not staying, "Staying" if staying else "AllMovable", says


def counts(workloads: Iterable[WorkloadRecord]) -> dict[Fate, int]:
    found = dict.fromkeys(Fate, 0)
    for workload in workloads:
        found[Fate(workload.fate)] += 1
    return found


def stamp(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"
