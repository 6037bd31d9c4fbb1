"""Old nodes are emptied: pods are evicted, never deleted, so that disruption budgets hold.

Who cannot run elsewhere is not evicted. A node is drained when those who left it are ready again,
as many as were ready before; that is read from the pods themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from winpod.cluster.upgrade.asked import Asked
from winpod.cluster.upgrade.moves import DAEMON, Change, Move, Workload, WorkloadPod
from winpod.cluster.upgrade.plan import Do, Plan, Scene, Step
from winpod.cluster.upgrade.resource import Status, StepRecord
from winpod.cluster.upgrade.survey import Survey
from winpod.node.api import ApiServer, Refused
from winpod.windows.errors import Unavailable, WinpodError


@dataclass(frozen=True, slots=True)
class Progress:
    """What is awaited, or, where it is done, what there is to say about it.

    `look_again`: something was changed just now, and is to be read again at once.
    """

    is_done: bool = False
    message: str = ""
    look_again: bool = False


class LeftBehind(WinpodError):
    """Something stays on a node, and nobody said to go on without it; `moves` are all as now."""

    code = "FAILED_PRECONDITION"

    def __init__(self, node: str, staying: Iterable[Move], moves: tuple[Move, ...]) -> None:
        said = "; ".join(f"{move.workload}: {', '.join(move.reasons)}" for move in staying)
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
    def __init__(self, api: ApiServer, survey: Survey, asked: Asked) -> None:
        self._api = api
        self._survey = survey
        self._asked = asked

    async def ready_now(self, step: StepRecord) -> dict[str, Any]:
        scene = await self._survey.scene(self._asked)
        return {"ready": {str(w): w.ready for w in scene.workloads if w.on([step.target])}}

    async def drain(self, step: StepRecord, status: Status) -> Progress:
        scene, plan = await self._survey.plan(self._asked)
        _check_planned(scene, plan, status)
        there = [move for move in plan.moves if move.workload.on([step.target])]
        self._check_staying(step.target, plan)
        if late := _changed_back(there):
            return late
        leaving = _leaving(there, [step.target])
        if not leaving:
            return until_ready(scene, step.before.get("ready", {}))
        refusals = [await self._evict(workload, pod) for workload, pod in leaving]
        awaited = next((refusal for refusal in refusals if refusal), "")
        return Progress(message=awaited or f"{len(leaving)} pods leave {step.target}")

    async def verify(self, _: StepRecord, status: Status) -> Progress:
        """Nobody is on old nodes who should not be, and everybody is as ready as before."""
        scene, plan = await self._survey.plan(self._asked)
        _check_planned(scene, plan, status)
        if leaving := _leaving(plan.moves, plan.old_nodes):
            staying = sorted({pod.node for _, pod in leaving if not pod.is_leaving})
            if staying:  # who could not move when its node was drained, and can now
                raise Unplanned(tuple(Step(Do.DRAIN, node) for node in staying))
            workload, pod = leaving[0]
            return Progress(message=f"{workload} has pod {pod.name} on {pod.node}")
        if late := _changed_back(plan.moves):
            return late
        for node in plan.old_nodes:
            self._check_staying(node, plan)
        ready: dict[str, int] = {}
        for step in status.steps:
            for name, count in step.before.get("ready", {}).items():
                ready[name] = max(count, ready.get(name, 0))
        return until_ready(scene, ready)

    def _check_staying(self, node: str, plan: Plan) -> None:
        staying = [move for move in plan.staying if move.workload.on([node])]
        if staying and not self._asked.leave_behind:
            raise LeftBehind(node, staying, plan.moves)

    async def _evict(self, workload: Workload, pod: WorkloadPod) -> str:
        """Why not now, or nothing."""
        if pod.is_leaving:
            return ""
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": workload.namespace},
            "deleteOptions": {"preconditions": {"uid": pod.uid}},
        }
        path = f"/api/v1/namespaces/{workload.namespace}/pods/{pod.name}/eviction"
        try:
            await self._api.request("POST", path, body)
        except Unavailable as error:
            return f"{workload}, pod {pod.name}: {error.sentence}"
        except Refused as error:
            if not (error.is_missing or error.is_conflict):
                raise
        return ""


def _check_planned(scene: Scene, plan: Plan, status: Status) -> None:
    """A node that somebody opened again is cordoned again, or those who left it come back."""
    known = {(step.do, step.target) for step in status.steps}
    later = (Do.PATCH_WORKLOAD, Do.CORDON, Do.DRAIN)
    missing = [s for s in plan.steps if s.do in later and (s.do, s.target) not in known]
    opened = [n.name for n in scene.of_build(plan.asked.old) if not n.unschedulable]
    missing += [Step(Do.CORDON, name) for name in opened if (Do.CORDON, name) in known]
    if missing:
        raise Unplanned(tuple(missing))


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
