"""Times of the lifecycle of pods, from a watch of the API server and from the node's metrics.

Timestamps of a pod in the API have whole seconds, so the watch's own clock is used. The node's
metrics have the sums of its call durations: the difference of two samples is that of the pods
between them. All parts are means over the pods, so they add up.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from winpod.k8s.client import ApiClient
from winpod.k8s.models import core_v1 as v1

TIMEOUT = 600
READY, RUNS = "mean of the pods: Ready", "on the node"
GONE, ENDS = "mean of the pods: gone", "on the node, termination"
WAITS, STATUS = "waiting", "status update"
REST = "status updates, final deletion, waiting"
START_CALLS = {
    "sandbox: silo, CNI": ("run_podsandbox",),
    "image": ("image_status", "pull_image"),
    "create": ("create_container",),
    "start": ("start_container",),
    "runtime status": ("podsandbox_status",),
}
END_CALLS = {
    "stop the container": ("stop_container",),
    "stop the sandbox": ("stop_podsandbox",),
    "remove both": ("remove_container", "remove_podsandbox"),
}
PART_OF = {
    "pod created": READY,
    "pod bound": READY,
    RUNS: READY,
    **dict.fromkeys(("seen by the node", "volumes", *START_CALLS, WAITS, STATUS), RUNS),
    "deletion requested": GONE,
    ENDS: GONE,
    **dict.fromkeys((*END_CALLS, "volumes removed", REST), ENDS),
}
"""Each part with the part that contains it."""
Parts = dict[str, float]
_CALLS = "kubelet_runtime_operations_duration_seconds"
_VOLUMES = "winpod_node_pod_volumes_duration_seconds"
_STARTS = "kubelet_pod_start_duration_seconds"
_STATUS_UPDATES = "kubelet_pod_status_sync_duration_seconds"


@dataclass(slots=True)
class PodTimes:
    """Unix time of the first observation of each state; 0 if not observed."""

    created: float = 0.0
    bound: float = 0.0
    ready: float = 0.0
    deleting: float = 0.0
    gone: float = 0.0

    def take(self, kind: str, pod: v1.Pod, now: float) -> None:
        conditions = (pod.status and pod.status.conditions) or ()
        observed = {
            "created": True,
            "bound": pod.spec and pod.spec.nodeName,
            "ready": any(one.type == "Ready" and one.status == "True" for one in conditions),
            "deleting": pod.metadata and pod.metadata.deletionTimestamp,
            "gone": kind == "DELETED",
        }
        for name, holds in observed.items():
            if holds and not getattr(self, name):
                setattr(self, name, now)


@dataclass
class Watched:
    pods: dict[str, PodTimes] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def until_all(self, count: int, has: Callable[[PodTimes], float]) -> None:
        async with asyncio.timeout(TIMEOUT):
            while sum(1 for pod in self.pods.values() if has(pod)) < count:
                self.changed.clear()
                await self.changed.wait()

    def mean(self, of: Callable[[PodTimes], float]) -> float:
        return statistics.mean(map(of, self.pods.values()))

    def last(self, of: Callable[[PodTimes], float]) -> float:
        return max(map(of, self.pods.values()))


@asynccontextmanager
async def watching(api: ApiClient, namespace: str) -> AsyncIterator[Watched]:
    """Watch from now on; the namespace has no pods yet."""
    path, watched = f"/api/v1/namespaces/{namespace}/pods", Watched()
    version = (await api.list(v1.Pod, path, {})).version

    async def follow() -> None:
        async for change in api.watch(v1.Pod, path, {"resourceVersion": version}):
            if (pod := change.object) and pod.metadata and pod.metadata.name:
                times = watched.pods.setdefault(pod.metadata.name, PodTimes())
                times.take(change.kind, pod, time.time())
                watched.changed.set()

    task = asyncio.create_task(follow())
    try:
        yield watched
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


Sums = dict[tuple[str, str], float]
"""Seconds of histograms by name and operation; `NAME_count` has the number of observations."""


def sums_of(page: str) -> Sums:
    found: Sums = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name.endswith(("_sum", "_count")):
                name = sample.name.removesuffix("_sum")
                found[name, sample.labels.get("operation_type", "")] = sample.value
    return found


def between(before: Sums, after: Sums) -> Sums:
    return {key: value - before.get(key, 0.0) for key, value in after.items()}


def total(page: str, name: str) -> float:
    """Return the sum of one metric over all pods."""
    samples = (one for family in text_string_to_metric_families(page) for one in family.samples)
    return sum(sample.value for sample in samples if sample.name == name)


def start_parts(watched: Watched, began: float) -> Parts:
    return {
        READY: watched.mean(lambda pod: pod.ready) - began,
        "pod created": watched.mean(lambda pod: pod.created) - began,
        "pod bound": watched.mean(lambda pod: pod.bound - pod.created),
        RUNS: watched.mean(lambda pod: pod.ready - pod.bound),
    }


def start_on_node(watched: Watched, took: Sums) -> Parts:
    """Return the parts of a start on the node.

    A pod's status is updated twice, when it is seen and when it runs; one update is part of its
    start. The node's clock begins when it sees the pod: the remaining time was before. This watch
    may receive the binding later than the node does, so that part can be negative.
    """
    count = len(watched.pods)
    calls = _calls(START_CALLS, took, count)
    volumes, start = took[_VOLUMES, "mount"] / count, took[_STARTS, ""] / count
    update = took[_STATUS_UPDATES, ""] / took[f"{_STATUS_UPDATES}_count", ""]
    return {
        "seen by the node": watched.mean(lambda pod: pod.ready - pod.bound) - start - update,
        "volumes": volumes,
        **calls,
        WAITS: start - volumes - sum(calls.values()),
        STATUS: update,
    }


def end_parts(watched: Watched, began: float) -> Parts:
    return {
        GONE: watched.mean(lambda pod: pod.gone) - began,
        "deletion requested": watched.mean(lambda pod: pod.deleting) - began,
        ENDS: watched.mean(lambda pod: pod.gone - pod.deleting),
    }


def end_on_node(watched: Watched, took: Sums) -> Parts:
    count = len(watched.pods)
    calls = _calls(END_CALLS, took, count)
    volumes = took[_VOLUMES, "unmount"] / count
    rest = watched.mean(lambda pod: pod.gone - pod.deleting) - volumes - sum(calls.values())
    return {**calls, "volumes removed": volumes, REST: rest}


def _calls(names: dict[str, tuple[str, ...]], took: Sums, count: int) -> Parts:
    return {
        part: sum(took.get((_CALLS, operation), 0.0) for operation in operations) / count
        for part, operations in names.items()
    }
