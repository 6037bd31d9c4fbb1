"""Drains old nodes. Pods are evicted, never deleted, so that disruption budgets hold.

Pods that cannot run elsewhere are not evicted. A node is drained when the workloads of all drained
nodes have as many ready pods as before, read from the pods themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile

from winpod.errors import WinpodError
from winpod.k8s.client import ApiClient
from winpod.k8s.drain import evict_pod
from winpod.operator.upgrade.moves import (
    DAEMON,
    TemplateChange,
    UpgradeWorkload,
    WorkloadMove,
    WorkloadPod,
)
from winpod.operator.upgrade.plan import ClusterSnapshot, UpgradePlan, UpgradeStep, UpgradeStepKind
from winpod.operator.upgrade.progress import (
    NODE_GONE,
    NODE_REPLACED,
    PENDING,
    Baseline,
    Progress,
    first_few,
)
from winpod.operator.upgrade.resource import StepRecord, UpgradeStatus
from winpod.operator.upgrade.snapshot import SnapshotCache
from winpod.operator.upgrade.spec import UpgradeSpec


class WorkloadsLeftBehind(WinpodError):
    """Workloads cannot leave a node and leaveBehind is not set; `moves` are the current moves."""

    code = "FAILED_PRECONDITION"

    def __init__(
        self, node: str, staying: Iterable[WorkloadMove], moves: tuple[WorkloadMove, ...]
    ) -> None:
        descriptions = [f"{move.workload}: {', '.join(move.reasons)}" for move in staying]
        summary = first_few(descriptions, "; ")
        super().__init__(
            f"{node} is not drained because some workloads cannot move. {summary}.",
            "Change these workloads, set leaveBehind to continue without them, or undo.",
        )
        self.moves = moves


class UnplannedChange(WinpodError):
    """Workloads or old nodes were added or reverted after the upgrade was planned."""

    code = "ABORTED"

    def __init__(self, steps: tuple[UpgradeStep, ...]) -> None:
        super().__init__(f"{len(steps)} additional steps are required.")
        self.steps = steps


class NodeDrain:
    """Drains nodes, based on one snapshot of the cluster."""

    def __init__(self, api: ApiClient, snapshots: SnapshotCache, spec: UpgradeSpec) -> None:
        self._api = api
        self._snapshots = snapshots
        self._spec = spec
        self._unplanned: tuple[UpgradeStep, ...] | None = None

    async def select_parallel(self, steps: Sequence[StepRecord]) -> list[StepRecord]:
        return select_parallel_drains(await self._snapshots.snapshot(), steps)

    async def baseline(self, step: StepRecord, _: UpgradeStatus) -> Baseline:
        snapshot = await self._snapshots.snapshot()
        present = [
            w for w in snapshot.workloads if w.pods_on([step.target]) and w.replicas is not None
        ]
        uid = snapshot.uids.get(step.target)
        return Baseline({"uid": uid} if uid else {}, {str(w): w.ready for w in present})

    async def drain(self, step: StepRecord, status: UpgradeStatus) -> Progress:
        snapshot, plan = await self._snapshots.plan()
        self._check_planned(snapshot, plan, status)
        if gone := node_changed(step, snapshot, plan):
            readiness = readiness_progress(snapshot, status.ready)
            return gone if readiness.is_done else readiness
        present = [move for move in plan.moves if move.workload.pods_on([step.target])]
        if pending := self._check_staying(step.target, plan, status):
            return pending
        if pending_change := _changed_back(present):
            return pending_change
        leaving = _leaving(present, [step.target])
        if not leaving:
            return readiness_progress(snapshot, status.ready)
        refusals = [await self._evict(workload, pod) for workload, pod in leaving]
        waiting_for = next((refusal for refusal in refusals if refusal), "")
        return Progress(message=waiting_for or f"{len(leaving)} pods are leaving {step.target}")

    async def verify(self, _: StepRecord, status: UpgradeStatus) -> Progress:
        """Verify that movable pods left the old nodes and workloads are as ready as before."""
        snapshot, plan = await self._snapshots.plan()
        self._check_planned(snapshot, plan, status)
        if leaving := _leaving(plan.moves, plan.old_nodes):
            staying = sorted({pod.node for _, pod in leaving if not pod.is_leaving})
            if staying:  # could not move when the node was drained, but can now
                raise UnplannedChange(
                    tuple(UpgradeStep(UpgradeStepKind.DRAIN, node) for node in staying)
                )
            workload, pod = leaving[0]
            return Progress(message=f"{workload} has pod {pod.name} on {pod.node}")
        if pending_change := _changed_back(plan.moves):
            return pending_change
        for node in plan.old_nodes:
            if pending := self._check_staying(node, plan, status):
                return pending
        return readiness_progress(snapshot, status.ready)

    def _check_planned(
        self, snapshot: ClusterSnapshot, plan: UpgradePlan, status: UpgradeStatus
    ) -> None:
        """Check once for all nodes that are drained together."""
        if self._unplanned is None:
            self._unplanned = unplanned_steps(snapshot, plan, status)
        if self._unplanned:
            raise UnplannedChange(self._unplanned)

    def _check_staying(
        self, node: str, plan: UpgradePlan, status: UpgradeStatus
    ) -> Progress | None:
        """Wait for workloads that were movable when planned and whose images are unresolved now."""
        staying = [move for move in plan.moves_left_behind if move.workload.pods_on([node])]
        if staying and not self._spec.leave_behind:
            raise WorkloadsLeftBehind(node, staying, plan.moves)
        movable = {str(workload) for workload in status.workloads if not workload.stays}
        for move in staying:
            if move.workload.problems and str(move.workload) in movable:
                return Progress(message=f"{move.workload}: {', '.join(move.reasons)}")
        return None

    async def _evict(self, workload: UpgradeWorkload, pod: WorkloadPod) -> str:
        """Evict a pod; return why it was refused, or an empty string."""
        if pod.is_leaving:
            return ""
        refusal = await evict_pod(self._api, workload.namespace, pod.name, pod.uid)
        return f"{workload}, pod {pod.name}: {refusal}" if refusal else ""


def select_parallel_drains(
    snapshot: ClusterSnapshot, steps: Sequence[StepRecord]
) -> list[StepRecord]:
    """Select empty nodes together, others one at a time."""
    workloads = (workload for workload in snapshot.workloads if workload.kind != DAEMON)
    occupied = {pod.node for workload in workloads for pod in workload.pods}
    return list(takewhile(lambda step: step.target not in occupied, steps)) or list(steps[:1])


def node_changed(step: StepRecord, snapshot: ClusterSnapshot, plan: UpgradePlan) -> Progress | None:
    """Return the result if it is not the node of the step any more, or not of the old build."""
    uid = snapshot.uids.get(step.target)
    if uid is None:
        return NODE_GONE
    if uid != step.before.get("uid"):
        return NODE_REPLACED
    if step.target not in plan.old_nodes:
        return replace(NODE_GONE, message="it no longer has the old build")
    return None


def unplanned_steps(
    snapshot: ClusterSnapshot, plan: UpgradePlan, status: UpgradeStatus
) -> tuple[UpgradeStep, ...]:
    """Return steps for objects that were added, and again for steps that were reverted.

    A node that was uncordoned is cordoned again, else evicted pods would return to it. A node that
    was recreated is another node, and gets its own steps.
    """
    recorded = {(step.do, step.target): step for step in status.steps}
    cordoned = {node.name for node in snapshot.nodes_of_build(plan.spec.old) if node.unschedulable}

    def is_planned(step: UpgradeStep) -> bool:
        record = recorded.get((step.kind, step.target))
        if record is None or record.state == PENDING or step.kind is UpgradeStepKind.PATCH_WORKLOAD:
            return record is not None
        same_node = record.before.get("uid") == snapshot.uids.get(step.target)
        return same_node and (step.kind is UpgradeStepKind.DRAIN or step.target in cordoned)

    kinds = (UpgradeStepKind.PATCH_WORKLOAD, UpgradeStepKind.CORDON, UpgradeStepKind.DRAIN)
    return tuple(step for step in plan.steps if step.kind in kinds and not is_planned(step))


def _changed_back(moves: Iterable[WorkloadMove]) -> Progress | None:
    """Find a template that was reverted: evicted pods would come back unchanged."""
    for move in moves:
        if move.change and not move.stays and move.workload.kind != DAEMON:
            return Progress(message=f"{move.workload} was changed back; it needs {move.change}")
    return None


def _leaving(
    moves: Iterable[WorkloadMove], nodes: Sequence[str]
) -> list[tuple[UpgradeWorkload, WorkloadPod]]:
    return [
        (move.workload, pod)
        for move in moves
        if not move.stays and move.workload.kind != DAEMON
        for pod in move.workload.pods_on(nodes)
    ]


def readiness_progress(
    snapshot: ClusterSnapshot,
    ready: Mapping[str, int],
    changes: Mapping[str, TemplateChange] | None = None,
) -> Progress:
    """Done if as many pods are ready as before, or as replicas if scaled down.

    If the template changed, all pods must be of the new one.
    """
    for workload in snapshot.workloads:
        name = str(workload)
        if workload.replicas is None or name not in ready:
            continue
        change = (changes or {}).get(name, TemplateChange())
        pending_change = [pod for pod in workload.pods if not change.is_applied(pod)]
        if pending_change:
            return Progress(
                message=f"{name}: {len(pending_change)} pods still have the old template"
            )
        expected = min(ready[name], workload.replicas)
        if workload.ready < expected:
            return Progress(message=f"{name}: {workload.ready} of {expected} pods are ready")
    return Progress(is_done=True)
