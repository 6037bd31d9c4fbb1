"""Lifecycle of pods, compared with Debian's containerd with the same Wine as a Linux image.

One client calls both, so that only the servers differ. winpod is measured with ten silos in its
warm pool, and with an empty one. They alternate, and the result is the median of the rounds.

    unshare --net python -m benchmarks.runtime
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.support.e2e.windows_programs import cache

from benchmarks.cri_servers import GROUP, Server, containerd, winpod
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import CriClient
from winpod.errors import WinpodError
from winpod.images.base.builder import build_base

TOOLS = {"containerd": "containerd", "runc": "runc", "conmon": "conmon", "ip": "iproute2"}
TOGETHER = 10
ROUNDS = {1: 7, TOGETHER: 3}
EXECS = 5
LINE = "RunPodSandbox to the first line"
STEPS = ("RunPodSandbox", "CreateContainer", "StartContainer", "StartContainer to the first line")
EXEC, STOP, REMOVE = "ExecSync of cmd /c echo", "stop", "remove"

_numbers = itertools.count()


class Pod:
    """Pod with one container, from its creation to its removal."""

    def __init__(self, server: Server, client: CriClient) -> None:
        self._server = server
        self._call = client.call
        self._name = f"pod-{next(_numbers)}"
        self.seconds: dict[str, float] = {}

    async def run(self) -> None:
        config = api.PodSandboxConfig(
            metadata=api.PodSandboxMetadata(name=self._name, namespace="bench", uid=self._name),
            hostname=self._name,
            log_directory=str(self._server.folder),
            linux=api.LinuxPodSandboxConfig(cgroup_parent=f"/{GROUP}"),
        )
        container = api.ContainerConfig(
            metadata=api.ContainerMetadata(name="one"),
            image=api.ImageSpec(image=self._server.image),
            command=[*self._server.before, "C:\\ready.exe"],
            log_path=f"{self._name}.log",
        )
        moments = [time.perf_counter()]
        handler = self._server.handler
        request = api.RunPodSandboxRequest(config=config, runtime_handler=handler)
        self.sandbox = (await self._call("RunPodSandbox", request)).pod_sandbox_id
        moments.append(time.perf_counter())
        creation = api.CreateContainerRequest(
            pod_sandbox_id=self.sandbox, config=container, sandbox_config=config
        )
        self.container = (await self._call("CreateContainer", creation)).container_id
        moments.append(time.perf_counter())
        await self._call("StartContainer", api.StartContainerRequest(container_id=self.container))
        moments.append(time.perf_counter())
        while not _is_ready(self._server.folder / container.log_path):
            if time.perf_counter() > moments[-1] + 60:
                raise TimeoutError(f"{self._name} of {self._server.name} printed no line")
            await asyncio.sleep(0.002)
        moments.append(time.perf_counter())
        durations = (after - before for before, after in itertools.pairwise(moments))
        self.seconds.update(zip(STEPS, durations, strict=True))

    async def exec(self) -> None:
        command = [*self._server.before, "cmd", "/c", "echo hi"]
        request = api.ExecSyncRequest(container_id=self.container, cmd=command, timeout=60)
        answer = await self._call("ExecSync", request)
        if (answer.stdout, answer.exit_code) != (b"hi\r\n", 0):
            raise RuntimeError(f"{self._server.name} answered {answer}")

    async def stop(self) -> None:
        request = api.StopContainerRequest(container_id=self.container, timeout=10)
        await self._call("StopContainer", request)
        await self._call("StopPodSandbox", api.StopPodSandboxRequest(pod_sandbox_id=self.sandbox))

    async def remove(self) -> None:
        request = api.RemoveContainerRequest(container_id=self.container)
        await self._call("RemoveContainer", request)
        await self._call(
            "RemovePodSandbox", api.RemovePodSandboxRequest(pod_sandbox_id=self.sandbox)
        )


def _is_ready(log: Path) -> bool:
    return log.exists() and b"ready" in log.read_bytes()


async def live(server: Server, client: CriClient, count: int) -> dict[str, float]:
    """Run this many pods at once; each step starts when all have completed the previous one."""
    server.until_warm()
    pods = [Pod(server, client) for _ in range(count)]
    taken = {LINE: await _together(pod.run() for pod in pods)}
    for step in STEPS:
        taken[step] = statistics.median(pod.seconds[step] for pod in pods)
    execs = [await _together(pod.exec() for pod in pods) for _ in range(EXECS)]
    taken[EXEC] = statistics.median(execs)
    taken[STOP] = await _together(pod.stop() for pod in pods)
    taken[REMOVE] = await _together(pod.remove() for pod in pods)
    return taken


async def _together(calls: Iterable[Coroutine[object, object, None]]) -> float:
    began = time.perf_counter()
    await asyncio.gather(*calls)
    return time.perf_counter() - began


async def compare(servers: Sequence[Server]) -> None:
    clients = [CriClient(f"unix:{server.socket}") for server in servers]
    try:
        for server, client in zip(servers, clients, strict=True):
            await until_up(server, client)
            await live(server, client, 1)
        await _compare(servers, clients)
    finally:
        for client in clients:
            await remove_pods(client)
            await client.close()


async def _compare(servers: Sequence[Server], clients: Sequence[CriClient]) -> None:
    for count, title in ((1, "one pod"), (TOGETHER, f"{TOGETHER} pods at once")):
        taken: dict[str, list[dict[str, float]]] = {server.name: [] for server in servers}
        for _ in range(ROUNDS[count]):
            for server, client in zip(servers, clients, strict=True):
                taken[server.name].append(await live(server, client, count))
        report(title, {name: _medians(rounds) for name, rounds in taken.items()})


async def until_up(server: Server, client: CriClient) -> None:
    deadline = time.monotonic() + 60
    while not await _is_up(client):
        if time.monotonic() > deadline:
            sys.exit(f"{server.name} does not start")
        await asyncio.sleep(0.2)
    if server.image.startswith("oci:"):
        spec = api.ImageSpec(image=server.image, runtime_handler=server.handler)
        request = api.PullImageRequest(image=spec)
        server.image = (await client.call("PullImage", request)).image_ref


async def remove_pods(client: CriClient) -> None:
    """Remove pods that remain after a failure."""
    listed = await client.call("ListPodSandbox", api.ListPodSandboxRequest())
    for sandbox in listed.items:
        request = api.RemovePodSandboxRequest(pod_sandbox_id=sandbox.id)
        await client.call("RemovePodSandbox", request)


async def _is_up(client: CriClient) -> bool:
    try:
        answer = await client.call("Status", api.StatusRequest())
    except WinpodError:
        return False
    return all(condition.status for condition in answer.status.conditions)


def _medians(rounds: list[dict[str, float]]) -> dict[str, float]:
    return {step: statistics.median(one[step] for one in rounds) for step in rounds[0]}


def report(title: str, medians: dict[str, dict[str, float]]) -> None:
    """Print the times relative to containerd; steps are those of the median pod."""
    reference = medians["containerd"]
    print(f"\n{title:<36}" + "".join(f"{name:>26}" for name in medians))
    for step in (LINE, *STEPS, EXEC, STOP, REMOVE):
        cells = []
        for name, times in medians.items():
            ratio = "" if name == "containerd" else f"{times[step] / reference[step]:.2f} x"
            cells.append(f"{times[step] * 1000:>15.0f} ms {ratio:>7}")
        print(f"{'  ' * (step in STEPS) + step:<36}" + "".join(cells), flush=True)


def main() -> None:
    for program, package in TOOLS.items():
        if shutil.which(program) is None:
            sys.exit(f"{program} is missing: apt-get install -y {package}")
    if [name for _, name in socket.if_nameindex()] != ["lo"]:
        sys.exit("run it in a new network namespace: unshare --net python -m benchmarks.runtime")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    base = build_base(cache() / "root")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="winpod-benchmark-")))
        reference = stack.enter_context(containerd(base, 1, folder / "containerd"))
        warm = winpod("winpod, warm pool", base, TOGETHER, 2, folder / "warm")
        cold = winpod("winpod, empty pool", base, 0, 3, folder / "cold")
        servers = [stack.enter_context(one) for one in (warm, cold)]
        asyncio.run(compare([*servers, reference]))
        servers[0].until_warm()
        servers[0].report_memory()
        print(f"load at the end: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
