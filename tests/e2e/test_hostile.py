"""Programs that exhaust resources affect only their own container.

The limits are far below the resources of the host, and a neighbour container keeps running.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.support.e2e.runtime_process import PATIENCE, RuntimeProcess

from winpod.compute.resources import DEFAULT_PIDS
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import RemoteError
from winpod.images.base.builder import Base

pytestmark = pytest.mark.asyncio(loop_scope="module")

MEMORY = 256 << 20
PIDS_LIMIT = 200
KILLED = 0xC000013A
DISK_FULL = 112


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def machine(
    base: Base, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[RuntimeProcess]:
    async with RuntimeProcess.running(tmp_path_factory.mktemp("hostile"), base) as machine:
        yield machine


@pytest_asyncio.fixture(loop_scope="module")
async def runtime(machine: RuntimeProcess) -> AsyncIterator[RuntimeProcess]:
    """Run a neighbour in its own pod, and check that it is not affected."""
    pod = await machine.run_pod("neighbours")
    neighbour = await machine.begin(pod, "ticks", name="neighbour")
    await machine.until_said("tick 1\n", "neighbour")
    yield machine
    before = last_tick(machine)
    await machine.until_said(f"tick {before + 5}\n", "neighbour")
    assert (await machine.status(neighbour)).state == api.CONTAINER_RUNNING
    answer = await machine.call(
        api.ExecSyncRequest(container_id=neighbour, cmd=["cmd", "/c", "echo well"])
    )
    assert answer.stdout == b"well\r\n"
    await machine.remove_all()
    assert machine.leftovers() == {}
    for log in (machine.folder / "logs").glob("*"):
        log.unlink()


def last_tick(machine: RuntimeProcess) -> int:
    return int(re.findall(r"tick (\d+)", machine.said("neighbour"))[-1])


def windows_config(**resources: Any) -> api.WindowsContainerConfig:
    return api.WindowsContainerConfig(resources=api.WindowsContainerResources(**resources))


def read_cgroup(runtime: RuntimeProcess, container: str, controller: str, name: str) -> int:
    group = (runtime.folder_of(container) / "shell/id").read_text()
    return int(Path(f"/sys/fs/cgroup/{controller}/winpod/{group}/{name}").read_text())


@pytest.mark.parametrize("mode", ["forks", "threads"])
async def test_fork_and_thread_bombs_stay_within_pids_limit(
    runtime: RuntimeProcess, mode: str
) -> None:
    limited = windows_config(memory_limit_in_bytes=1 << 30, cpu_count=1)
    container = await runtime.create(await runtime.run_pod(), mode, windows=limited)
    assert read_cgroup(runtime, container, "pids", "pids.max") == DEFAULT_PIDS
    group = (runtime.folder_of(container) / "shell/id").read_text()
    pids = Path(f"/sys/fs/cgroup/pids/winpod/{group}")
    (pids / "pids.max").write_text(str(PIDS_LIMIT))
    await runtime.call(api.StartContainerRequest(container_id=container))
    deadline = time.monotonic() + PATIENCE
    while (pids / "pids.events").read_text().split() == ["max", "0"]:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)
    assert int((pids / "pids.current").read_text()) <= PIDS_LIMIT
    async with asyncio.timeout(PATIENCE):
        await runtime.stop(container, 1)
    assert (await runtime.status(container)).state == api.CONTAINER_EXITED


async def test_handle_bomb_ends_with_its_container(runtime: RuntimeProcess) -> None:
    limited = windows_config(memory_limit_in_bytes=MEMORY, cpu_count=1)
    container = await runtime.begin(await runtime.run_pod(), "handles", windows=limited)
    await asyncio.sleep(3)
    assert read_cgroup(runtime, container, "memory", "memory.usage_in_bytes") <= MEMORY
    await runtime.stop(container)
    assert (await runtime.status(container)).state == api.CONTAINER_EXITED


async def test_container_over_memory_limit_is_oom_killed(runtime: RuntimeProcess) -> None:
    limited = windows_config(memory_limit_in_bytes=MEMORY)
    container = await runtime.begin(await runtime.run_pod(), "memory", windows=limited)
    status = await runtime.until_exited(container)
    assert status.reason == "OOMKilled"
    assert status.exit_code == 137
    assert "memory limit" in status.message


async def test_memory_limit_below_current_usage_is_rejected(
    runtime: RuntimeProcess,
) -> None:
    limited = windows_config(memory_limit_in_bytes=16 << 20)
    with pytest.raises(RemoteError, match=r"of 16 MiB is less than .* already uses, \d\d MiB"):
        await runtime.create(await runtime.run_pod(), "memory", windows=limited)


async def test_container_fills_only_its_own_disk(runtime: RuntimeProcess) -> None:
    limited = windows_config(rootfs_size_in_bytes=64 << 20)
    container = await runtime.begin(await runtime.run_pod(), "disk", windows=limited)
    status = await runtime.until_exited(container)
    assert status.exit_code == 0
    error, written = re.findall(r"error (\d+) after (\d+) MiB", runtime.said())[0]
    assert int(error) == DISK_FULL
    assert 32 <= int(written) < 64
    image = runtime.folder_of(container) / "shell/disk.img"
    assert image.stat().st_blocks * 512 <= 64 << 20


async def test_concurrent_containers_get_their_disk_sizes(runtime: RuntimeProcess) -> None:
    """The pod has only one silo that was booted in advance."""
    pod, sizes = (
        await runtime.run_pod(),
        {name: (32 + 16 * n) << 20 for n, name in enumerate("abc")},
    )
    containers = await asyncio.gather(
        *(
            runtime.begin(
                pod, "sleep", name=name, windows=windows_config(rootfs_size_in_bytes=size)
            )
            for name, size in sizes.items()
        )
    )
    images = [runtime.folder_of(container) / "shell/disk.img" for container in containers]
    assert [file_size(image) for image in images] == list(sizes.values())


async def test_log_flood_is_written_with_bounded_memory(runtime: RuntimeProcess) -> None:
    limited = windows_config(cpu_count=1)
    container = await runtime.begin(await runtime.run_pod(), "flood", windows=limited)
    log = runtime.folder / "logs/app.log"
    for number in range(3):
        await wait_for_size(log, 4 << 20)
        log.rename(log.with_suffix(f".{number}"))
        await runtime.call(api.ReopenContainerLogRequest(container_id=container))
    await wait_for_size(log, 1 << 20)
    for name in ("conmon.pid", "program.pid"):
        assert resident_kilobytes(runtime.folder_of(container) / name) < 16 << 10
    assert read_cgroup(runtime, container, "memory", "memory.usage_in_bytes") < 512 << 20
    await runtime.stop(container, 1)
    files = [log.with_suffix(f".{number}") for number in range(3)]
    for file, following in zip(files, [*files[1:], log], strict=True):
        end, start = file.read_bytes()[-200:], following.read_bytes()[:200]
        assert end.endswith(b"\n")
        assert re.match(rb"\d{4}-\d\d-\d\dT\S+ stdout [FP] ", start)


def resident_kilobytes(file: Path) -> int:
    """Return the resident memory of the process whose PID is in a file."""
    status = Path(f"/proc/{file.read_text()}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0])


def file_size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


async def wait_for_size(file: Path, size: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while file_size(file) < size:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def test_container_that_ignores_stop_is_killed_after_grace_period(
    runtime: RuntimeProcess,
) -> None:
    container = await runtime.begin(await runtime.run_pod(), "deaf")
    await runtime.until_said("deaf\n")
    stopping = asyncio.create_task(runtime.stop(container, int(PATIENCE)))
    await runtime.until_said("event 6\n")
    stopping.cancel()
    before = time.monotonic()
    async with asyncio.timeout(PATIENCE / 2):
        await runtime.stop(container, 2)
    assert time.monotonic() - before >= 2
    status = await runtime.status(container)
    assert (status.state, status.exit_code & 0xFFFFFFFF) == (api.CONTAINER_EXITED, KILLED)


async def test_orphaned_descendants_end_with_container(
    runtime: RuntimeProcess,
) -> None:
    container = await runtime.begin(await runtime.run_pod(), "leaves")
    status = await runtime.until_exited(container)
    assert status.exit_code == 0
    assert "leaves\n" in runtime.said()
    leftover = [text for text in runtime.processes() if container in text]
    assert leftover == []
