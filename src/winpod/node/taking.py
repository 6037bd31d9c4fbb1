"""Whether the node takes a pod now: as it is, or with the room that others have to make.

One pod is asked about after the other. A critical one makes room, and waits until those that go
have gone: what it is given is free when it comes, and nobody else has taken it meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Protocol

from lightkube.models import core_v1 as v1

from winpod.node.admission import Lack, Taken, lacks, refusal
from winpod.node.known import Why
from winpod.node.means import Means
from winpod.node.phase import Told
from winpod.node.pods import grace_seconds, is_critical, uid_of
from winpod.node.preemption import NotEnough, to_preempt

_PREEMPTED = Why("Preempting", "Preempted in order to admit critical pod")
_TARGET = Told(
    "DisruptionTarget",
    True,
    "TerminationByKubelet",
    "Pod was preempted by Kubelet to accommodate a critical pod.",
)


class Preempted(Protocol):
    ended: asyncio.Event

    @property
    def is_ending(self) -> bool: ...

    def fail(self, why: Why, grace: float, condition: Told | None = None) -> None: ...


class Taking:
    """`taken` is what all pods but one have; `pods` are those that have it, with who ends them."""

    def __init__(
        self,
        means: Means,
        taken: Callable[[str], Iterable[Taken]],
        pressures: Callable[[], frozenset[str]],
        pods: Callable[[], Mapping[str, tuple[v1.Pod, Preempted]]],
    ) -> None:
        self._means = means
        self._taken = taken
        self._pressures = pressures
        self._pods = pods
        self._turn = asyncio.Lock()

    async def refusal(self, pod: v1.Pod) -> Why | None:
        """Why the pod is not taken. Between the answer and what follows nobody else is asked."""
        node = await self._means.objects.node()
        async with self._turn:
            if not is_critical(pod):
                taken = self._taken(uid_of(pod))
                return refusal(pod, taken, self._means.facts, node, self._pressures())
            while True:
                others = list(self._taken(uid_of(pod)))
                without_amounts = [replace(other, needs=()) for other in others]
                if why := refusal(pod, without_amounts, self._means.facts, node):
                    return why
                missing = lacks(pod, others, self._means.facts)
                if not missing:
                    return None
                if why := await self._make_room(pod, missing):
                    return why

    async def _make_room(self, pod: v1.Pod, missing: Iterable[Lack]) -> Why | None:
        known = {uid: one for uid, one in self._pods().items() if not one[1].ended.is_set()}
        ending = [other for other, worker in known.values() if worker.is_ending]
        others = (other for other, worker in known.values() if not worker.is_ending)
        try:
            going = to_preempt(pod, others, missing, ending)
        except NotEnough as error:
            return Why(
                "UnexpectedAdmissionError",
                "Unexpected error while attempting to recover from admission failure: "
                f"preemption: error finding a set of pods to preempt: {error}",
            )
        for other in going:
            await self._means.tell(other, "Warning", _PREEMPTED.reason, _PREEMPTED.message)
            known[uid_of(other)][1].fail(_PREEMPTED, grace_seconds(other), _TARGET)
        await _until_one_has_ended([known[uid_of(other)][1] for other in (*ending, *going)])
        return None


async def _until_one_has_ended(workers: Iterable[Preempted]) -> None:
    waits = [asyncio.ensure_future(worker.ended.wait()) for worker in workers]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
