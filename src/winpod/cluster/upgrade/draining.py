"""Old nodes are emptied: pods are evicted, never deleted, so that disruption budgets hold.

Who cannot run elsewhere is not evicted. A node is drained when all who had to leave one so far are
ready again, as many as were ready before; that is read from the pods themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile

from winpod.cluster.evicting import evict
from winpod.cluster.upgrade.asked import Asked
from winpod.cluster.upgrade.look import Look
from winpod.cluster.upgrade.moves import DAEMON, Change, Move, Workload, WorkloadPod
from winpod.cluster.upgrade.plan import Do, Plan, Scene, Step
from winpod.cluster.upgrade.progress import PENDING, some
from winpod.cluster.upgrade.resource import Status, StepRecord
from winpod.cluster.upgrade.step_results import ANOTHER, GONE, Noted, Progress
from winpod.node.api import ApiServer
from winpod.windows.errors import WinpodError


class LeftBehind(WinpodError):
    """Something stays on a node, and nobody said to go on without it; `moves` are all as now."""

    code = "FAILED_PRECONDITION"

    def __init__(self, node: str, staying: Iterable[Move], moves: tuple[Move, ...]) -> None:
        told = [f"{move.workload}: {', '.join(move.reasons)}" for move in staying]
        said = some(told, "; ")
        super().__init__(
            f"{node} is not drained, because not all of it can move. {said}.",
            "Change these workloads, or go on without them (leaveBehind), or undo.",
        )
        self.moves = moves


class Unplanned(WinpodError):
    """There are workloads or old nodes that were not there, or not asked for, when it began."""

    code = "ABORTED"

    def __init__(self, steps: tuple[Step, ...]) -> None:
        super().__init__(f"{len(steps)} steps were not planned yet.")
        self.steps = steps


class Draining:
    """In one look at the cluster."""

    def __init__(self, api: ApiServer, look: Look, asked: Asked) -> None:
        self._api = api
        self._look = look
        self._asked = asked
        self._unplanned: tuple[Step, ...] | None = None

    async def together(self, steps: Sequence[StepRecord]) -> list[StepRecord]:
        return drained_together(await self._look.scene(), steps)

    async def before(self, step: StepRecord, _: Status) -> Noted:
        scene = await self._look.scene()
        there = [w for w in scene.workloads if w.on([step.target]) and w.replicas is not None]
        uid = scene.uids.get(step.target)
        return Noted({"uid": uid} if uid else {}, {str(w): w.ready for w in there})

    async def drain(self, step: StepRecord, status: Status) -> Progress:
        scene, plan = await self._look.plan()
        self._check_planned(scene, plan, status)
        if gone := not_its_node(step, scene, plan):
            made = until_ready(scene, status.ready)
            return gone if made.is_done else made
        there = [move for move in plan.moves if move.workload.on([step.target])]
        if unsure := self._check_staying(step.target, plan, status):
            return unsure
        if late := _changed_back(there):
            return late
        leaving = _leaving(there, [step.target])
        if not leaving:
            return until_ready(scene, status.ready)
        refusals = [await self._evict(workload, pod) for workload, pod in leaving]
        awaited = next((refusal for refusal in refusals if refusal), "")
        return Progress(message=awaited or f"{len(leaving)} pods leave {step.target}")

    async def verify(self, _: StepRecord, status: Status) -> Progress:
        """Nobody is on old nodes who should not be, and everybody is as ready as before."""
        scene, plan = await self._look.plan()
        self._check_planned(scene, plan, status)
        if leaving := _leaving(plan.moves, plan.old_nodes):
            staying = sorted({pod.node for _, pod in leaving if not pod.is_leaving})
            if staying:  # who could not move when its node was drained, and can now
                raise Unplanned(tuple(Step(Do.DRAIN, node) for node in staying))
            workload, pod = leaving[0]
            return Progress(message=f"{workload} has pod {pod.name} on {pod.node}")
        if late := _changed_back(plan.moves):
            return late
        for node in plan.old_nodes:
            if unsure := self._check_staying(node, plan, status):
                return unsure
        return until_ready(scene, status.ready)

    def _check_planned(self, scene: Scene, plan: Plan, status: Status) -> None:
        """Once for all that are drained together."""
        if self._unplanned is None:
            self._unplanned = unplanned_steps(scene, plan, status)
        if self._unplanned:
            raise Unplanned(self._unplanned)

    def _check_staying(self, node: str, plan: Plan, status: Status) -> Progress | None:
        """Who could move when it was planned is not left behind because a registry is silent."""
        staying = [move for move in plan.staying if move.workload.on([node])]
        if staying and not self._asked.leave_behind:
            raise LeftBehind(node, staying, plan.moves)
        movable = {str(workload) for workload in status.workloads if not workload.stays}
        for move in staying:
            if move.workload.problems and str(move.workload) in movable:
                return Progress(message=f"{move.workload}: {', '.join(move.reasons)}")
        return None

    async def _evict(self, workload: Workload, pod: WorkloadPod) -> str:
        """Why not now, or nothing."""
        if pod.is_leaving:
            return ""
        why = await evict(self._api, workload.namespace, pod.name, pod.uid)
        return f"{workload}, pod {pod.name}: {why}" if why else ""


def drained_together(scene: Scene, steps: Sequence[StepRecord]) -> list[StepRecord]:
    """One node at a time where somebody has to leave it; those that are empty at once."""
    workloads = (workload for workload in scene.workloads if workload.kind != DAEMON)
    held = {pod.node for workload in workloads for pod in workload.pods}
    return list(takewhile(lambda step: step.target not in held, steps)) or list(steps[:1])


def not_its_node(step: StepRecord, scene: Scene, plan: Plan) -> Progress | None:
    """Where it is not the node that the step was begun for, or not one of the old build."""
    uid = scene.uids.get(step.target)
    if uid is None:
        return GONE
    if uid != step.before.get("uid"):
        return ANOTHER
    if step.target not in plan.old_nodes:
        return replace(GONE, message="it is no old node any more")
    return None


def unplanned_steps(scene: Scene, plan: Plan, status: Status) -> tuple[Step, ...]:
    """Steps for what has come meanwhile, and again for what somebody has taken back.

    A node that somebody opened is cordoned again, or those who left it come back; one that was made
    again is another node, which the steps of an old one are taken for anew.
    """
    known = {(step.do, step.target): step for step in status.steps}
    closed = {node.name for node in scene.of_build(plan.asked.old) if node.unschedulable}

    def is_taken(step: Step) -> bool:
        record = known.get((step.do, step.target))
        if record is None or record.state == PENDING or step.do is Do.PATCH_WORKLOAD:
            return record is not None
        is_its = record.before.get("uid") == scene.uids.get(step.target)
        return is_its and (step.do is Do.DRAIN or step.target in closed)

    later = (Do.PATCH_WORKLOAD, Do.CORDON, Do.DRAIN)
    return tuple(step for step in plan.steps if step.do in later and not is_taken(step))


def _changed_back(moves: Iterable[Move]) -> Progress | None:
    """A template that is as it was before its step: evicted pods would come back as they were."""
    for move in moves:
        if move.change and not move.stays and move.workload.kind != DAEMON:
            return Progress(message=f"{move.workload} was changed back; it needs {move.change}")
    return None


def _leaving(moves: Iterable[Move], nodes: Sequence[str]) -> list[tuple[Workload, WorkloadPod]]:
    return [
        (move.workload, pod)
        for move in moves
        if not move.stays and move.workload.kind != DAEMON
        for pod in move.workload.on(nodes)
    ]


def until_ready(
    scene: Scene, ready: Mapping[str, int], changes: Mapping[str, Change] | None = None
) -> Progress:
    """As many pods as were ready before, as far as they are still asked for.

    Where a template has changed, every pod must be of the new one.
    """
    for workload in scene.workloads:
        name = str(workload)
        if workload.replicas is None or name not in ready:
            continue
        change = (changes or {}).get(name, Change())
        late = [pod for pod in workload.pods if not change.is_made(pod)]
        if late:
            return Progress(message=f"{name}: {len(late)} pods are still of its old template")
        wanted = min(ready[name], workload.replicas)
        if workload.ready < wanted:
            return Progress(message=f"{name}: {workload.ready} of {wanted} pods are ready")
    return Progress(is_done=True)
