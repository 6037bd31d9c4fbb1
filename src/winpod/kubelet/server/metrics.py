"""Metrics endpoints with the kubelet's names: node, resource usage, cAdvisor and probes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from aiohttp import web
from prometheus_client import (
    CONTENT_TYPE_PLAIN_0_0_4,
    CollectorRegistry,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from winpod.cri.proto import api_pb2 as api
from winpod.errors import WinpodError
from winpod.k8s.pods import metadata_of, uid_of
from winpod.kubelet.kubelet import PodEntry
from winpod.kubelet.server.context import ServerContext
from winpod.kubelet.server.stats_summary import PodStats, container_usage, read_pods
from winpod.kubelet.stats import NodeUsageReader, ResourceUsage
from winpod.kubelet.volumes.usage import VolumeStats, VolumeStatsReader

FamilySource = Callable[[], Iterable[Metric]]
_SECOND = 1e9
_CONTAINER = ("container", "namespace", "pod")
_POD = ("namespace", "pod")
_PROBE = ("probe_type", "result", "container", "pod", "namespace", "pod_uid")
_CLAIM = ("namespace", "persistentvolumeclaim")
_CLAIM_METRICS: tuple[tuple[str, str, Callable[[VolumeStats], int]], ...] = (
    ("capacity_bytes", "Capacity in bytes of the volume.", lambda stats: stats.disk.capacity_bytes),
    (
        "available_bytes",
        "Number of available bytes in the volume.",
        lambda stats: stats.disk.available_bytes,
    ),
    ("used_bytes", "Number of used bytes in the volume.", lambda stats: stats.used.bytes),
    ("inodes", "Maximum number of inodes in the volume.", lambda stats: stats.disk.inodes),
    ("inodes_free", "Number of free inodes in the volume.", lambda stats: stats.disk.inodes_free),
    ("inodes_used", "Number of used inodes in the volume.", lambda stats: stats.used.inodes),
)
_RESULTS = {"success": "successful", "failure": "failed", "unknown": "unknown"}


class CollectedFamilies(Collector):
    """Collector of metric families that are already collected."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        return self._families


class MetricsHandlers:
    def __init__(
        self,
        context: ServerContext,
        usage: NodeUsageReader,
        volumes: VolumeStatsReader,
        extra_metrics: FamilySource,
    ) -> None:
        self._context = context
        self._usage = usage
        self._volumes = volumes
        self._extra_metrics = extra_metrics
        self._requests: Counter[tuple[str, str, str]] = Counter()
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/metrics", self._own),
            web.get("/metrics/resource", self._resource),
            web.get("/metrics/cadvisor", self._cadvisor),
            web.get("/metrics/probes", self._probes),
        ]

    def count_request(self, method: str, path: str, status: int) -> None:
        """Count a request; `path` is only the first segment, as the rest names pods."""
        self._requests[method, path, str(status)] += 1

    async def _own(self, request: web.Request) -> web.Response:
        del request
        pods = self._context.pods.pods()
        families = own_families(self._context.node_config.name, pods, self._requests)
        timed = self._context.pods.metrics.families()
        claims = claim_families(await self._claims(pods))
        return _response(
            [*self._process.collect(), *families, *timed, *claims, *self._extra_metrics()]
        )

    async def _claims(self, pods: Sequence[PodEntry]) -> dict[tuple[str, str], VolumeStats]:
        """Return volume stats by namespace and claim, each once even if pods share it."""
        self._volumes.retain_pods({uid_of(entry.pod) for entry in pods})
        return {
            (metadata_of(entry.pod).namespace or "", used.claim): used
            for entry in pods
            for used in await self._volumes.read_claims(entry.pod)
        }

    async def _resource(self, request: web.Request) -> web.Response:
        del request
        try:
            pods = await read_pods(self._context)
        except WinpodError:
            return _response([_scrape_error(True)])
        node = self._usage.read({pod.stats.attributes.id: pod.used for pod in pods})
        return _response(resource_families(node, pods))

    async def _cadvisor(self, request: web.Request) -> web.Response:
        del request
        runtime = self._context.runtime
        described = await runtime.call("ListMetricDescriptors", api.ListMetricDescriptorsRequest())
        answer = await runtime.call("ListPodSandboxMetrics", api.ListPodSandboxMetricsRequest())
        return _response(runtime_families(described.descriptors, answer.pod_metrics))

    async def _probes(self, request: web.Request) -> web.Response:
        del request
        return _response([probe_family(self._context.pods.pods())])


def _response(families: Iterable[Metric]) -> web.Response:
    body = generate_latest(CollectedFamilies(families))
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})


