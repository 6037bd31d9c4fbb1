"""The progress of an upgrade: the next steps, the order of undoing, and its status. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec

from winpod.k8s.crd import updated_condition
from winpod.k8s.objects import Condition
from winpod.operator.upgrade.moves import MoveOutcome, WorkloadMove
from winpod.operator.upgrade.plan import UpgradePlan, UpgradeStep, UpgradeStepKind
from winpod.operator.upgrade.resource import (
    NodeRecord,
    StepRecord,
    UpgradeStatus,
    WindowsUpgrade,
    WorkloadRecord,
)

RUNNING, BLOCKED, UNDOING, UNDONE, DONE = "Running", "Blocked", "Undoing", "Undone", "Done"
PENDING, SETTLED = "Pending", (UNDONE, DONE)
_STARTED = (RUNNING, DONE, "Failed", UNDOING)
_AFTER_ALL_MOVED = (UpgradeStepKind.MARK_NODE, UpgradeStepKind.REMOVE_NODE)
_UNDO_ORDER = (
    UpgradeStepKind.CORDON,
    UpgradeStepKind.RETIRE_CLASS,
    UpgradeStepKind.CHANGE_CLASS,
    UpgradeStepKind.PATCH_WORKLOAD,
    UpgradeStepKind.ADD_CLASS,
)
"""Old nodes and classes accept pods again before workloads are moved back to them."""
_NODE_STATES = {
    UpgradeStepKind.CORDON: "cordoned",
    UpgradeStepKind.DRAIN: "drained",
    UpgradeStepKind.MARK_NODE: "marked",
    UpgradeStepKind.REMOVE_NODE: "removed",
}
MAX_STATUS_BYTES = 1 << 20
"""Limit of the status; the API server limits objects to about 1.5 MiB."""
_STEP_BYTES = 190
"""Growth of a step's record until it is done: its state, two timestamps and a node uid."""
_RESERVE_BYTES = 16 << 10
_MAX_LISTED = 10
_MAX_PARALLEL = 100
"""Steps that run in parallel, to bound the size of a status update."""


def blockers(plan: UpgradePlan) -> list[str]:
    """Return why the upgrade cannot start."""
    too_large = too_large_message(_bare_status(plan))
    return [*plan.blockers, *([too_large] if too_large else [])]


def too_large_message(status: UpgradeStatus) -> str:
    size = expected_size(status)
    if size <= MAX_STATUS_BYTES:
        return ""
    old = sum(node.role == "old" for node in status.nodes)
    return (
        f"{old} old nodes and {len(status.workloads)} workloads are too many for one upgrade: its "
        f"status would have {size >> 10} KiB, and the limit is {MAX_STATUS_BYTES >> 10} KiB; drain "
        "and delete some old nodes manually first"
    )


def expected_size(status: UpgradeStatus) -> int:
    """Estimate the final size in bytes: the current status and what steps will add."""
    waiting = [step for step in status.steps if step.state == PENDING]
    before = sum(_STEP_BYTES + len(msgspec.json.encode(step.after)) for step in waiting)
    ready = sum(len(str(workload)) + 10 for workload in status.workloads)
    return len(msgspec.json.encode(status)) + before + ready + _RESERVE_BYTES


def planned_status(plan: UpgradePlan) -> UpgradeStatus:
    """Return the status of an upgrade that has not started."""
    status = _bare_status(plan)
    status.message = "; ".join(blockers(plan))
    return status


def _bare_status(plan: UpgradePlan) -> UpgradeStatus:
    old = [NodeRecord(name, "old", "in use") for name in plan.old_nodes]
    new = [NodeRecord(name, "new", "in use") for name in plan.new_nodes]
    return UpgradeStatus(
        notes=list(plan.notes),
        steps=[StepRecord(s.kind, s.target, after=dict(s.after)) for s in plan.steps],
        nodes=old + new,
        workloads=[workload_record(move) for move in plan.moves],
    )


def workload_record(move: WorkloadMove) -> WorkloadRecord:
    workload = move.workload
    return WorkloadRecord(
        workload.kind,
        workload.namespace,
        workload.name,
        len(workload.pods),
        str(move.outcome),
        str(move.change),
        move.stays,
        list(move.reasons),
    )


def is_settled(upgrade: WindowsUpgrade) -> bool:
    """Whether nothing is left to do; a completed upgrade can still be undone."""
    phase = upgrade.status.phase
    return phase == UNDONE or (phase == DONE and not upgrade.is_to_be_undone)


def must_undo(upgrade: WindowsUpgrade) -> bool:
    """Whether to undo: on request, and when an upgrade in progress is deleted."""
    return upgrade.is_to_be_undone or upgrade.is_deleting


def is_finished(upgrade: WindowsUpgrade) -> bool:
    """Whether it is settled or deleted, and its finalizer is removed."""
    return not upgrade.has_finalizer and (is_settled(upgrade) or upgrade.is_deleting)


def next_steps(status: UpgradeStatus) -> list[StepRecord]:
    """Return the next step, or several node steps that may run in parallel."""
    waiting = (step for step in status.steps if step.state in (PENDING, RUNNING))
    return _parallel_steps(waiting)


def _parallel_steps(steps: Iterable[StepRecord]) -> list[StepRecord]:
    """Return the first step and the following node steps of the same kind."""
    parallel: list[StepRecord] = []
    for step in steps:
        if parallel and (step.do != parallel[0].do or step.do not in _NODE_STATES):
            break
        parallel.append(step)
        if len(parallel) == _MAX_PARALLEL:
            break
    return parallel


