"""The operator in a cluster of 2,000 nodes and 20,000 pods, with a real API server.

Nodes and pods are objects only, of the size that kubelets write: nothing runs. The results are the
time from the operator's start until all classes are created and all nodes labelled, the same with
existing labels, the time until one change has its class, the CPU usage when nothing changes, and
the memory, compared with a process that keeps the complete objects, like most controllers.

`python -m benchmarks.operator [NODES] [PODS]`
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.e2e.controlplane import ControlPlane
from tests.support.e2e.objects import HYPERVISOR, PROCESS, linux_node, windows_node

from benchmarks.nodes import at_once, cost_of
from winpod.k8s.client import ApiClient
from winpod.k8s.informer import Informer
from winpod.k8s.kubeconfig import read_kubeconfig
from winpod.k8s.models import core_v1 as v1
from winpod.k8s.models import node_v1

NODES, PODS = 2000, 20000
WORKLOADS = 200
BUILDS = ("10.0.17763", "10.0.20348")
COMING = ("10.0.18362", "10.0.18363", "10.0.19041", "10.0.19042", "10.0.26100")
IDLE_SECONDS = 15
PATIENCE = 900.0
NAMESPACE = "winpod-system"
CLASSES = "/apis/node.k8s.io/v1/runtimeclasses"


def node_of(number: int) -> dict[str, Any]:
    """Return a node with the images and conditions of a kubelet; every tenth is Linux."""
    name = f"node-{number}"
    handlers = (PROCESS, HYPERVISOR)
    build = BUILDS[number % 2]
    made = windows_node(name, build, runtime="containerd://2.1.0", handlers=handlers)
    if number % 10 == 0:
        made = linux_node(name)
    size = {"cpu": "16", "memory": "64Gi", "pods": "110", "ephemeral-storage": "200Gi"}
    made["status"] |= {
        "capacity": size,
        "allocatable": size,
        "conditions": [
            condition(kind, str(kind == "Ready"))
            for kind in ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
        ],
        "images": [
            {"names": [f"registry.example/team-{n}/app@sha256:{n:064x}"], "sizeBytes": 10**9}
            for n in range(30)
        ],
    }
    return made


def condition(kind: str, status: str) -> dict[str, Any]:
    then = "2026-11-16T00:00:00Z"
    return {
        "type": kind,
        "status": status,
        "reason": f"Kubelet{kind}",
        "message": f"what the kubelet says about {kind}",
        "lastHeartbeatTime": then,
        "lastTransitionTime": then,
    }


def pod_of(number: int, nodes: int) -> dict[str, Any]:
    workload = number % WORKLOADS
    name = f"app-{workload}-7d9c5b8f6d-{number:05}"
    container = {
        "name": "app",
        "image": f"registry.example/team-{workload}/app:1.{workload}",
        "args": ["serve", "--port=8080", f"--config=C:\\config\\app-{workload}.yaml"],
        "env": [{"name": f"SETTING_{n}", "value": f"value {n}"} for n in range(12)],
        "ports": [{"containerPort": 8080, "name": "http"}],
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}},
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8080}},
        "livenessProbe": {"httpGet": {"path": "/live", "port": 8080}},
        "volumeMounts": [{"name": "config", "mountPath": "C:\\config"}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "apps",
            "labels": {"app": f"app-{workload}", "pod-template-hash": "7d9c5b8f6d"},
            "annotations": {"checksum/config": f"{workload:064x}"},
        },
        "spec": {
            "nodeName": f"node-{number % nodes}",
            "nodeSelector": {"kubernetes.io/os": "windows"},
            "tolerations": [{"key": "os", "value": "windows", "effect": "NoSchedule"}],
            "containers": [container],
            "volumes": [{"name": "config", "configMap": {"name": f"app-{workload}"}}],
        },
    }


def status_of(number: int) -> dict[str, Any]:
    then = "2026-11-16T00:00:00Z"
    image = f"registry.example/team-{number % WORKLOADS}/app"
    return {
        "phase": "Running",
        "podIP": f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}",
        "startTime": then,
        "conditions": [
            {"type": kind, "status": "True", "lastTransitionTime": then}
            for kind in ("Initialized", "Ready", "ContainersReady", "PodScheduled")
        ],
        "containerStatuses": [
            {
                "name": "app",
                "image": f"{image}:1.{number % WORKLOADS}",
                "imageID": f"{image}@sha256:{number % WORKLOADS:064x}",
                "containerID": f"containerd://{number:064x}",
                "ready": True,
                "started": True,
                "restartCount": 0,
                "state": {"running": {"startedAt": then}},
            }
        ],
    }


async def add_node(api: ApiClient, node: dict[str, Any]) -> None:
    await api.request("POST", "/api/v1/nodes", node)
    path = f"/api/v1/nodes/{node['metadata']['name']}/status"
    await api.patch(v1.Node, path, {"status": node["status"]})


async def add_pod(api: ApiClient, number: int, nodes: int) -> None:
    pod = pod_of(number, nodes)
    path = "/api/v1/namespaces/apps/pods"
    await api.request("POST", path, pod)
    name = pod["metadata"]["name"]
    await api.patch(v1.Pod, f"{path}/{name}/status", {"status": status_of(number)})


async def until(holds: Callable[[], Awaitable[bool]], pause: float) -> float:
    """Wait until the condition holds; return the seconds."""
    began = time.perf_counter()
    while time.perf_counter() - began < PATIENCE:
        if await holds():
            return time.perf_counter() - began
        await asyncio.sleep(pause)
    sys.exit(f"condition did not hold within {PATIENCE:.0f} s")


async def has_class(api: ApiClient, name: str) -> bool:
    return await api.get(node_v1.RuntimeClass, f"{CLASSES}/{name}") is not None


async def is_done(api: ApiClient) -> bool:
    """Return whether all builds have their class, and all Windows nodes their label."""
    lacking = {"labelSelector": "kubernetes.io/os=windows,!winpod.dev/isolation"}
    for name in ("windows-2019", "windows-2022"):
        if not await has_class(api, name):
            return False
    return not (await api.list(v1.Node, "/api/v1/nodes", lacking)).items


@contextmanager
def process(folder: Path, name: str, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / f"{name}.log").open("ab") as log:
        running = subprocess.Popen([sys.executable, *command], stdout=log, stderr=log)
    try:
        yield running
    finally:
        running.terminate()
        running.wait()


def operator(folder: Path, plane: ControlPlane) -> Any:
    options = ("--namespace", NAMESPACE, "--address", "127.0.0.1", "--port", "0")
    more = ("--webhook-port", "0", "--page-port", "0", "--kubeconfig", str(plane.kubeconfig))
    return process(folder, "operator", "-m", "winpod", "operator", *options, *more)


async def reaction(api: ApiClient, build: str) -> float:
    """Return the seconds from a node of a new build to its class."""
    number = build.rpartition(".")[2]
    node = windows_node(f"new-{number}", build, runtime="containerd://2.1.0")
    names = {"26100": "2025", "18362": "1903", "18363": "1909", "19041": "2004", "19042": "20h2"}
    await add_node(api, node)
    return await until(lambda: has_class(api, f"windows-{names[number]}"), 0.005)


async def keep_whole(kubeconfig: Path, is_known: Path) -> None:
    """Keep every watched object completely, in the API's types, as the reference."""
    api = ApiClient(read_kubeconfig(kubeconfig))
    nodes = Informer(api, v1.Node, "/api/v1/nodes")
    pods = Informer(api, v1.Pod, "/api/v1/pods")
    following = asyncio.gather(nodes.run(), pods.run())
    for known in (nodes, pods):
        await known.wait_synced(PATIENCE)
    is_known.touch()  # noqa: ASYNC240 - once
    await following


