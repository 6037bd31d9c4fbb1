"""A thousand simulated Windows nodes with ten pods each, compared with KWOK, with an API server.

Pods are bound when they are created, so that neither waits for a scheduler. Each is measured with a
new API server, one after the other. winpod's nodes admit pods, start them through a runtime, record
events and register themselves; KWOK's follow a script, and their Node objects are created for them.

`python -m benchmarks.nodes [NODES] [PODS]`
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.controlplane import ControlPlane
from tests.e2e.controlplane.processes import ServerProcess

from benchmarks.kwok import kwok_command
from benchmarks.scale import memory_of
from winpod.k8s.client import ApiClient
from winpod.k8s.kubeconfig import read_kubeconfig
from winpod.k8s.models import core_v1 as v1
from winpod.k8s.models.meta_v1 import ObjectMeta

NODES, PODS = 1000, 10
AT_ONCE = 32
IDLE_SECONDS = 30
PATIENCE = 1800


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU seconds, and megabytes of memory."""

    cpu: float
    memory: float


def cost_of(pid: int) -> Cost:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    return Cost(ticks / os.sysconf("SC_CLK_TCK"), memory_of(pid))


async def at_once(works: Iterable[Awaitable[object]]) -> None:
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(work: Awaitable[object]) -> None:
        async with slots:
            await work

    await asyncio.gather(*(one(work) for work in works))


async def until(what: str, api: ApiClient, count: int) -> float:
    """Wait until this many nodes are ready, or pods run; return the seconds."""
    began = time.perf_counter()
    while time.perf_counter() - began < PATIENCE:
        path = f"/api/v1/{what}"
        if what == "nodes":
            nodes = (await api.list(v1.Node, path, {"resourceVersion": "0"})).items
            if sum(map(_is_ready, nodes)) >= count:
                return time.perf_counter() - began
        else:
            running = {"fieldSelector": "status.phase=Running", "resourceVersion": "0"}
            if len((await api.list(v1.Pod, path, running)).items) >= count:
                return time.perf_counter() - began
        await asyncio.sleep(1)
    sys.exit(f"not all {what} are ready after {PATIENCE} s")


def _is_ready(node: v1.Node) -> bool:
    conditions = (node.status and node.status.conditions) or []
    return any(one.type == "Ready" and one.status == "True" for one in conditions)


def pod_on(node: str, number: int) -> v1.Pod:
    return v1.Pod(
        metadata=ObjectMeta(name=f"{node}-{number}", namespace="scale"),
        spec=v1.PodSpec(
            nodeName=node,
            os=v1.PodOS(name="windows"),
            tolerations=[v1.Toleration(operator="Exists")],
            automountServiceAccountToken=False,
            containers=[v1.Container(name="app", image="registry.example/app:1")],
        ),
    )


async def measure(tool: str, pid: int, api: ApiClient, nodes: int, pods: int) -> None:
    ready = await until("nodes", api, nodes)
    registered = cost_of(pid)
    print(f"{tool:8} {nodes} nodes ready{ready:>10.0f} s  CPU {registered.cpu:6.1f} s", flush=True)
    began = time.perf_counter()
    path = "/api/v1/namespaces/scale/pods"
    names = [f"win-{number}" for number in range(nodes)]
    await at_once(api.create(path, pod_on(name, n)) for n in range(pods) for name in names)
    created = time.perf_counter() - began
    await until("pods", api, nodes * pods)
    running, cost = time.perf_counter() - began, cost_of(pid)
    print(
        f"{tool:8} {nodes * pods} pods created {created:.0f} s, running {running:.0f} s"
        f"  CPU {cost.cpu - registered.cpu:6.1f} s  memory {cost.memory:6.0f} MB",
        flush=True,
    )
    await asyncio.sleep(IDLE_SECONDS)
    idle = (cost_of(pid).cpu - cost.cpu) / IDLE_SECONDS
    print(f"{tool:8} afterwards{idle * 100:>10.1f} % of a processor", flush=True)


async def winpod(cluster: ControlPlane, folder: Path, nodes: int, pods: int) -> None:
    file = folder / "nodes.yaml"
    wanted = {"name": "win", "count": nodes, "build": "2022", "simulated": True}
    file.write_text(json.dumps({"nodes": [wanted]}))
    command = [sys.executable, "-m", "winpod", "node", "--kubeconfig", str(cluster.kubeconfig)]
    command += ["--nodes", str(file), "--root", str(folder / "root")]
    process = ServerProcess("winpod", command, folder / "winpod.log")
    api = ApiClient(read_kubeconfig(cluster.kubeconfig))
    try:
        await measure("winpod", process.pid, api, nodes, pods)
    finally:
        await api.close()
        process.stop()


async def kwok(cluster: ControlPlane, folder: Path, nodes: int, pods: int) -> None:
    command = [*kwok_command(), "--kubeconfig", str(cluster.kubeconfig), "--manage-all-nodes=true"]
    command += ["--cidr=10.0.0.1/8", "--node-lease-duration-seconds=40"]
    process = ServerProcess("kwok", command, folder / "kwok.log")
    api = ApiClient(read_kubeconfig(cluster.kubeconfig))
    labels = {"kubernetes.io/os": "windows"}
    made = (
        v1.Node(metadata=ObjectMeta(name=f"win-{number}", labels=labels)) for number in range(nodes)
    )
    try:
        await at_once(api.create("/api/v1/nodes", node) for node in made)
        await measure("KWOK", process.pid, api, nodes, pods)
    finally:
        await api.close()
        process.stop()


def main(nodes: int = NODES, pods: int = PODS) -> None:
    for run in (winpod, kwok):
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            quiet = ControlPlane(folder / "cluster", scheduler=False, controller_manager=False)
            with quiet as cluster:
                cluster.create_namespace("scale")
                asyncio.run(run(cluster, folder, nodes, pods))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
