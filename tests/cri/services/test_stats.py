"""Stats and metrics of containers and pods."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.cri_node import LoopbackNetworks, Node, client, create, image, run_sandbox, start
from winpod.compute.backend import ContainerUsage
from winpod.compute.simulated import SimulatedBackend
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import CriClient, RemoteError
from winpod.cri.services.metrics import LABELS, METRICS, NETWORK, USAGE
from winpod.network.errors import NamespaceFailed
from winpod.network.netns import InterfaceCounters

__all__ = ["client", "image"]

SECOND = 1_000_000_000
GIB = 1 << 30


class MeasuredBackend(SimulatedBackend):
    """Backend that returns scripted usage readings; the last one repeats."""

    def __init__(self) -> None:
        super().__init__()
        self.readings: list[ContainerUsage] = []
        self.is_lost = False

    async def usage(self, container: str) -> ContainerUsage:
        if self.is_lost:
            raise FileNotFoundError
        if not self.readings:
            return await super().usage(container)
        return self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]


class MeasuredNetworks(LoopbackNetworks):
    """Network that returns scripted interface counters."""

    def __init__(self) -> None:
        super().__init__()
        self.counted: list[InterfaceCounters] = []
        self.is_lost = False

    def counters(self, sandbox_id: str) -> list[InterfaceCounters]:
        if self.is_lost:
            raise NamespaceFailed("it is gone.")
        return self.counted or super().counters(sandbox_id)


@pytest.fixture
def backend() -> MeasuredBackend:
    return MeasuredBackend()


@pytest.fixture
def networks() -> MeasuredNetworks:
    return MeasuredNetworks()


@pytest.fixture
def node(tmp_path: Path, backend: MeasuredBackend, networks: MeasuredNetworks) -> Node:
    return Node(tmp_path, backend, networks=networks)


async def running(client: CriClient, image: str, name: str = "web") -> tuple[str, str]:
    sandbox = await run_sandbox(client, name)
    container = await create(client, sandbox, image)
    await start(client, container)
    return sandbox, container


async def stop(client: CriClient, container: str) -> None:
    await client.call("StopContainer", api.StopContainerRequest(container_id=container, timeout=1))


async def pod_stats(client: CriClient, sandbox: str) -> Any:
    request = api.PodSandboxStatsRequest(pod_sandbox_id=sandbox)
    return (await client.call("PodSandboxStats", request)).stats.windows


async def test_stats_use_windows_fields(
    client: CriClient, image: str, backend: MeasuredBackend, networks: MeasuredNetworks
) -> None:
    sandbox, container = await running(client, image)
    used = ContainerUsage(
        5, 3, 100, 150, 4, 7, charged_bytes=200, disk_inodes=9, mountpoint="/disk"
    )
    backend.readings = [used]
    counted = InterfaceCounters("eth0", 10, 1, 0, 2, 30, 3, 0, 4)
    other = InterfaceCounters("net1", 1, 1, 1, 1, 1, 1, 1, 1)
    networks.counted = [counted, other]
    pod = await pod_stats(client, sandbox)
    assert pod.memory.working_set_bytes.value == 100
    assert pod.memory.commit_memory_bytes.value == 150
    assert pod.process.process_count.value == 4
    default = pod.network.default_interface
    assert (default.name, default.rx_bytes.value, default.tx_bytes.value) == ("eth0", 10, 30)
    assert (default.rx_packets_dropped.value, default.tx_packets_dropped.value) == (2, 4)
    assert [interface.name for interface in pod.network.interfaces] == ["net1"]
    (one,) = pod.containers
    assert one.attributes.id == container
    assert one.writable_layer.fs_id.mountpoint == "/disk"
    assert one.writable_layer.used_bytes.value == 7
    request = api.ContainerStatsRequest(container_id=container)
    stats = (await client.call("ContainerStats", request)).stats
    assert stats.memory.usage_bytes.value == 200
    assert stats.writable_layer.inodes_used.value == 9


async def test_cpu_rate_is_computed_between_readings_a_second_apart(
    client: CriClient, image: str, backend: MeasuredBackend
) -> None:
    sandbox, _ = await running(client, image)
    backend.readings = [
        ContainerUsage(10 * SECOND, 5 * SECOND),
        ContainerUsage(12 * SECOND, 6 * SECOND),
        ContainerUsage(12 * SECOND + 5, 7 * SECOND),
        ContainerUsage(14 * SECOND, 6 * SECOND),
    ]
    rates = [(await pod_stats(client, sandbox)).cpu.usage_nano_cores.value for _ in range(4)]
    assert rates == [0, SECOND // 2, SECOND // 2, 0]


async def test_exited_container_has_only_disk_usage(client: CriClient, image: str) -> None:
    sandbox, container = await running(client, image)
    await stop(client, container)
    (stats,) = (await client.call("ListContainerStats", api.ListContainerStatsRequest())).stats
    assert stats.attributes.id == container
    assert not stats.HasField("cpu")
    assert not stats.HasField("memory")
    assert stats.HasField("writable_layer")
    pod = await pod_stats(client, sandbox)
    assert list(pod.containers) == []
    assert pod.process.process_count.value == 0


async def test_stopped_pod_has_no_stats(client: CriClient, image: str) -> None:
    sandbox, _ = await running(client, image)
    await client.call("StopPodSandbox", api.StopPodSandboxRequest(pod_sandbox_id=sandbox))
    listed = await client.call("ListPodSandboxStats", api.ListPodSandboxStatsRequest())
    assert list(listed.stats) == []
    metrics = await client.call("ListPodSandboxMetrics", api.ListPodSandboxMetricsRequest())
    assert list(metrics.pod_metrics) == []
    with pytest.raises(RemoteError, match="is not ready"):
        await pod_stats(client, sandbox)


async def test_unreadable_usage_is_omitted_from_lists(
    client: CriClient, image: str, backend: MeasuredBackend, networks: MeasuredNetworks
) -> None:
    sandbox, _ = await running(client, image)
    backend.is_lost = networks.is_lost = True
    listed = await client.call("ListContainerStats", api.ListContainerStatsRequest())
    assert list(listed.stats) == []
    pod = await pod_stats(client, sandbox)
    assert not pod.HasField("network")
    assert list(pod.containers) == []


async def test_lists_are_filtered_and_streamed(client: CriClient, image: str) -> None:
    first, one = await running(client, image, "a")
    second, two = await running(client, image, "b")

    async def containers(**fields: Any) -> set[str]:
        request = api.ListContainerStatsRequest(filter=api.ContainerStatsFilter(**fields))
        return {s.attributes.id for s in (await client.call("ListContainerStats", request)).stats}

    assert await containers() == {one, two}
    assert await containers(pod_sandbox_id=first) == {one}
    assert await containers(id=two[:10]) == {two}
    assert await containers(label_selector={"container": "nobody"}) == set()
    selected = api.PodSandboxStatsFilter(label_selector={"app": "b"})
    request = api.ListPodSandboxStatsRequest(filter=selected)
    pods = (await client.call("ListPodSandboxStats", request)).stats
    assert [pod.attributes.id for pod in pods] == [second]
    pages = client.stream("StreamContainerStats", api.StreamContainerStatsRequest())
    assert {s.attributes.id async for p in pages for s in p.container_stats} == {one, two}
    pages = client.stream("StreamPodSandboxStats", api.StreamPodSandboxStatsRequest())
    assert {s.attributes.id async for p in pages for s in p.pod_sandbox_stats} == {first, second}
    pages = client.stream("StreamPodSandboxMetrics", api.StreamPodSandboxMetricsRequest())
    assert {m.pod_sandbox_id async for p in pages for m in p.pod_sandbox_metrics} == {first, second}


async def test_metrics_match_their_descriptors(client: CriClient, image: str) -> None:
    sandbox, container = await running(client, image)
    described = await client.call("ListMetricDescriptors", api.ListMetricDescriptorsRequest())
    keys = {d.name: list(d.label_keys) for d in described.descriptors}
    assert list(keys) == [metric.name for metric in METRICS]
    assert all(d.help for d in described.descriptors)
    answer = await client.call("ListPodSandboxMetrics", api.ListPodSandboxMetricsRequest())
    (pod,) = answer.pod_metrics
    (one,) = pod.container_metrics
    assert (pod.pod_sandbox_id, one.container_id) == (sandbox, container)
    assert {m.name for m in (*pod.metrics, *one.metrics)} == set(keys)
    assert {m.name for m in pod.metrics} == {m.name for m in USAGE} | {m.name for m in NETWORK}
    for metric in (*pod.metrics, *one.metrics):
        labels = dict(zip(keys[metric.name], metric.label_values, strict=True))
        assert (labels["namespace"], labels["pod"]) == ("shop", "web")
        assert metric.timestamp > 0
    assert dict(zip(LABELS, one.metrics[0].label_values, strict=True)) == {
        "container": "app",
        "id": container,
        "image": image,
        "name": "app_web_shop_uid-web_0_0",
        "namespace": "shop",
        "pod": "web",
    }


async def test_metrics_equal_stats(
    client: CriClient, image: str, backend: MeasuredBackend, networks: MeasuredNetworks
) -> None:
    sandbox, _ = await running(client, image)
    other = await create(client, sandbox, image, "second")
    await start(client, other)
    backend.readings = [ContainerUsage(9, 5 * SECOND, GIB, 2 * GIB, 3, 4, 5, 6, 1)]
    networks.counted = [InterfaceCounters("eth0", *range(8))]
    answer = await client.call("ListPodSandboxMetrics", api.ListPodSandboxMetricsRequest())
    (pod,) = answer.pod_metrics
    values = {metric.name: metric.value.value for metric in pod.container_metrics[0].metrics}
    assert values["container_cpu_usage_seconds_total"] == 5
    assert values["container_memory_working_set_bytes"] == GIB
    assert values["container_memory_usage_bytes"] == 5
    assert values["container_fs_usage_bytes"] == 4
    assert (values["container_processes"], values["container_threads"]) == (3, 6)
    assert values["container_oom_events_total"] == 1
    assert values["container_start_time_seconds"] > 1_700_000_000
    sums = {metric.name: metric.value.value for metric in pod.metrics}
    assert sums["container_cpu_usage_seconds_total"] == 10
    assert sums["container_network_receive_bytes_total"] == 0
    assert sums["container_network_transmit_packets_dropped_total"] == 7