def with_steps_before(
    step: StepRecord, steps: list[StepRecord], unplanned: Iterable[UpgradeStep]
) -> list[StepRecord]:
    """Insert unplanned steps before a step, which is restarted.

    A step that was done before is repeated instead of duplicated, since its effect was reverted.
    """
    unplanned = list(unplanned)
    repeated = {(s.kind, s.target) for s in unplanned}
    if (step.do, step.target) in repeated:
        step.before = {}
    step.state, step.message, step.started_at = PENDING, "", ""
    index = next(i for i, other in enumerate(steps) if other is step)
    earlier = [other for other in steps[:index] if (other.do, other.target) not in repeated]
    later = [other for other in steps[index + 1 :] if (other.do, other.target) not in repeated]
    added = [
        StepRecord(s.kind, s.target, after=dict(s.after))
        for s in unplanned
        if (s.kind, s.target) != (step.do, step.target)
    ]
    return [*earlier, *added, step, *later]


def max_ready(previous: Mapping[str, int], now: Mapping[str, int]) -> dict[str, int]:
    return {**previous, **{name: max(count, previous.get(name, 0)) for name, count in now.items()}}


def drained_uid(status: UpgradeStatus, node: str) -> str:
    """Return the uid of the drained node; empty if none was drained."""
    drains = (
        step for step in status.steps if step.do == UpgradeStepKind.DRAIN and step.target == node
    )
    return next((str(step.before.get("uid", "")) for step in drains), "")


def next_to_undo(status: UpgradeStatus) -> list[StepRecord]:
    """Return the next started steps to undo; steps that cannot be undone are skipped."""
    started = [step for step in reversed(status.steps) if step.state in _STARTED]
    order = (UpgradeStepKind.MARK_NODE, *_UNDO_ORDER)
    return _parallel_steps(step for do in order for step in started if step.do == do)


def is_undone_on_failure(step: StepRecord) -> bool:
    """Whether a failure undoes the upgrade; not after everything was moved and verified."""
    return step.do not in _AFTER_ALL_MOVED


def node_states(status: UpgradeStatus) -> list[NodeRecord]:
    """Derive the state of each node from the steps."""
    states = {node.name: "in use" for node in status.nodes}
    for step in status.steps:
        if step.target in states and (state := _NODE_STATES.get(UpgradeStepKind(step.do))):
            if step.state in (DONE, UNDOING):
                states[step.target] = state
            elif step.state == RUNNING and step.do == UpgradeStepKind.DRAIN:
                states[step.target] = "draining"
    return [NodeRecord(node.name, node.role, states[node.name]) for node in status.nodes]


def with_conditions(status: UpgradeStatus, now: datetime) -> list[Condition]:
    """Return the conditions with their transition times."""
    return [
        updated_condition(status.conditions, *summary_text, now)
        for summary_text in _conditions(status)
    ]


def _conditions(status: UpgradeStatus) -> Iterable[tuple[str, bool, str, str]]:
    phase, message = status.phase, status.message
    staying = [str(w) for w in status.workloads if w.stays]
    yield "Progressing", phase in (RUNNING, UNDOING), phase or "Planning", message
    yield "Blocked", phase == BLOCKED, "Blocked" if phase == BLOCKED else "NotBlocked", message
    yield "Complete", phase == DONE, phase or "Planning", message
    yield "Failed", bool(status.failure), "Failed" if status.failure else "Well", status.failure
    message_text = f"cannot move: {first_few(staying)}" if staying else "every workload can move"
    yield "WorkloadsMovable", not staying, "Staying" if staying else "AllMovable", message_text


def counts(workloads: Iterable[WorkloadRecord]) -> dict[MoveOutcome, int]:
    by_outcome = dict.fromkeys(MoveOutcome, 0)
    for workload in workloads:
        by_outcome[MoveOutcome(workload.fate)] += 1
    return by_outcome


def format_steps(steps: Sequence[StepRecord]) -> str:
    first = f"{steps[0].do} {steps[0].target}".strip()
    return first if len(steps) == 1 else f"{first} and {len(steps) - 1} more"


def summary(status: UpgradeStatus) -> str:
    """Summarise a completed upgrade."""
    staying = [str(w) for w in status.workloads if w.stays]
    summary_text = f"left behind: {first_few(staying)}" if staying else "everything has moved"
    failed = [step for step in status.steps if step.state == "Failed"]
    texts = first_few([f"{format_steps([step])} failed: {step.message}" for step in failed], "; ")
    return f"{summary_text}; {texts}" if texts else summary_text


def first_few(texts: Sequence[str], separator: str = ", ") -> str:
    """Join the first few texts, and count the others."""
    more = len(texts) - _MAX_LISTED
    return separator.join(texts[:_MAX_LISTED]) + (f" and {more} more" if more > 0 else "")


@dataclass(frozen=True, slots=True)
class Baseline:
    """State recorded before a step starts.

    `before` is what is needed to undo it, `ready` the number of ready pods of affected workloads.
    """

    before: Mapping[str, Any] = field(default_factory=dict)
    ready: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Progress:
    """The result of a step: what it waits for, or a remark if it is done.

    `requeue`: something was changed just now; check again immediately.
    """

    is_done: bool = False
    message: str = ""
    requeue: bool = False


STEP_DONE, REQUEUE = Progress(is_done=True), Progress(requeue=True)
NODE_GONE = Progress(is_done=True, message="it is gone")
NODE_REPLACED = Progress(
    is_done=True, message="it is gone; another object of the same name is not changed"
)
CHANGED_BY_OTHERS = Progress(
    is_done=True, message="it was changed by someone else since, and is kept"
)
