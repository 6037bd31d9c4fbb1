"""From `kubectl apply` to a ready Windows pod, and from `kubectl delete` to its deletion.

Uses a real control plane, and three nodes of `winpod node` after each other: one with Wine and the
default warm pool of two silos, one with a silo for every pod, and a simulated one, which shows the
share of Kubernetes. A pod runs a small Windows program, with limits and the token of its service
account. Time on the node that no part explains is work that waits in the node's process.

`unshare --net python -m benchmarks.pods [PODS]`
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.controlplane import ControlPlane
from tests.support.e2e.node_process import NodeProcess, is_ready
from tests.support.e2e.waiting import eventually
from tests.support.e2e.windows_programs import c_program, cache
from tests.support.registries import docker_registry

from benchmarks.cri_servers import PROGRAMS
from benchmarks.nodes import cost_of
from benchmarks.pod_times import (
    GONE,
    PART_OF,
    READY,
    Parts,
    between,
    end_on_node,
    end_parts,
    start_on_node,
    start_parts,
    sums_of,
    total,
    watching,
)
from winpod.cli.main import app
from winpod.config import RuntimeSettings
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import CriClient
from winpod.images.base.builder import Base, build_base
from winpod.k8s.client import ApiClient
from winpod.k8s.kubeconfig import read_kubeconfig

PODS, ROUNDS_OF_ONE, ROUNDS_OF_ALL = 30, 7, 4
NAMESPACE, ADDRESS = "bench", "10.99.0.1"
SETTLE_SECONDS, WARM_SECONDS = 3, 300
LAST_READY, LAST_GONE = "all Ready", "all gone"
CPU = ("CPU to start: node process", "CPU to start: control plane", "CPU to start: pods")
CPU_ENDING = ("CPU to end: node process", "CPU to end: control plane")
MEMORY = ("memory: node process", "memory: per pod")
TOOLS = {
    "docker-registry": "docker-registry",
    "runc": "runc",
    "conmon": "conmon",
    "iptables": "iptables",
    "ip": "iproute2",
}


@dataclass(frozen=True, slots=True)
class Node:
    """Node to measure; `socket` is that of its runtime, if it has one."""

    title: str
    name: str
    process: NodeProcess
    silos: int = 0
    socket: Path | None = None

    def rounds(self, count: int) -> list[tuple[int, int]]:
        """Return pairs of pods and rounds; a single pod is not measured with the large pool."""
        alone = [] if self.silos == count else [(1, ROUNDS_OF_ONE)]
        return [*alone, (count, ROUNDS_OF_ALL)]

    async def until_warm(self) -> None:
        if self.socket:
            client = CriClient(f"unix:{self.socket}")
            async with asyncio.timeout(WARM_SECONDS):
                while await _warm_silos(client) < self.silos:  # noqa: ASYNC110
                    await asyncio.sleep(0.2)
            await client.close()
        await asyncio.sleep(SETTLE_SECONDS)


async def _warm_silos(client: CriClient) -> int:
    answer = await client.call("Status", api.StatusRequest(verbose=True))
    return int(json.loads(answer.info["compute"])["warm_shells"]["waiting"])


@dataclass(frozen=True, slots=True)
class Bench:
    cluster: ControlPlane
    api: ApiClient
    image: str

    async def live(self, node: Node, count: int) -> Parts:
        """Run the complete lifecycle of this many pods at once."""
        async with watching(self.api, NAMESPACE) as watched:
            before, used = sums_of(await self._page(node, "metrics")), self._used(node)
            began = time.time()
            await self._kubectl("apply", "-f", "-", given=pods(count, node.name, self.image))
            await watched.until_all(count, lambda pod: pod.ready)
            parts = start_parts(watched, began)
            parts[LAST_READY] = watched.last(lambda pod: pod.ready) - began
            after = sums_of(await self._page(node, "metrics"))
            if node.socket:
                parts |= start_on_node(watched, between(before, after))
            parts |= dict(zip(CPU, self._since(used, node), strict=False))
            parts |= await self._use(node, count)
            await asyncio.sleep(SETTLE_SECONDS)
            used, began = self._used(node), time.time()
            await self._kubectl("delete", "pods", "--all")
            await watched.until_all(count, lambda pod: pod.gone)
            parts |= end_parts(watched, began)
            parts[LAST_GONE] = watched.last(lambda pod: pod.gone) - began
            if node.socket:
                ended = sums_of(await self._page(node, "metrics"))
                parts |= end_on_node(watched, between(after, ended))
            parts |= dict(zip(CPU_ENDING, self._since(used, node), strict=True))
        return parts

    async def _use(self, node: Node, count: int) -> Parts:
        used = {MEMORY[0]: cost_of(node.process.pid).memory}
        if page := await self._page(node, "metrics/resource"):
            used[CPU[2]] = total(page, "pod_cpu_usage_seconds_total")
            used[MEMORY[1]] = total(page, "pod_memory_working_set_bytes") / count / 1e6
        return used

    def _used(self, node: Node) -> tuple[float, float]:
        """Return the CPU seconds of the node process and of the control plane."""
        plane = sum(cost_of(pid).cpu for pid in self.cluster.pids)
        return cost_of(node.process.pid).cpu, plane

    def _since(self, used: tuple[float, float], node: Node) -> list[float]:
        return [now - then for now, then in zip(self._used(node), used, strict=True)]

    async def _page(self, node: Node, path: str) -> str:
        """Return a page of the node's API through the API server; a simulated node has none."""
        if not node.socket:
            return ""
        return (await self.api.request("GET", f"/api/v1/nodes/{node.name}/proxy/{path}")).decode()

    async def _kubectl(self, *arguments: str, given: str = "") -> None:
        process = await asyncio.create_subprocess_exec(
            *self.cluster.kubectl_command("-n", NAMESPACE, *arguments),
            env={**os.environ, "HOME": str(self.cluster.directory)},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
        )
        await process.communicate(given.encode())
        if process.returncode:
            sys.exit(f"kubectl {' '.join(arguments)} failed")