def own_families(
    node: str, pods: Iterable[PodEntry], requests: Counter[tuple[str, str, str]]
) -> Iterator[Metric]:
    name = GaugeMetricFamily("kubelet_node_name", "The node's name.", labels=("node",))
    name.add_metric((node,), 1)
    yield name
    states: Counter[str] = Counter()
    running = 0
    for entry in pods:
        containers = list(entry.runtime_pod.containers())
        running += any(c.is_running for c in containers)
        states.update(str(c.state) for c in containers)
    yield GaugeMetricFamily(
        "kubelet_running_pods", "Number of pods that have a running container.", running
    )
    counted = GaugeMetricFamily(
        "kubelet_running_containers", "Number of containers, by state.", labels=("container_state",)
    )
    for state, number in states.items():
        counted.add_metric((state,), number)
    yield counted
    served = CounterMetricFamily(
        "kubelet_http_requests", "Number of HTTP requests.", labels=("method", "path", "status")
    )
    for labels, number in requests.items():
        served.add_metric(labels, number)
    yield served


def claim_families(claims: Mapping[tuple[str, str], VolumeStats]) -> Iterator[Metric]:
    for name, help_text, amount in _CLAIM_METRICS:
        family = GaugeMetricFamily(f"kubelet_volume_stats_{name}", help_text, labels=_CLAIM)
        for claim, used in claims.items():
            family.add_metric(claim, amount(used))
        yield family


def resource_families(node: ResourceUsage, pods: Iterable[PodStats]) -> Iterator[Metric]:
    """Yield the metrics for metrics-server and autoscalers: CPU time and working sets."""
    node_cpu = CounterMetricFamily(
        "node_cpu_usage_seconds", "Cumulative CPU time of the node in seconds."
    )
    node_memory = GaugeMetricFamily(
        "node_memory_working_set_bytes", "Working set of the node in bytes."
    )
    pod_cpu = CounterMetricFamily(
        "pod_cpu_usage_seconds", "Cumulative CPU time of the pod in seconds.", labels=_POD
    )
    pod_memory = GaugeMetricFamily(
        "pod_memory_working_set_bytes", "Working set of the pod in bytes.", labels=_POD
    )
    cpu = CounterMetricFamily(
        "container_cpu_usage_seconds",
        "Cumulative CPU time of the container in seconds.",
        labels=_CONTAINER,
    )
    memory = GaugeMetricFamily(
        "container_memory_working_set_bytes",
        "Working set of the container in bytes.",
        labels=_CONTAINER,
    )
    started = GaugeMetricFamily(
        "container_start_time_seconds",
        "Start time of the container in Unix seconds.",
        labels=_CONTAINER,
    )
    _add(node_cpu, node_memory, (), node)
    for pod in pods:
        metadata = metadata_of(pod.entry.pod)
        labels = (metadata.namespace or "", metadata.name or "")
        _add(pod_cpu, pod_memory, labels, pod.used)
        containers = {c.id: c for c in pod.entry.runtime_pod.containers()}
        for stats in pod.stats.windows.containers:
            container = containers.get(stats.attributes.id)
            if container is None or container.started_at is None:
                continue
            container_labels = (container.name, *labels)
            _add(cpu, memory, container_labels, container_usage(stats))
            started.add_metric(container_labels, container.started_at.timestamp())
    yield from (node_cpu, node_memory, pod_cpu, pod_memory, cpu, memory, started)
    yield _scrape_error(False)


def _add(
    cpu: CounterMetricFamily,
    memory: GaugeMetricFamily,
    labels: tuple[str, ...],
    used: ResourceUsage,
) -> None:
    cpu.add_metric(labels, used.cpu_nanoseconds / _SECOND, timestamp=used.time / _SECOND)
    memory.add_metric(labels, used.working_set_bytes, timestamp=used.time / _SECOND)


def _scrape_error(failed: bool) -> Metric:
    help_text = "1 if there was an error while getting container metrics, 0 otherwise."
    return GaugeMetricFamily("resource_scrape_error", help_text, float(failed))


def runtime_families(
    descriptors: Iterable[api.MetricDescriptor], pods: Iterable[api.PodSandboxMetrics]
) -> Iterator[Metric]:
    """Yield the described metrics of the runtime's pods and containers."""
    families: dict[str, Metric] = {}
    described = {descriptor.name: descriptor for descriptor in descriptors}
    for pod in pods:
        of_containers = (metric for c in pod.container_metrics for metric in c.metrics)
        for metric in (*pod.metrics, *of_containers):
            descriptor = described.get(metric.name)
            if descriptor is None:
                continue
            kind = "counter" if metric.metric_type == api.COUNTER else "gauge"
            family = families.setdefault(
                metric.name,
                Metric(metric.name.removesuffix("_total"), descriptor.help, kind),
            )
            labels = dict(zip(descriptor.label_keys, metric.label_values, strict=True))
            family.add_sample(metric.name, labels, metric.value.value, metric.timestamp / _SECOND)
    yield from families.values()


def probe_family(pods: Iterable[PodEntry]) -> Metric:
    family = CounterMetricFamily(
        "prober_probe", "Number of probe results, by result.", labels=_PROBE
    )
    for entry in pods:
        metadata = metadata_of(entry.pod)
        pod = (metadata.name or "", metadata.namespace or "", metadata.uid or "")
        for (container, kind, result), number in entry.probe_counts.items():
            labels = (kind.capitalize(), _RESULTS[result], container, *pod)
            family.add_metric(labels, number)
    return family
