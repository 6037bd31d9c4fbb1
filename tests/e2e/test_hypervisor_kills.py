"""kill -9 around pods in microVMs: of the runtime all along every call, and of each process that a
container has, on the machine and inside of its guest. Nothing is lost, doubled, or left half-made.

Inside of a guest a program kills that came with a volume, when a file is there: the guest's first
process starts it for the test, which speaks to it while no runtime does.
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
DEATHS = 4
LONG_DEAD = 3.0
LOST = (
    ("wagent.exe", False),
    ("wineserver", False),
    ("init", False),
    ("init", True),
    ("program.pid", False),
    ("conmon.pid", False),
)
"""Processes of a container: inside of the guest, or by the file that has its number on the machine;
and whether that happens while nobody looks."""
LOST_BY = {(255, "Unknown"), (137, "Error")}
CREATED = api.CONTAINER_CREATED
OF_ONE = ("containers", "leavings", "disks", "mounts")
"""What must be gone with a container, while its pod lives on."""


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
    forget(machine)
    yield machine


def forget(runtime: RuntimeProcess) -> None:
    """What the last container has said, and was told."""
    for left in ("data/go", "data/now", "logs/app.log"):
        (runtime.folder / left).unlink(missing_ok=True)


def deaths(
    runtime: RuntimeProcess,
    prepare: Callable[[], Awaitable[str]],
    act: Callable[[str], Awaitable[Any]],
) -> AsyncIterator[str]:
    def in_the_middle_of_equal_parts(total: int) -> Iterable[int]:
        return (1 + total * (2 * i + 1) // (2 * DEATHS) for i in range(DEATHS))

    return runtime_kills.deaths(runtime, prepare, act, in_the_middle_of_equal_parts)


async def nothing() -> str:
    return ""


def of_pod(pod: str) -> list[str]:
    """Its network, and what its guest sees its containers' places by."""
    return [f"netns/{pod}", f"{pod}/vm/(drives|volumes)$"]


async def only_pod(runtime: RuntimeProcess) -> str:
    """It is ready, and there is no other."""
    (pod,) = await runtime.pods()
    assert pod.state == api.SANDBOX_READY
    return str(pod.id)


async def test_killed_in_run_pod_sandbox(runtime: RuntimeProcess) -> None:
    async for _ in deaths(runtime, nothing, lambda _: runtime.run_pod()):
        assert [pod.state for pod in await runtime.pods()] in ([], [api.SANDBOX_READY])
        await runtime.remove_all()
        assert runtime.leftovers() == {}


async def test_killed_in_create_container(runtime: RuntimeProcess) -> None:
    async for pod in deaths(runtime, runtime.run_pod, lambda pod: runtime.create(pod, "ticks")):
        found = await runtime.containers()
        assert [container.state for container in found] in ([], [CREATED])
        if not found:
            assert runtime.leftovers(*OF_ONE, besides=of_pod(pod)) == {}
        container = found[0].id if found else await runtime.create(pod, "ticks", hex(CODE))
        await runtime.call(api.StartContainerRequest(container_id=container))
        await runtime.until_said("tick 2\n")
        await runtime.remove_all()
        forget_log(runtime)
        assert runtime.leftovers() == {}


async def test_killed_in_start_container(runtime: RuntimeProcess) -> None:
    prepared = Prepared(runtime)
    async for container in deaths(runtime, prepared.created, prepared.start):
        await goes_on_once_started(runtime, container)
        await all_is_removed(runtime)


async def test_killed_in_stop_container(runtime: RuntimeProcess) -> None:
    async for container in deaths(runtime, Prepared(runtime).deaf, lambda c: runtime.stop(c, 1)):
        await can_be_stopped(runtime, container)
        await only_pod(runtime)
        await all_is_removed(runtime)


async def test_killed_in_remove_container(runtime: RuntimeProcess) -> None:
    prepared = Prepared(runtime)
    async for container in deaths(runtime, prepared.started, prepared.remove_to_the_last):
        assert len(await runtime.containers()) <= 1
        await runtime.remove(container)
        assert await runtime.containers() == []
        pod = await only_pod(runtime)
        assert runtime.leftovers(*OF_ONE, besides=of_pod(pod)) == {}
        await runtime.end()
        assert await shells_inside(vm_of(runtime, pod)) == ""
        await runtime.start()
        await all_is_removed(runtime)