def pods(count: int, node: str, image: str) -> str:
    container = {
        "name": "app",
        "image": image,
        "command": ["C:\\ready.exe"],
        "resources": {
            "limits": {"cpu": "1", "memory": "256Mi"},
            "requests": {"cpu": "10m", "memory": "64Mi"},
        },
    }
    spec = {
        "os": {"name": "windows"},
        "nodeSelector": {"kubernetes.io/hostname": node},
        "tolerations": [{"operator": "Exists"}],
        "containers": [container],
    }
    items: list[dict[str, Any]] = [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"web-{n}"}, "spec": spec}
        for n in range(count)
    ]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


@contextmanager
def wine_node(cluster: ControlPlane, base: Base, silos: int, folder: Path) -> Iterator[Node]:
    name = f"win-{silos}"
    root, config = folder / "root", folder / "config.toml"
    root.mkdir(parents=True)
    (root / "bases").symlink_to(base.path.parent)
    config.write_text(f"[runtime]\nwarm_shells = {silos}\n")
    kubeconfig = cluster.kubeconfig_for(f"system:node:{name}", "system:nodes")
    serving = cluster.serving_certificate(f"{name}-serving", f"IP:{ADDRESS}")
    process = NodeProcess(
        folder,
        *("--kubeconfig", str(kubeconfig), "--name", name, "--build", "2022"),
        *("--node-ip", ADDRESS, "--port", "0"),
        *("--tls-cert-file", str(serving.certificate), "--tls-private-key-file", str(serving.key)),
        before=("env", f"WINPOD_CONFIG={config}"),
    )
    with process:
        eventually(lambda: is_ready(cluster, name), within=120)
        socket_ = root / f"nodes/{name}/cri.sock"
        yield Node(f"warm pool of {silos}", name, process, silos, socket_)


@contextmanager
def simulated_node(cluster: ControlPlane, folder: Path) -> Iterator[Node]:
    options = ("--kubeconfig", str(cluster.kubeconfig), "--simulated", "--name", "simulated")
    with NodeProcess(folder, *options) as process:
        eventually(lambda: is_ready(cluster, "simulated"), within=120)
        yield Node("simulated", "simulated", process)


Results = dict[str, Parts]


