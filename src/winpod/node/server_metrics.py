"""The node's metrics under a kubelet's names: its own, what pods use, the runtime's, and probes."""

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
from winpod.node.engine import PodFound
from winpod.node.pods import uid_of
from winpod.node.requests import metadata_of
from winpod.node.server_parts import Parts
from winpod.node.summary import PodUsed, container_used, read_pods
from winpod.node.usage import NodeUsage, Used
from winpod.node.volume_usage import VolumeUsage, VolumeUsed
from winpod.windows.errors import WinpodError

Counted = Callable[[], Iterable[Metric]]
_SECOND = 1e9
_CONTAINER = ("container", "namespace", "pod")
_POD = ("namespace", "pod")
_PROBE = ("probe_type", "result", "container", "pod", "namespace", "pod_uid")
_CLAIM = ("namespace", "persistentvolumeclaim")
_OF_CLAIMS: tuple[tuple[str, str, Callable[[VolumeUsed], int]], ...] = (
    ("capacity_bytes", "What a claim's volume has.", lambda one: one.disk.capacity_bytes),
    ("available_bytes", "What is available of it.", lambda one: one.disk.available_bytes),
    ("used_bytes", "What is used of it.", lambda one: one.used.bytes),
    ("inodes", "How many files it may have.", lambda one: one.disk.inodes),
    ("inodes_free", "How many more it may have.", lambda one: one.disk.inodes_free),
    ("inodes_used", "How many it has.", lambda one: one.used.inodes),
)
_RESULTS = {"success": "successful", "failure": "failed", "unknown": "unknown"}