async def fill(api: ApiClient, nodes: int, pods: int) -> None:
    began = time.perf_counter()
    await at_once(add_node(api, node_of(number)) for number in range(nodes))
    await at_once(add_pod(api, number, nodes) for number in range(pods))
    print(f"{nodes} nodes and {pods} pods created in {time.perf_counter() - began:.0f} s")


def print_result(title: str, seconds: float, cpu: float) -> None:
    print(f"operator   {title:24} {seconds:6.1f} s   CPU {cpu:5.1f} s", flush=True)


async def measure(plane: ControlPlane, folder: Path, nodes: int, pods: int) -> None:
    api = ApiClient(read_kubeconfig(plane.kubeconfig))
    await fill(api, nodes, pods)
    with operator(folder, plane) as running:
        first = await until(lambda: is_done(api), 0.1)
        cost = cost_of(running.pid)
        print_result("classes and labels", first, cost.cpu)
        reactions = [await reaction(api, build) for build in COMING]
        print(
            f"operator   new build to its class  {statistics.median(reactions):6.2f} s"
            f"   (slowest {max(reactions):.2f} s)",
            flush=True,
        )
        await asyncio.sleep(IDLE_SECONDS)
        before = cost_of(running.pid).cpu
        await asyncio.sleep(IDLE_SECONDS)
        idle = cost_of(running.pid)
        share = (idle.cpu - before) / IDLE_SECONDS
        print(f"operator   when nothing changes    {share:6.1%} of a processor", flush=True)
        memory = idle.memory
    await api.request("DELETE", CLASSES)
    with operator(folder, plane) as running:
        again = await until(lambda: is_done(api), 0.1)
        cost = cost_of(running.pid)
        print_result("classes, existing labels", again, cost.cpu)
    is_known = folder / "known"
    command = ("-m", "benchmarks.operator", "whole", str(plane.kubeconfig), str(is_known))
    with process(folder, "whole", *command) as running:

        async def knows() -> bool:
            return is_known.exists()

        await until(knows, 0.1)
        await asyncio.sleep(5)
        whole = cost_of(running.pid).memory
    kept = f"complete objects {whole:.0f} MB"
    print(f"operator   memory {memory:.0f} MB; {kept}: {whole / memory:.1f} x")
    await api.close()


def main() -> None:
    if sys.argv[1:2] == ["whole"]:
        asyncio.run(keep_whole(Path(sys.argv[2]), Path(sys.argv[3])))
        return
    nodes = int(sys.argv[1]) if len(sys.argv) > 1 else NODES
    pods = int(sys.argv[2]) if len(sys.argv) > 2 else PODS
    with (
        tempfile.TemporaryDirectory() as text,
        ControlPlane(Path(text), scheduler=False, controller_manager=False) as plane,
    ):
        for namespace in (NAMESPACE, "apps"):
            plane.create_namespace(namespace)
        asyncio.run(measure(plane, Path(text), nodes, pods))


if __name__ == "__main__":
    main()
