"""When what happens to pods, as a watch of the API server sees it, and what their node took for it.

Times of a pod at the API server have whole seconds, so the watch's own clock is read. What a node
took for its calls is in its metrics, as sums: the difference of two looks is what the pods between
them took. All parts are means over the pods, so they add up.
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

PATIENCE = 600
READY, RUNS, GONE, ENDS = "apply to Ready", "on the node", "delete to gone", "on the node, ending"
WAITS, TOLD, REST = "waits for its turn", "status told", "told, let go, waiting"
START_CALLS = {
    "sandbox: shell, network": ("run_podsandbox",),
    "image": ("image_status", "pull_image"),
    "create": ("create_container",),
    "start": ("start_container",),
    "looking what it is": ("podsandbox_status",),
}
END_CALLS = {
    "stop the container": ("stop_container",),
    "stop the sandbox": ("stop_podsandbox",),
    "remove both": ("remove_container", "remove_podsandbox"),
}
PART_OF = {
    "created": READY,
    "scheduled": READY,
    RUNS: READY,
    **dict.fromkeys(("seen", "volumes made", *START_CALLS, WAITS, TOLD), RUNS),
    "told to end": GONE,
    ENDS: GONE,
    **dict.fromkeys((*END_CALLS, "volumes removed", REST), ENDS),
}
"""What each part is a part of."""
Parts = dict[str, float]
_CALLS = "kubelet_runtime_operations_duration_seconds"
_VOLUMES = "winpod_node_pod_volumes_duration_seconds"
_STARTS = "kubelet_pod_start_duration_seconds"
_TOLD = "kubelet_pod_status_sync_duration_seconds"


@dataclass(slots=True)
class PodTimes:
    """Seconds since 1970, each the first time that it was so; 0 for what has not been."""

    created: float = 0.0
    bound: float = 0.0
    ready: float = 0.0
    deleting: float = 0.0
    gone: float = 0.0

    def take(self, kind: str, pod: v1.Pod, now: float) -> None:
        conditions = (pod.status and pod.status.conditions) or ()
        holds = {
            "created": True,
            "bound": pod.spec and pod.spec.nodeName,
            "ready": any(one.type == "Ready" and one.status == "True" for one in conditions),
            "deleting": pod.metadata and pod.metadata.deletionTimestamp,
            "gone": kind == "DELETED",
        }
        for name, is_so in holds.items():
            if is_so and not getattr(self, name):
                setattr(self, name, now)


@dataclass
class Watched:
    pods: dict[str, PodTimes] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def until_all(self, count: int, has: Callable[[PodTimes], float]) -> None:
        async with asyncio.timeout(PATIENCE):
            while sum(1 for pod in self.pods.values() if has(pod)) < count:
                self.changed.clear()
                await self.changed.wait()

    def mean(self, of: Callable[[PodTimes], float]) -> float:
        return statistics.mean(map(of, self.pods.values()))

    def last(self, of: Callable[[PodTimes], float]) -> float:
        return max(map(of, self.pods.values()))


@asynccontextmanager
async def watching(api: ApiClient, namespace: str) -> AsyncIterator[Watched]:
    """From now on; the namespace has no pods yet."""
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
"""Seconds of a histogram, by its name and the operation, and under `NAME_count` how often."""


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
    """One metric, of all pods."""
    samples = (one for family in text_string_to_metric_families(page) for one in family.samples)
    return sum(sample.value for sample in samples if sample.name == name)


def start_parts(watched: Watched, began: float) -> Parts:
    return {
        READY: watched.mean(lambda pod: pod.ready) - began,
        "created": watched.mean(lambda pod: pod.created) - began,
        "scheduled": watched.mean(lambda pod: pod.bound - pod.created),
        RUNS: watched.mean(lambda pod: pod.ready - pod.bound),
    }


def start_on_node(watched: Watched, took: Sums) -> Parts:
    """A pod is told twice, that it is there and that it runs; one report is part of its start.

    The node's own clock begins when it sees the pod: what it does not explain was before. Another
    watch may hear of the binding later than the node does, so that can be less than nothing.
    """
    count = len(watched.pods)
    calls = _calls(START_CALLS, took, count)
    volumes, start = took[_VOLUMES, "mount"] / count, took[_STARTS, ""] / count
    told = took[_TOLD, ""] / took[f"{_TOLD}_count", ""]
    return {
        "seen": watched.mean(lambda pod: pod.ready - pod.bound) - start - told,
        "volumes made": volumes,
        **calls,
        WAITS: start - volumes - sum(calls.values()),
        TOLD: told,
    }


def end_parts(watched: Watched, began: float) -> Parts:
    return {
        GONE: watched.mean(lambda pod: pod.gone) - began,
        "told to end": watched.mean(lambda pod: pod.deleting) - began,
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
