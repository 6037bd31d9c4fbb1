"""Resource usage of a real Windows container."""

import asyncio
import os
import subprocess
from pathlib import Path
from typing import Any

from tests.support.cri_node import run_sandbox, start
from tests.support.e2e.runtime_node import Node, create_with, node, pulled
from tests.support.registries import home, registry

from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import CriClient

__all__ = ["home", "node", "registry"]

MIB = 1 << 20
BUSY = "for /l %i in (1,1,100000000) do @rem"


async def pod_stats(client: CriClient, sandbox: str) -> Any:
    request = api.PodSandboxStatsRequest(pod_sandbox_id=sandbox)
    return (await client.call("PodSandboxStats", request)).stats.windows


async def run_in(client: CriClient, container: str, line: str) -> None:
    request = api.ExecSyncRequest(container_id=container, cmd=["cmd", "/c", line], timeout=300)
    answer = await client.call("ExecSync", request)
    assert answer.exit_code == 0, answer.stdout + answer.stderr


def add_interface(netns: Path) -> None:
    """Add a veth pair whose other end does not answer."""
    for line in (
        "link add eth0 type veth peer name another",
        "addr add 10.99.0.2/24 dev eth0",
        "link set eth0 up",
        "link set another up",
    ):
        subprocess.run(["nsenter", f"--net={netns}", "ip", *line.split()], check=True)


async def test_stats_include_cpu_memory_processes_disk_and_network(
    node: Node, home: Path, registry: str, tmp_path: Path
) -> None:
    (tmp_path / "large").write_bytes(os.urandom(20 * MIB))
    mount = api.Mount(host_path=str(tmp_path / "large"), container_path="C:\\large")
    async with node as client:
        image = await pulled(client, home, registry)
        sandbox = await run_sandbox(client)
        options = {"mounts": [mount]}
        container = await create_with(client, sandbox, image, ("cmd", "/c", BUSY), "app", options)
        await start(client, container)
        before = await pod_stats(client, sandbox)
        assert not before.HasField("network")
        add_interface(node.networks.netns(sandbox))
        await run_in(client, container, "copy C:\\large C:\\copy")
        await run_in(client, container, "ping -n 1 -w 100 10.99.0.3 & exit 0")
        await asyncio.sleep(1)
        pod = await pod_stats(client, sandbox)
        metrics = await client.call("ListPodSandboxMetrics", api.ListPodSandboxMetricsRequest())
        stop = api.StopContainerRequest(container_id=container, timeout=0)
        await client.call("StopContainer", stop)
        (exited,) = (await client.call("ListContainerStats", api.ListContainerStatsRequest())).stats
    assert pod.cpu.usage_core_nano_seconds.value > before.cpu.usage_core_nano_seconds.value
    assert 10_000_000 < pod.cpu.usage_nano_cores.value < 4_000_000_000
    assert MIB < pod.memory.working_set_bytes.value <= pod.memory.commit_memory_bytes.value
    assert pod.memory.commit_memory_bytes.value < 500 * MIB
    assert 2 < pod.process.process_count.value < 30
    then, now = (p.containers[0].writable_layer.used_bytes.value for p in (before, pod))
    assert 19 * MIB < now - then < 25 * MIB
    assert pod.network.default_interface.name == "eth0"
    assert [interface.name for interface in pod.network.interfaces] == ["another"]
    assert pod.network.default_interface.tx_bytes.value > 0
    values = {m.name: m.value.value for m in metrics.pod_metrics[0].container_metrics[0].metrics}
    assert values["container_threads"] >= values["container_processes"] > 2
    assert values["container_memory_usage_bytes"] >= values["container_memory_working_set_bytes"]
    assert not exited.HasField("cpu")
    assert exited.writable_layer.used_bytes.value > 19 * MIB
    assert exited.writable_layer.fs_id.mountpoint.endswith("/disk")
