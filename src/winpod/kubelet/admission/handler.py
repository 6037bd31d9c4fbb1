"""Admits pods one at a time, and preempts pods to admit critical ones.

A critical pod waits until its victims have terminated, so that the resources are free and no other
pod takes them meanwhile. Victims are chosen by the kubelet's rule: as few as possible, BestEffort
before Burstable before Guaranteed, and of each class the pod whose request is closest to what is
missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from winpod.k8s.models import core_v1 as v1
from winpod.k8s.pods import grace_seconds, is_critical, priority_of, qos_class, uid_of
from winpod.kubelet.admission.predicates import (
    AllocatedResources,
    InsufficientResource,
    admission_failure,
    allocated_by,
    format_amount,
    insufficient_resources,
)
from winpod.kubelet.context import KubeletContext
from winpod.kubelet.status.phase import PodCondition, StatusReason

_CLASSES = ("BestEffort", "Burstable", "Guaranteed")
Missing = Mapping[str, int]


class PreemptionImpossible(Exception):
    """The preemptible pods have requested less than is missing; worded as in the kubelet."""

    def __init__(self, missing: Missing) -> None:
        listed = "".join(f"(res: {name}, q: {amount}), " for name, amount in missing.items())
        super().__init__(f"no set of running pods found to reclaim resources: [{listed}]")


def select_preemption_victims(
    pod: v1.Pod,
    others: Iterable[v1.Pod],
    shortages: Iterable[InsufficientResource],
    terminating: Sequence[v1.Pod] = (),
) -> list[v1.Pod]:
    """Select victims among `others`. What terminating pods free is subtracted first."""
    missing = _remaining({shortage.name: shortage.missing for shortage in shortages}, terminating)
    candidates = [other for other in others if _may_preempt(pod, other)]
    if shortfall := _remaining(missing, candidates):
        raise PreemptionImpossible(shortfall)
    best_effort, burstable, guaranteed = (
        [p for p in candidates if qos_class(p) == name] for name in _CLASSES
    )
    guaranteed = _closest(guaranteed, _remaining(missing, [*best_effort, *burstable]))
    burstable = _closest(burstable, _remaining(missing, [*best_effort, *guaranteed]))
    best_effort = _closest(best_effort, _remaining(missing, [*burstable, *guaranteed]))
    return [*best_effort, *burstable, *guaranteed]


def _may_preempt(pod: v1.Pod, other: v1.Pod) -> bool:
    if is_critical(pod) and not is_critical(other):
        return True
    return priority_of(pod) > priority_of(other)


def _remaining(missing: Missing, pods: Sequence[v1.Pod]) -> dict[str, int]:
    """Return what is still missing after these pods are gone."""
    left = {n: amount - sum(_requested(pod, n) for pod in pods) for n, amount in missing.items()}
    return {name: amount for name, amount in left.items() if amount > 0}


def _closest(pods: Sequence[v1.Pod], missing: Missing) -> list[v1.Pod]:
    """Greedily select pods, each time the one that leaves the least missing."""
    chosen: list[v1.Pod] = []
    while left := _remaining(missing, chosen):
        rest = [pod for pod in pods if pod not in chosen]
        chosen.append(min(rest, key=lambda pod: _distance(pod, left)))
    return chosen


def _distance(pod: v1.Pod, missing: Missing) -> tuple[float, int, int]:
    """Rank a pod by what would be missing without it, relative to the shortage; then by size."""
    shares = (max(amount - _requested(pod, name), 0) / amount for name, amount in missing.items())
    return sum(share**2 for share in shares), _requested(pod, "memory"), _requested(pod, "cpu")


def _requested(pod: v1.Pod, name: str) -> int:
    return format_amount(name, dict(allocated_by(pod).needs))


_PREEMPTED = StatusReason("Preempting", "Preempted in order to admit critical pod")
_TARGET = PodCondition(
    "DisruptionTarget",
    True,
    "TerminationByKubelet",
    "Pod was preempted by Kubelet to accommodate a critical pod.",
)


class PreemptiblePod(Protocol):
    ended: asyncio.Event

    @property
    def is_terminating(self) -> bool: ...

    def fail_pod(
        self, reason: StatusReason, grace: float, condition: PodCondition | None = None
    ) -> None: ...


class AdmissionHandler:
    """Admits pods to the node.

    `allocated` returns the allocations of all pods but one; `pods` returns the active pods with
    their workers.
    """

    def __init__(
        self,
        context: KubeletContext,
        allocated: Callable[[str], Iterable[AllocatedResources]],
        pressures: Callable[[], frozenset[str]],
        pods: Callable[[], Mapping[str, tuple[v1.Pod, PreemptiblePod]]],
    ) -> None:
        self._context = context
        self._allocated = allocated
        self._pressures = pressures
        self._pods = pods
        self._lock = asyncio.Lock()

    async def admission_failure(self, pod: v1.Pod) -> StatusReason | None:
        """Return why the pod is rejected, or None. Admissions are serialized."""
        node = await self._context.objects.node()
        async with self._lock:
            if not is_critical(pod):
                allocated = self._allocated(uid_of(pod))
                return admission_failure(
                    pod, allocated, self._context.node_config, node, self._pressures()
                )
            while True:
                others = list(self._allocated(uid_of(pod)))
                without_amounts = [replace(other, needs=()) for other in others]
                if failure := admission_failure(
                    pod, without_amounts, self._context.node_config, node
                ):
                    return failure
                missing = insufficient_resources(pod, others, self._context.node_config)
                if not missing:
                    return None
                if failure := await self._preempt(pod, missing):
                    return failure

    async def _preempt(
        self, pod: v1.Pod, missing: Iterable[InsufficientResource]
    ) -> StatusReason | None:
        active = {uid: pair for uid, pair in self._pods().items() if not pair[1].ended.is_set()}
        terminating = [other for other, worker in active.values() if worker.is_terminating]
        others = (other for other, worker in active.values() if not worker.is_terminating)
        try:
            victims = select_preemption_victims(pod, others, missing, terminating)
        except PreemptionImpossible as error:
            return StatusReason(
                "UnexpectedAdmissionError",
                "Unexpected error while attempting to recover from admission failure: "
                f"preemption: error finding a set of pods to preempt: {error}",
            )
        for other in victims:
            await self._context.record_event(
                other, "Warning", _PREEMPTED.reason, _PREEMPTED.message
            )
            active[uid_of(other)][1].fail_pod(_PREEMPTED, grace_seconds(other), _TARGET)
        await _wait_for_termination(
            [active[uid_of(other)][1] for other in (*terminating, *victims)]
        )
        return None


async def _wait_for_termination(workers: Iterable[PreemptiblePod]) -> None:
    waits = [asyncio.ensure_future(worker.ended.wait()) for worker in workers]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