async def test_killed_in_stop_pod_sandbox(runtime: RuntimeProcess) -> None:
    gone = ("sandboxes", "namespaces", "leases", "links", "processes", "memory")
    async for pod in deaths(runtime, Prepared(runtime).pod, runtime.stop_pod):
        await pod_is_stopped(runtime, pod)
        assert runtime.leftovers(*gone) == {}
        await all_is_removed(runtime)


async def test_killed_in_remove_pod_sandbox(runtime: RuntimeProcess) -> None:
    async for pod in deaths(runtime, Prepared(runtime).pod, runtime.remove_pod):
        await runtime.remove_pod(pod)
        assert (await runtime.pods(), await runtime.containers()) == ([], [])
        assert runtime.leftovers() == {}


def vm_of(runtime: RuntimeProcess, pod: str) -> Path:
    return runtime.own / "sandboxes" / pod / "vm"


async def shells_inside(vm: Path) -> str:
    """What a guest has mounted for its containers. No runtime may be there."""
    guest = GuestClient(vm / "control")
    mounted = (await guest.request("read", "/proc/mounts")).decode().splitlines()
    guest.close()
    return "\n".join(line for line in mounted if "/run/shells/" in line)


async def arm(runtime: RuntimeProcess, pod: str, container: str, *target: str) -> None:
    """The killer, in the guest; it waits. No runtime may be there."""
    vm = vm_of(runtime, pod)
    (volume,) = (vm / "volumes" / container).iterdir()
    inside = f"/volumes/{container}/{volume.name}"
    guest = GuestClient(vm / "control")
    await guest.request("run", "/run/killed", f"{inside}/killer", f"{inside}/now", *target)
    guest.close()


async def kill_inside(
    runtime: RuntimeProcess, pod: str, container: str, *target: str, away: bool
) -> None:
    await runtime.end()
    await arm(runtime, pod, container, *target)
    if away:
        (runtime.data / "now").touch()
        await asyncio.sleep(LONG_DEAD)
    await runtime.start()
    (runtime.data / "now").touch()


async def test_a_container_that_loses_a_process_of_its_own_ends_alone(
    runtime: RuntimeProcess,
) -> None:
    """Another one of its pod ticks through all of it."""
    kept_data = runtime.folder / "kept"
    kept_data.mkdir(exist_ok=True)
    pod = await runtime.run_pod()
    request = runtime.container_request(pod, "ticks", hex(CODE), name="kept")
    request.config.mounts[0].host_path = str(kept_data)
    kept = str((await runtime.call(request)).container_id)
    await runtime.call(api.StartContainerRequest(container_id=kept))
    for what, away in LOST:
        container = await runtime.begin(pod, "ticks", hex(CODE))
        await runtime.until_said("tick 3\n")
        if what.endswith(".pid"):
            os.kill(int((runtime.folder_of(container) / what).read_text()), signal.SIGKILL)
        else:
            group = guest_cgroup((runtime.folder_of(container) / "shell/id").read_text())
            await kill_inside(runtime, pod, container, what, group, away=away)
        seen = await runtime.until_exited(container)
        assert (seen.exit_code, seen.reason) in LOST_BY, what
        assert "microVM" not in seen.message, what
        assert await only_pod(runtime) == pod
        await runtime.remove(container)
        assert runtime.leftovers(*OF_ONE, besides=[*of_pod(pod), kept]) == {}, what
        await ticks_on(runtime, "kept")
        forget(runtime)
    (kept_data / "go").touch()
    seen = await runtime.until_exited(kept)
    assert seen.exit_code & 0xFFFFFFFF == CODE
    log_is_whole(runtime, "kept")
    await runtime.remove_all()
    assert runtime.leftovers() == {}


@pytest.mark.parametrize("away", [False, True], ids=["watched", "while nobody looks"])
async def test_a_pod_whose_guest_loses_its_first_process_has_ended(
    runtime: RuntimeProcess, away: bool
) -> None:
    pod = await runtime.run_pod()
    container = await runtime.begin(pod, "ticks", hex(CODE))
    await runtime.until_said("tick 3\n")
    await kill_inside(runtime, pod, container, away=away)
    seen = await runtime.until_exited(container)
    assert (seen.exit_code, seen.reason) in LOST_BY
    assert seen.message == "the pod's microVM has ended"
    await runtime.until_not_ready(pod)
    assert runtime.leftovers("processes") == {}
    await runtime.remove_all()
    assert runtime.leftovers() == {}