async def measure(bench: Bench, node: Node, count: int, results: Results) -> None:
    """Measure a node; the first pod pulls the image.

    The result is the quickest round with its parts: other load only makes rounds slower.
    """
    await node.until_warm()
    first = await bench.live(node, 1)
    if node.socket:
        results.setdefault("first pod, with pull", first)
    for number, rounds in node.rounds(count):
        title = _title(number, node.title)
        taken = []
        for _ in range(rounds):
            await node.until_warm()
            taken.append(await bench.live(node, number))
            last = taken[-1]
            print(
                f"{title:<26} ready {last[LAST_READY]:6.2f} s  gone {last[LAST_GONE]:6.2f} s",
                flush=True,
            )
        results[title] = min(taken, key=lambda one: one[READY] + one[GONE])


def report(results: Results, count: int) -> None:
    """Print seconds, with the share of each part."""
    print(f"\n{'':<44}" + "".join(f"{title:>28}" for title in results))
    for last, whole in ((LAST_READY, READY), (LAST_GONE, GONE)):
        parts = [part for part in PART_OF if _whole(part) == whole]
        for row in (last, whole, *parts):
            cells = (_cell(found, row) for found in results.values())
            print(f"{'  ' * _depth(row) + row:<44}" + "".join(f"{cell:>28}" for cell in cells))
    for row in (*CPU, *CPU_ENDING, *MEMORY):
        unit = "MB" if row in MEMORY else "s "
        cells = (f"{found[row]:.2f} {unit}" if row in found else "" for found in results.values())
        print(f"{row:<44}" + "".join(f"{cell:>28}" for cell in cells))
    simulated = results[_title(count, "simulated")]
    for title, found in results.items():
        if title.startswith(_title(count, "")):
            ready, gone = (found[row] / simulated[row] for row in (LAST_READY, LAST_GONE))
            print(f"{title}: ready {ready:.1f} x simulated, gone {gone:.1f} x simulated")


def _title(count: int, node: str) -> str:
    return f"{count} pod{'s' * (count > 1)}, {node}"


def _whole(row: str) -> str:
    return _whole(PART_OF[row]) if row in PART_OF else row


def _depth(row: str) -> int:
    return 1 + _depth(PART_OF[row]) if row in PART_OF else 0


def _cell(parts: Parts, row: str) -> str:
    if row not in parts:
        return ""
    share = f"{parts[row] / parts[_whole(row)]:.0%}" if row in PART_OF else ""
    return f"{parts[row] * 1000:.0f} ms {share:>5}"


async def measure_all(
    cluster: ControlPlane, base: Base, image: str, count: int, folder: Path
) -> Results:
    results: Results = {}
    bench = Bench(cluster, ApiClient(read_kubeconfig(cluster.kubeconfig)), image)
    nodes = (
        wine_node(cluster, base, RuntimeSettings().warm_silos, folder / "usual"),
        wine_node(cluster, base, count, folder / "warm"),
        simulated_node(cluster, folder / "simulated"),
    )
    for entering in nodes:
        with entering as node:
            await measure(bench, node, count, results)
    await bench.api.close()
    return results


def pack(registry: str, folder: Path) -> str:
    content, image = folder / "content", f"{registry}/ready:1"
    content.mkdir()
    shutil.copy(c_program("ready", PROGRAMS), content)
    app(["image", "pack", str(content), "-t", image, "--os-version", "2022"], standalone_mode=False)
    return image


def main(count: int = PODS) -> None:
    for program, package in TOOLS.items():
        if shutil.which(program) is None:
            sys.exit(f"{program} is missing: apt-get install -y {package}")
    if [name for _, name in socket.if_nameindex()] != ["lo"]:
        sys.exit("run it in a new network namespace: unshare --net python -m benchmarks.pods")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    subprocess.run(["ip", "address", "add", f"{ADDRESS}/32", "dev", "lo"], check=True)
    base = build_base(cache() / "root")
    print(f"load at the start: {os.getloadavg()[0]:.1f}", flush=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        image = pack(stack.enter_context(docker_registry(folder / "registry")), folder)
        cluster = stack.enter_context(ControlPlane(folder / "cluster"))
        cluster.create_namespace(NAMESPACE)
        results = asyncio.run(measure_all(cluster, base, image, count, folder))
    report(results, count)
    print(f"load at the end: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
