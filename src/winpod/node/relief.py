"""What the node does when it runs short: it frees what nobody uses, and then it evicts a pod.

One pod at a time, because its end may be enough. A pressure that is over is told for some time
more, so that the node does not flap.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Protocol

from lightkube.models import core_v1 as v1

from winpod.node.eviction import (
    CONDITIONS,
    EVICTED,
    STORAGE,
    PodUse,
    Shortage,
    broken_limit,
    eviction_message,
    has_disk_limits,
    next_to_go,
    shortages,
)
from winpod.node.image_garbage import ImageGarbage
from winpod.node.known import Why
from winpod.node.means import Means
from winpod.node.measuring import measure_containers, measure_disks, measure_node
from winpod.node.phase import Told
from winpod.node.pods import uid_of

_GRACE = 1.0
_LONGEST_END = 30.0
_TARGET = Told(
    "DisruptionTarget",
    True,
    "TerminationByKubelet",
    "The node was low on a resource that the pod used.",
)


class Evicted(Protocol):
    ended: asyncio.Event

    def fail(self, why: Why, grace: float, condition: Told | None = None) -> None: ...


class Relief:
    """`pods` are those that could go, by their uid, with who ends them."""

    def __init__(
        self,
        means: Means,
        images: ImageGarbage,
        pods: Callable[[], Mapping[str, tuple[v1.Pod, Evicted]]],
    ) -> None:
        self._means = means
        self._images = images
        self._pods = pods
        self._pressed_at: dict[str, float] = {}

    def pressures(self) -> frozenset[str]:
        """The node's conditions that hold."""
        now, hold = time.monotonic(), self._means.facts.thresholds.hold.total_seconds()
        return frozenset(c for c, since in self._pressed_at.items() if now - since < hold)

    async def look(self) -> None:
        containers = await measure_containers(self._means)
        pods = self._pods()
        use = {uid: PodUse(containers.get(uid, {})) for uid in pods}
        limited = [pod for pod, _ in pods.values() if has_disk_limits(pod)]
        use |= await measure_disks(limited, containers, self._means)
        for pod in limited:
            if message := broken_limit(pod, use[uid_of(pod)]):
                await self._evict(pod, message, None)
        short = await self._shortages(use)
        for one in short:
            self._pressed_at[CONDITIONS[one.resource]] = time.monotonic()
        if any(one.resource == STORAGE for one in short):
            await self._images.collect(under_pressure=True)
            short = await self._shortages(use)
        if short:
            await self._make_room(short[0], use)

    async def _shortages(self, use: dict[str, PodUse]) -> list[Shortage]:
        used = sum(one.of("memory") for one in use.values())
        return shortages(await measure_node(used, self._means), self._means.facts.thresholds)

    async def _make_room(self, shortage: Shortage, use: dict[str, PodUse]) -> None:
        pods = [pod for pod, _ in self._pods().values()]
        if shortage.resource == STORAGE:
            measured = await measure_containers(self._means)
            use = use | await measure_disks(pods, measured, self._means)
        pod = next_to_go(pods, use, shortage.resource)
        if pod:
            message = eviction_message(pod, use.get(uid_of(pod), PodUse()), shortage)
            await self._evict(pod, message, _TARGET)

    async def _evict(self, pod: v1.Pod, message: str, condition: Told | None) -> None:
        known = self._pods().get(uid_of(pod))
        if known is None:
            return
        await self._means.tell(pod, "Warning", EVICTED, message)
        known[1].fail(Why(EVICTED, message), _GRACE, condition)
        with suppress(TimeoutError):
            async with asyncio.timeout(_LONGEST_END):
                await known[1].ended.wait()
