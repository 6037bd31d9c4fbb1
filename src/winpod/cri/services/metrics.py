"""Metrics calls of the CRI, with the metric names of the kubelet's cAdvisor endpoint.

Descriptors and values come from one table, so that every metric has a descriptor. Values are
integers, as the CRI requires; CPU time has a resolution of one second.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from winpod.compute.backend import ContainerUsage
from winpod.cri.proto import api_pb2 as api
from winpod.cri.services.stats import ContainerReading, PodReading, UsageMeter
from winpod.cri.state import ContainerRecord, Phase, RuntimeState, SandboxRecord
from winpod.network.netns import InterfaceCounters

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


USAGE: tuple[Metric[ContainerUsage], ...] = (
    Metric(
        "container_cpu_usage_seconds_total",
        "CPU time used, in seconds.",
        api.COUNTER,
        lambda usage: usage.cpu_nanoseconds // _SECOND,
    ),
    Metric(
        "container_memory_working_set_bytes",
        "Private working set: memory not backed by files.",
        api.GAUGE,
        lambda usage: usage.working_set_bytes,
    ),
    Metric(
        "container_memory_usage_bytes",
        "Memory charged to the container, including page cache.",
        api.GAUGE,
        lambda usage: usage.charged_bytes,
    ),
    Metric(
        "container_fs_usage_bytes",
        "Bytes written to the container's C: drive.",
        api.GAUGE,
        lambda usage: usage.disk_bytes,
    ),
    Metric(
        "container_processes",
        "Number of processes, including those of Windows itself.",
        api.GAUGE,
        lambda usage: usage.processes,
    ),
    Metric(
        "container_threads",
        "Number of threads of all processes.",
        api.GAUGE,
        lambda usage: usage.threads,
    ),
    Metric(
        "container_oom_events_total",
        "Processes killed because the memory limit was reached.",
        api.COUNTER,
        lambda usage: usage.out_of_memory_kills,
    ),
)
"""Metrics of containers, and of pods as the sum of their containers."""

LIFE: tuple[Metric[ContainerRecord], ...] = (
    Metric(
        "container_start_time_seconds",
        "Start time of the container, in seconds since the epoch.",
        api.GAUGE,
        lambda container: container.started_at // _SECOND,
    ),
)
"""Metrics of containers only."""


def _network_counter(
    name: str, help_: str, value: Callable[[InterfaceCounters], int]
) -> Metric[InterfaceCounters]:
    name = f"container_network_{name}_total"
    return Metric(name, help_, api.COUNTER, value, (*LABELS, "interface"))


NETWORK = (
    _network_counter("receive_bytes", "Bytes received.", lambda counters: counters.received_bytes),
    _network_counter(
        "receive_packets", "Packets received.", lambda counters: counters.received_packets
    ),
    _network_counter(
        "receive_errors", "Errors while receiving.", lambda counters: counters.receive_errors
    ),
    _network_counter(
        "receive_packets_dropped",
        "Packets dropped while receiving.",
        lambda counters: counters.received_dropped,
    ),
    _network_counter("transmit_bytes", "Bytes sent.", lambda counters: counters.sent_bytes),
    _network_counter("transmit_packets", "Packets sent.", lambda counters: counters.sent_packets),
    _network_counter(
        "transmit_errors", "Errors while sending.", lambda counters: counters.send_errors
    ),
    _network_counter(
        "transmit_packets_dropped",
        "Packets dropped while sending.",
        lambda counters: counters.sent_dropped,
    ),
)
"""Metrics of each pod interface."""


METRICS: tuple[Metric[Any], ...] = (*USAGE, *LIFE, *NETWORK)


class MetricsService:
    def __init__(self, state: RuntimeState, meter: UsageMeter) -> None:
        self._state = state
        self._meter = meter

    async def list_metric_descriptors(
        self, request: api.ListMetricDescriptorsRequest
    ) -> api.ListMetricDescriptorsResponse:
        del request
        return api.ListMetricDescriptorsResponse(
            descriptors=[
                api.MetricDescriptor(name=metric.name, help=metric.help, label_keys=metric.labels)
                for metric in METRICS
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
        metrics = await self._pods()
        for start in range(0, len(metrics), _PAGE):
            page = metrics[start : start + _PAGE]
            yield api.StreamPodSandboxMetricsResponse(pod_sandbox_metrics=page)

    async def _pods(self) -> list[api.PodSandboxMetrics]:
        ready = [s for s in self._state.sandboxes.values() if s.phase is Phase.RUNNING]
        return [_pod(reading) for reading in await self._meter.pods(ready)]


def _pod(reading: PodReading) -> api.PodSandboxMetrics:
    return api.PodSandboxMetrics(
        pod_sandbox_id=reading.sandbox.id,
        metrics=_pod_metrics(reading),
        container_metrics=[
            api.ContainerMetrics(
                container_id=container.container.id,
                metrics=_container_metrics(container, reading.sandbox),
            )
            for container in reading.containers
            if container.running
        ],
    )


def _pod_metrics(reading: PodReading) -> Iterator[api.Metric]:
    labels = _labels(reading.sandbox)
    total = reading.total
    for metric in USAGE:
        yield _metric(metric, labels, metric.value(total), total.timestamp)
    for counters in reading.network:
        for counter in NETWORK:
            value = counter.value(counters)
            yield _metric(counter, (*labels, counters.interface), value, time.time_ns())


def _container_metrics(reading: ContainerReading, sandbox: SandboxRecord) -> Iterator[api.Metric]:
    usage, container = reading.usage, reading.container
    labels = _labels(sandbox, container)
    for metric in USAGE:
        yield _metric(metric, labels, metric.value(usage), usage.timestamp)
    for lifecycle in LIFE:
        yield _metric(lifecycle, labels, lifecycle.value(container), usage.timestamp)


def _labels(sandbox: SandboxRecord, container: ContainerRecord | None = None) -> tuple[str, ...]:
    pod = sandbox.parsed_config.metadata
    if container is None:
        return ("", sandbox.id, "", sandbox.name, pod.namespace, pod.name)
    config = container.parsed_config
    return (
        config.metadata.name,
        container.id,
        config.image.image,
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
