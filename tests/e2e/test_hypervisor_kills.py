"""Crash recovery with pods in microVMs.

The runtime is killed during every call, and each process of a container is killed, on the host and
in the guest. Nothing may be lost, duplicated or left incomplete.

In a guest, a program from a volume kills the process as soon as a file exists. The test asks the
guest's init to start it, while the runtime is stopped.
"""

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.support.e2e import runtime_kills
from tests.support.e2e.runtime_kills import (
    CODE,
    Prepared,
    all_is_removed,
    can_be_stopped,
    forget_log,
    goes_on_once_started,
    log_is_whole,
    pod_is_stopped,
    ticks_on,
)
from tests.support.e2e.runtime_process import RuntimeProcess
from tests.support.e2e.windows_programs import linux_program

from winpod.compute.hypervisor.guest_client import GuestClient
from winpod.compute.hypervisor.guest_silo import guest_cgroup
from winpod.cri.proto import api_pb2 as api
from winpod.images.base.builder import Base

pytestmark = pytest.mark.asyncio(loop_scope="module")

HANDLER = "runhcs-wcow-hypervisor"
KILLS_PER_CALL = 4
DOWNTIME = 3.0
KILLED_PROCESSES = (
    ("wagent.exe", False),
    ("wineserver", False),
    ("init", False),
    ("init", True),
    ("program.pid", False),
    ("conmon.pid", False),
)
"""Processes to kill: names in the guest or PID files on the host; and whether the runtime is
stopped meanwhile."""
LOST_STATUSES = {(255, "Unknown"), (137, "Error")}
CREATED = api.CONTAINER_CREATED
CONTAINER_RESOURCES = ("containers", "leavings", "disks", "mounts")
"""Resources that are released with a container while its pod keeps running."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def machine(
    base: Base, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[RuntimeProcess]:
    folder = tmp_path_factory.mktemp("kills")
    async with RuntimeProcess.running(folder, base, handler=HANDLER) as machine:
        shutil.copy(linux_program("killer"), machine.data)
        yield machine


@pytest_asyncio.fixture(loop_scope="module")
async def runtime(machine: RuntimeProcess) -> AsyncIterator[RuntimeProcess]:
    if not machine.lives():
        await machine.restart()
    await machine.remove_all()
    reset_files(machine)
    yield machine


def reset_files(runtime: RuntimeProcess) -> None:
    """Remove the log and the command files of the last container."""
    for path in ("data/go", "data/now", "logs/app.log"):
        (runtime.folder / path).unlink(missing_ok=True)


def kill_during(
    runtime: RuntimeProcess,
    prepare: Callable[[], Awaitable[str]],
    act: Callable[[str], Awaitable[Any]],
) -> AsyncIterator[str]:
    def spread_evenly(total: int) -> Iterable[int]:
        return (1 + total * (2 * i + 1) // (2 * KILLS_PER_CALL) for i in range(KILLS_PER_CALL))

    return runtime_kills.deaths(runtime, prepare, act, spread_evenly)


async def prepare_nothing() -> str:
    return ""


def pod_resources(pod: str) -> list[str]:
    """Return patterns for the network namespace and the virtiofs mounts of a pod."""
    return [f"netns/{pod}", f"{pod}/vm/(drives|volumes)$"]


async def only_pod(runtime: RuntimeProcess) -> str:
    """Check that exactly one pod exists and is ready; return its ID."""
    (pod,) = await runtime.pods()
    assert pod.state == api.SANDBOX_READY
    return str(pod.id)


async def test_killed_in_run_pod_sandbox(runtime: RuntimeProcess) -> None:
    async for _ in kill_during(runtime, prepare_nothing, lambda _: runtime.run_pod()):
        assert [pod.state for pod in await runtime.pods()] in ([], [api.SANDBOX_READY])
        await runtime.remove_all()
        assert runtime.leftovers() == {}


async def test_killed_in_create_container(runtime: RuntimeProcess) -> None:
    async for pod in kill_during(
        runtime, runtime.run_pod, lambda pod: runtime.create(pod, "ticks")
    ):
        found = await runtime.containers()
        assert [container.state for container in found] in ([], [CREATED])
        if not found:
            assert runtime.leftovers(*CONTAINER_RESOURCES, besides=pod_resources(pod)) == {}
        container = found[0].id if found else await runtime.create(pod, "ticks", hex(CODE))
        await runtime.call(api.StartContainerRequest(container_id=container))
        await runtime.until_said("tick 2\n")
        await runtime.remove_all()
        forget_log(runtime)
        assert runtime.leftovers() == {}


async def test_killed_in_start_container(runtime: RuntimeProcess) -> None:
    prepared = Prepared(runtime)
    async for container in kill_during(runtime, prepared.created, prepared.start):
        await goes_on_once_started(runtime, container)
        await all_is_removed(runtime)


async def test_killed_in_stop_container(runtime: RuntimeProcess) -> None:
    async for container in kill_during(
        runtime, Prepared(runtime).deaf, lambda c: runtime.stop(c, 1)
    ):
        await can_be_stopped(runtime, container)
        await only_pod(runtime)
        await all_is_removed(runtime)


async def test_killed_in_remove_container(runtime: RuntimeProcess) -> None:
    prepared = Prepared(runtime)
    async for container in kill_during(runtime, prepared.started, prepared.remove_to_the_last):
        assert len(await runtime.containers()) <= 1
        await runtime.remove(container)
        assert await runtime.containers() == []
        pod = await only_pod(runtime)
        assert runtime.leftovers(*CONTAINER_RESOURCES, besides=pod_resources(pod)) == {}
        await runtime.end()
        assert await guest_silo_mounts(vm_of(runtime, pod)) == ""
        await runtime.start()
        await all_is_removed(runtime)


async def test_killed_in_stop_pod_sandbox(runtime: RuntimeProcess) -> None:
    removed = ("sandboxes", "namespaces", "leases", "links", "processes", "memory")
    async for pod in kill_during(runtime, Prepared(runtime).pod, runtime.stop_pod):
        await pod_is_stopped(runtime, pod)
        assert runtime.leftovers(*removed) == {}
        await all_is_removed(runtime)


async def test_killed_in_remove_pod_sandbox(runtime: RuntimeProcess) -> None:
    async for pod in kill_during(runtime, Prepared(runtime).pod, runtime.remove_pod):
        await runtime.remove_pod(pod)
        assert (await runtime.pods(), await runtime.containers()) == ([], [])
        assert runtime.leftovers() == {}


def vm_of(runtime: RuntimeProcess, pod: str) -> Path:
    return runtime.own / "sandboxes" / pod / "vm"


async def guest_silo_mounts(vm: Path) -> str:
    """Return the mounts of silos in a guest. The runtime must be stopped."""
    guest = GuestClient(vm / "control")
    mounts = (await guest.request("read", "/proc/mounts")).decode().splitlines()
    guest.close()
    return "\n".join(line for line in mounts if "/run/shells/" in line)


async def start_killer(runtime: RuntimeProcess, pod: str, container: str, *target: str) -> None:
    """Start the killer in the guest, where it waits. The runtime must be stopped."""
    vm = vm_of(runtime, pod)
    (volume,) = (vm / "volumes" / container).iterdir()
    inside = f"/volumes/{container}/{volume.name}"
    guest = GuestClient(vm / "control")
    await guest.request("run", "/run/killed", f"{inside}/killer", f"{inside}/now", *target)
    guest.close()


async def kill_in_guest(
    runtime: RuntimeProcess, pod: str, container: str, *target: str, while_stopped: bool
) -> None:
    await runtime.end()
    await start_killer(runtime, pod, container, *target)
    if while_stopped:
        (runtime.data / "now").touch()
        await asyncio.sleep(DOWNTIME)
    await runtime.start()
    (runtime.data / "now").touch()


async def test_container_exits_alone_when_one_of_its_processes_is_killed(
    runtime: RuntimeProcess,
) -> None:
    """Another container of the pod keeps running."""
    kept_data = runtime.folder / "kept"
    kept_data.mkdir(exist_ok=True)
    pod = await runtime.run_pod()
    request = runtime.container_request(pod, "ticks", hex(CODE), name="kept")
    request.config.mounts[0].host_path = str(kept_data)
    kept = str((await runtime.call(request)).container_id)
    await runtime.call(api.StartContainerRequest(container_id=kept))
    for process, while_stopped in KILLED_PROCESSES:
        container = await runtime.begin(pod, "ticks", hex(CODE))
        await runtime.until_said("tick 3\n")
        if process.endswith(".pid"):
            os.kill(int((runtime.folder_of(container) / process).read_text()), signal.SIGKILL)
        else:
            group = guest_cgroup((runtime.folder_of(container) / "shell/id").read_text())
            await kill_in_guest(
                runtime, pod, container, process, group, while_stopped=while_stopped
            )
        status = await runtime.until_exited(container)
        assert (status.exit_code, status.reason) in LOST_STATUSES, process
        assert "microVM" not in status.message, process
        assert await only_pod(runtime) == pod
        await runtime.remove(container)
        assert runtime.leftovers(*CONTAINER_RESOURCES, besides=[*pod_resources(pod), kept]) == {}, (
            process
        )
        await ticks_on(runtime, "kept")
        reset_files(runtime)
    (kept_data / "go").touch()
    status = await runtime.until_exited(kept)
    assert status.exit_code & 0xFFFFFFFF == CODE
    log_is_whole(runtime, "kept")
    await runtime.remove_all()
    assert runtime.leftovers() == {}


@pytest.mark.parametrize("while_stopped", [False, True], ids=["runtime running", "runtime stopped"])
async def test_pod_exits_when_init_of_its_guest_is_killed(
    runtime: RuntimeProcess, while_stopped: bool
) -> None:
    pod = await runtime.run_pod()
    container = await runtime.begin(pod, "ticks", hex(CODE))
    await runtime.until_said("tick 3\n")
    await kill_in_guest(runtime, pod, container, while_stopped=while_stopped)
    status = await runtime.until_exited(container)
    assert (status.exit_code, status.reason) in LOST_STATUSES
    assert status.message == "the pod's microVM has ended"
    await runtime.until_not_ready(pod)
    assert runtime.leftovers("processes") == {}
    await runtime.remove_all()
    assert runtime.leftovers() == {}
