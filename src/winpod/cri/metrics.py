"""Metrics of pods and containers, under the names that the kubelet's own endpoint has for them.

One table says what there is: descriptors and values both come from it, so that no metric is told
that was not described. Values are whole numbers, as the CRI carries them; a second of CPU is the
smallest that is told.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from winpod.compute.backend import Usage
from winpod.cri.proto import api_pb2 as api
from winpod.cri.state import Container, Phase, Sandbox, State
from winpod.cri.usage import Meter, PodReading, Reading
from winpod.network.counters import Counters

_PAGE = 100
_SECOND = 1_000_000_000
LABELS = ("container", "id", "image", "name", "namespace", "pod")


_Measured = TypeVar("_Measured")


@dataclass(frozen=True, slots=True)
class Metric(Generic[_Measured]):
    name: str
    help: str
    kind: api.MetricType
    value: Callable[[_Measured], int]
    labels: tuple[str, ...] = LABELS


USAGE: tuple[Metric[Usage], ...] = (
    Metric(
        "container_cpu_usage_seconds_total",
        "CPU time used, in seconds.",
        api.COUNTER,
        lambda usage: usage.cpu_nanoseconds // _SECOND,
    ),
    Metric(
        "container_memory_working_set_bytes",
        "Private working set: memory that no file backs.",
        api.GAUGE,
        lambda usage: usage.working_set_bytes,
    ),
    Metric(
        "container_memory_usage_bytes",
        "Memory charged to the container, caches of files included.",
        api.GAUGE,
        lambda usage: usage.charged_bytes,
    ),
    Metric(
        "container_fs_usage_bytes",
        "What the container has written to its C: drive.",
        api.GAUGE,
        lambda usage: usage.disk_bytes,
    ),
    Metric(
        "container_processes",
        "Processes, those of Windows itself included.",
        api.GAUGE,
        lambda usage: usage.processes,
    ),
    Metric(
        "container_threads",
        "Threads of all processes.",
        api.GAUGE,
        lambda usage: usage.threads,
    ),
    Metric(
        "container_oom_events_total",
        "Processes ended because the memory limit was reached.",
        api.COUNTER,
        lambda usage: usage.out_of_memory_kills,
    ),
)
"""Of containers, and of pods as their sum, which has no container's name."""

LIFE: tuple[Metric[Container], ...] = (
    Metric(
        "container_start_time_seconds",
        "When the container was started, in seconds since 1970.",
        api.GAUGE,
        lambda container: container.started_at // _SECOND,
    ),
)
"""Of containers only."""


def _counted(name: str, help_: str, value: Callable[[Counters], int]) -> Metric[Counters]:
    name = f"container_network_{name}_total"
    return Metric(name, help_, api.COUNTER, value, (*LABELS, "interface"))


NETWORK = (
    _counted("receive_bytes", "Bytes received.", lambda counters: counters.received_bytes),
    _counted("receive_packets", "Packets received.", lambda counters: counters.received_packets),
    _counted("receive_errors", "Errors while receiving.", lambda counters: counters.receive_errors),
    _counted(
        "receive_packets_dropped",
        "Packets dropped while receiving.",
        lambda counters: counters.received_dropped,
    ),
    _counted("transmit_bytes", "Bytes sent.", lambda counters: counters.sent_bytes),
    _counted("transmit_packets", "Packets sent.", lambda counters: counters.sent_packets),
    _counted("transmit_errors", "Errors while sending.", lambda counters: counters.send_errors),
    _counted(
        "transmit_packets_dropped",
        "Packets dropped while sending.",
        lambda counters: counters.sent_dropped,
    ),
)
"""Of each interface of a pod."""


DESCRIBED: tuple[Metric[Any], ...] = (*USAGE, *LIFE, *NETWORK)


class Metrics:
    def __init__(self, state: State, meter: Meter) -> None:
        self._state = state
        self._meter = meter

    async def list_metric_descriptors(
        self, request: api.ListMetricDescriptorsRequest
    ) -> api.ListMetricDescriptorsResponse:
        del request
        return api.ListMetricDescriptorsResponse(
            descriptors=[
                api.MetricDescriptor(name=metric.name, help=metric.help, label_keys=metric.labels)
                for metric in DESCRIBED
            ]
        )

    async def list_pod_sandbox_metrics(
        self, request: api.ListPodSandboxMetricsRequest
    ) -> api.ListPodSandboxMetricsResponse:
        del request
        return api.ListPodSandboxMetricsResponse(pod_metrics=await self._pods())

    async def stream_pod_sandbox_metrics(
        self, request: api.StreamPodSandboxMetricsRequest
    ) -> AsyncIterator[api.StreamPodSandboxMetricsResponse]:
        del request
        found = await self._pods()
        for start in range(0, len(found), _PAGE):
            page = found[start : start + _PAGE]
            yield api.StreamPodSandboxMetricsResponse(pod_sandbox_metrics=page)

    async def _pods(self) -> list[api.PodSandboxMetrics]:
        ready = [s for s in self._state.sandboxes.values() if s.phase is Phase.RUNNING]
        return [_pod(reading) for reading in await self._meter.pods(ready)]


def _pod(reading: PodReading) -> api.PodSandboxMetrics:
    return api.PodSandboxMetrics(
        pod_sandbox_id=reading.sandbox.id,
        metrics=_of_pod(reading),
        container_metrics=[
            api.ContainerMetrics(
                container_id=one.container.id, metrics=_of_container(one, reading.sandbox)
            )
            for one in reading.containers
            if one.running
        ],
    )


def _of_pod(reading: PodReading) -> Iterator[api.Metric]:
    labels = _labels(reading.sandbox)
    total = reading.total
    for metric in USAGE:
        yield _metric(metric, labels, metric.value(total), total.timestamp)
    for counters in reading.network:
        for counted in NETWORK:
            value = counted.value(counters)
            yield _metric(counted, (*labels, counters.interface), value, time.time_ns())


def _of_container(reading: Reading, sandbox: Sandbox) -> Iterator[api.Metric]:
    usage, container = reading.usage, reading.container
    labels = _labels(sandbox, container)
    for metric in USAGE:
        yield _metric(metric, labels, metric.value(usage), usage.timestamp)
    for fact in LIFE:
        yield _metric(fact, labels, fact.value(container), usage.timestamp)


def _labels(sandbox: Sandbox, container: Container | None = None) -> tuple[str, ...]:
    pod = sandbox.known.metadata
    if container is None:
        return ("", sandbox.id, "", sandbox.name, pod.namespace, pod.name)
    known = container.known
    return (
        known.metadata.name,
        container.id,
        known.image.image,
        container.name,
        pod.namespace,
        pod.name,
    )


def _metric(metric: Metric[Any], labels: tuple[str, ...], value: int, timestamp: int) -> api.Metric:
    return api.Metric(
        name=metric.name,
        timestamp=timestamp or time.time_ns(),
        metric_type=metric.kind,
        label_values=labels,
        value=api.UInt64Value(value=value),
    )
