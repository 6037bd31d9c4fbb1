"""Cost of many pods for the runtime itself: memory, response times, and start time.

The containers are simulated, so that only the runtime is measured: records, events, lists. Pods are
as a kubelet requests them, with labels, variables and mounts.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import CriClient
from winpod.errors import WinpodError

PODS = 100
STORED = 1000
ANSWERS = 20


@contextmanager
def runtime(folder: Path) -> Iterator[tuple[int, Path, float]]:
    """Run a runtime with simulated containers; yield its process, socket and start time."""
    socket = folder / "socket"
    command = [sys.executable, "-m", "winpod", "runtime", "--compute", "simulated"]
    environment = {**os.environ, "HOME": str(folder), "WINPOD_ROOT": str(folder / "root")}
    began = time.perf_counter()
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            [*command, "--socket", str(socket)], env=environment, stdout=log, stderr=log
        )
    try:
        yield process.pid, socket, began
    finally:
        process.terminate()
        process.wait()


async def until_up(client: CriClient) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            await client.call("Status", api.StatusRequest())
        except WinpodError:
            await asyncio.sleep(0.01)
        else:
            return
    sys.exit("the runtime does not start")


def memory_of(pid: int) -> float:
    """Return its proportional set size in megabytes."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return next(int(line.split()[1]) / 1e3 for line in text.splitlines() if "Pss:" in line)


async def run_pod(client: CriClient, image: str, number: int, folder: Path) -> None:
    labels = {
        "io.kubernetes.pod.name": f"web-{number}",
        "io.kubernetes.pod.namespace": "default",
        "app": "web",
    }
    sandbox = api.PodSandboxConfig(
        metadata=api.PodSandboxMetadata(name=f"web-{number}", namespace="default", uid=str(number)),
        hostname=f"web-{number}",
        log_directory=str(folder / "logs"),
        labels=labels,
        annotations={"kubernetes.io/config.source": "api"},
    )
    placed = await client.call("RunPodSandbox", api.RunPodSandboxRequest(config=sandbox))
    container = api.ContainerConfig(
        metadata=api.ContainerMetadata(name="web"),
        image=api.ImageSpec(image=image),
        command=["C:\\web.exe", "--port", "80"],
        envs=[api.KeyValue(key=f"SERVICE_{n}_HOST", value=b"10.96.0.1") for n in range(20)],
        mounts=[api.Mount(host_path=str(folder), container_path=f"C:\\var\\{n}") for n in range(3)],
        labels=labels,
        log_path=f"{number}.log",
    )
    request = api.CreateContainerRequest(
        pod_sandbox_id=placed.pod_sandbox_id, config=container, sandbox_config=sandbox
    )
    created = await client.call("CreateContainer", request)
    start = api.StartContainerRequest(container_id=created.container_id)
    await client.call("StartContainer", start)


async def answer_time(client: CriClient) -> float:
    """Measure the list of all containers, which a kubelet requests every second."""
    began = time.perf_counter()
    for _ in range(ANSWERS):
        await client.call("ListContainers", api.ListContainersRequest())
    return (time.perf_counter() - began) / ANSWERS


async def fill(pid: int, client: CriClient, folder: Path) -> None:
    await until_up(client)
    image = f"oci:{folder}/images:web"
    pull = api.PullImageRequest(image=api.ImageSpec(image=image))
    image = (await client.call("PullImage", pull)).image_ref
    empty = memory_of(pid)
    print(f"{'memory without pods':<44}{empty:>8.0f} MB")
    for count in (PODS, STORED):
        began, first = time.perf_counter(), 0 if count == PODS else PODS
        for number in range(first, count):
            await run_pod(client, image, number, folder)
        each = (time.perf_counter() - began) / (count - first)
        memory, answer = memory_of(pid), await answer_time(client)
        print(f"{f'memory with {count} running pods':<44}{memory:>8.0f} MB")
        print(f"{'  each pod':<44}{(memory - empty) / count * 1000:>8.0f} kB")
        print(f"{'  time to run another pod':<44}{each * 1000:>8.1f} ms")
        print(f"{'  time to list all containers':<44}{answer * 1000:>8.1f} ms")


async def measure(folder: Path) -> None:
    with runtime(folder) as (pid, socket, _):
        client = CriClient(f"unix:{socket}")
        await fill(pid, client, folder)
        await client.close()
    await start(f"start after {STORED} exited while it was down", folder)
    await start(f"start with {STORED} stored", folder)
    empty = folder / "empty"
    empty.mkdir()
    await start("start with none", empty)


async def start(title: str, folder: Path) -> None:
    """Print the time from process start to the first response."""
    with runtime(folder) as (_, socket, began):
        client = CriClient(f"unix:{socket}")
        await until_up(client)
        print(f"{title:<44}{time.perf_counter() - began:>8.2f} s", flush=True)
        await client.close()


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="winpod-benchmark-") as name:
        folder = Path(name)
        (folder / "content").mkdir()
        (folder / "content/web.exe").write_bytes(b"MZ")
        pack = ["image", "pack", str(folder / "content"), "--os-version", "2022"]
        command = [sys.executable, "-m", "winpod", *pack, "-t", f"oci:{folder}/images:web"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        asyncio.run(measure(folder))


if __name__ == "__main__":
    main()