class Families(Collector):
    """Metrics that were collected already."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        return self._families


class MetricPages:
    def __init__(self, parts: Parts, usage: NodeUsage, volumes: VolumeUsage, more: Counted) -> None:
        self._parts = parts
        self._usage = usage
        self._volumes = volumes
        self._more = more
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
        """`path` is the first part of it only: the rest names pods."""
        self._requests[method, path, str(status)] += 1

    async def _own(self, request: web.Request) -> web.Response:
        del request
        pods = self._parts.pods.pods()
        families = own_families(self._parts.facts.name, pods, self._requests)
        timed = self._parts.pods.timings.families()
        claims = claim_families(await self._claims(pods))
        return _page([*self._process.collect(), *families, *timed, *claims, *self._more()])

    async def _claims(self, pods: Sequence[PodFound]) -> dict[tuple[str, str], VolumeUsed]:
        """By namespace and name, each once however many pods share it."""
        self._volumes.forget_all_but({uid_of(found.pod) for found in pods})
        return {
            (metadata_of(found.pod).namespace or "", used.claim): used
            for found in pods
            for used in await self._volumes.read_claims(found.pod)
        }

    async def _resource(self, request: web.Request) -> web.Response:
        del request
        try:
            pods = await read_pods(self._parts)
        except WinpodError:
            return _page([_scrape_error(True)])
        node = self._usage.read({pod.stats.attributes.id: pod.used for pod in pods})
        return _page(resource_families(node, pods))

    async def _cadvisor(self, request: web.Request) -> web.Response:
        del request
        client = self._parts.client
        described = await client.call("ListMetricDescriptors", api.ListMetricDescriptorsRequest())
        answer = await client.call("ListPodSandboxMetrics", api.ListPodSandboxMetricsRequest())
        return _page(runtime_families(described.descriptors, answer.pod_metrics))

    async def _probes(self, request: web.Request) -> web.Response:
        del request
        return _page([probe_family(self._parts.pods.pods())])


def _page(families: Iterable[Metric]) -> web.Response:
    body = generate_latest(Families(families))
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})


def own_families(
    node: str, pods: Iterable[PodFound], requests: Counter[tuple[str, str, str]]
) -> Iterator[Metric]:
    name = GaugeMetricFamily("kubelet_node_name", "The node's name.", labels=("node",))
    name.add_metric((node,), 1)
    yield name
    states: Counter[str] = Counter()
    running = 0
    for found in pods:
        containers = list(found.seen.containers())
        running += any(one.is_running for one in containers)
        states.update(str(one.state) for one in containers)
    yield GaugeMetricFamily("kubelet_running_pods", "Pods with a running container.", running)
    counted = GaugeMetricFamily(
        "kubelet_running_containers", "Containers, by their state.", labels=("container_state",)
    )
    for state, number in states.items():
        counted.add_metric((state,), number)
    yield counted
    served = CounterMetricFamily(
        "kubelet_http_requests", "Requests answered.", labels=("method", "path", "status")
    )
    for labels, number in requests.items():
        served.add_metric(labels, number)
    yield served


def claim_families(claims: Mapping[tuple[str, str], VolumeUsed]) -> Iterator[Metric]:
    for what, words, amount in _OF_CLAIMS:
        family = GaugeMetricFamily(f"kubelet_volume_stats_{what}", words, labels=_CLAIM)
        for claim, used in claims.items():
            family.add_metric(claim, amount(used))
        yield family


def resource_families(node: Used, pods: Iterable[PodUsed]) -> Iterator[Metric]:
    """What metrics-server and autoscalers read: CPU time and working sets, with their times."""
    node_cpu = CounterMetricFamily("node_cpu_usage_seconds", "CPU time used by the node.")
    node_memory = GaugeMetricFamily("node_memory_working_set_bytes", "The node's working set.")
    pod_cpu = CounterMetricFamily("pod_cpu_usage_seconds", "CPU time used by a pod.", labels=_POD)
    pod_memory = GaugeMetricFamily(
        "pod_memory_working_set_bytes", "A pod's working set.", labels=_POD
    )
    cpu = CounterMetricFamily(
        "container_cpu_usage_seconds", "CPU time used by a container.", labels=_CONTAINER
    )
    memory = GaugeMetricFamily(
        "container_memory_working_set_bytes", "A container's working set.", labels=_CONTAINER
    )
    started = GaugeMetricFamily(
        "container_start_time_seconds",
        "When a container was started, in seconds since 1970.",
        labels=_CONTAINER,
    )
    _add(node_cpu, node_memory, (), node)
    for pod in pods:
        metadata = metadata_of(pod.found.pod)
        labels = (metadata.namespace or "", metadata.name or "")
        _add(pod_cpu, pod_memory, labels, pod.used)
        seen = {one.id: one for one in pod.found.seen.containers()}
        for stats in pod.stats.windows.containers:
            container = seen.get(stats.attributes.id)
            if container is None or container.started_at is None:
                continue
            named = (container.name, *labels)
            _add(cpu, memory, named, container_used(stats))
            started.add_metric(named, container.started_at.timestamp())
    yield from (node_cpu, node_memory, pod_cpu, pod_memory, cpu, memory, started)
    yield _scrape_error(False)


def _add(
    cpu: CounterMetricFamily, memory: GaugeMetricFamily, labels: tuple[str, ...], used: Used
) -> None:
    cpu.add_metric(labels, used.cpu_nanoseconds / _SECOND, timestamp=used.time / _SECOND)
    memory.add_metric(labels, used.working_set_bytes, timestamp=used.time / _SECOND)


def _scrape_error(failed: bool) -> Metric:
    words = "1 if the runtime could not be asked, else 0."
    return GaugeMetricFamily("resource_scrape_error", words, float(failed))


def runtime_families(
    descriptors: Iterable[api.MetricDescriptor], pods: Iterable[api.PodSandboxMetrics]
) -> Iterator[Metric]:
    """What the runtime has described, of each pod and its containers; other metrics are dropped."""
    families: dict[str, Metric] = {}
    described = {one.name: one for one in descriptors}
    for pod in pods:
        of_containers = (metric for one in pod.container_metrics for metric in one.metrics)
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


def probe_family(pods: Iterable[PodFound]) -> Metric:
    family = CounterMetricFamily(
        "prober_probe", "Answers of probes, by what they said.", labels=_PROBE
    )
    for found in pods:
        metadata = metadata_of(found.pod)
        pod = (metadata.name or "", metadata.namespace or "", metadata.uid or "")
        for (container, kind, result), number in found.probed.items():
            labels = (kind.capitalize(), _RESULTS[result], container, *pod)
            family.add_metric(labels, number)
    return family
