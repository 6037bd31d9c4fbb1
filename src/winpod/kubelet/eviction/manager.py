"""Eviction manager: reclaims resources when the node runs low, and then evicts pods.

Unused images are removed first. Pods are evicted one at a time, since one may be enough. A pressure
condition is held for the transition period after it was last observed, to avoid flapping.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Protocol

from winpod.k8s.models import core_v1 as v1
from winpod.k8s.pods import uid_of
from winpod.kubelet.context import KubeletContext
from winpod.kubelet.eviction.ranking import (
    EVICTED_REASON,
    PRESSURE_CONDITIONS,
    STORAGE,
    ExceededThreshold,
    MeasuredPod,
    eviction_message,
    exceeded_limit,
    exceeded_thresholds,
    has_disk_limits,
    select_victim,
)
from winpod.kubelet.eviction.signals import measure_containers, measure_disks, measure_node
from winpod.kubelet.images.image_gc import ImageGC
from winpod.kubelet.status.phase import PodCondition, StatusReason

_GRACE_SECONDS = 1.0
_MAX_TERMINATION_SECONDS = 30.0
_TARGET = PodCondition(
    "DisruptionTarget",
    True,
    "TerminationByKubelet",
    "The node was low on a resource that the pod used.",
)


class EvictablePod(Protocol):
    ended: asyncio.Event

    def fail_pod(
        self, reason: StatusReason, grace: float, condition: PodCondition | None = None
    ) -> None: ...


class EvictionManager:
    """Evicts pods under resource pressure.

    `pods` returns the evictable pods by UID, each with its worker.
    """

    def __init__(
        self,
        context: KubeletContext,
        images: ImageGC,
        pods: Callable[[], Mapping[str, tuple[v1.Pod, EvictablePod]]],
    ) -> None:
        self._context = context
        self._images = images
        self._pods = pods
        self._pressure_seen_at: dict[str, float] = {}

    def pressures(self) -> frozenset[str]:
        """Return the node's pressure conditions that hold."""
        now, hold = (
            time.monotonic(),
            self._context.node_config.thresholds.transition_period.total_seconds(),
        )
        return frozenset(c for c, since in self._pressure_seen_at.items() if now - since < hold)

    async def synchronize(self) -> None:
        containers = await measure_containers(self._context)
        pods = self._pods()
        usage = {uid: MeasuredPod(containers.get(uid, {})) for uid in pods}
        limited = [pod for pod, _ in pods.values() if has_disk_limits(pod)]
        usage |= await measure_disks(limited, containers, self._context)
        for pod in limited:
            if message := exceeded_limit(pod, usage[uid_of(pod)]):
                await self._evict(pod, message, None)
        exceeded = await self._exceeded_thresholds(usage)
        for shortage in exceeded:
            self._pressure_seen_at[PRESSURE_CONDITIONS[shortage.resource]] = time.monotonic()
        if any(shortage.resource == STORAGE for shortage in exceeded):
            await self._images.collect_garbage(under_pressure=True)
            exceeded = await self._exceeded_thresholds(usage)
        if exceeded:
            await self._evict_one(exceeded[0], usage)

    async def _exceeded_thresholds(self, usage: dict[str, MeasuredPod]) -> list[ExceededThreshold]:
        used = sum(pod.of_resource("memory") for pod in usage.values())
        return exceeded_thresholds(
            await measure_node(used, self._context), self._context.node_config.thresholds
        )

    async def _evict_one(self, shortage: ExceededThreshold, usage: dict[str, MeasuredPod]) -> None:
        pods = [pod for pod, _ in self._pods().values()]
        if shortage.resource == STORAGE:
            measured = await measure_containers(self._context)
            usage = usage | await measure_disks(pods, measured, self._context)
        pod = select_victim(pods, usage, shortage.resource)
        if pod:
            message = eviction_message(pod, usage.get(uid_of(pod), MeasuredPod()), shortage)
            await self._evict(pod, message, _TARGET)

    async def _evict(self, pod: v1.Pod, message: str, condition: PodCondition | None) -> None:
        entry = self._pods().get(uid_of(pod))
        if entry is None:
            return
        await self._context.record_event(pod, "Warning", EVICTED_REASON, message)
        entry[1].fail_pod(StatusReason(EVICTED_REASON, message), _GRACE_SECONDS, condition)
        with suppress(TimeoutError):
            async with asyncio.timeout(_MAX_TERMINATION_SECONDS):
                await entry[1].ended.wait()
