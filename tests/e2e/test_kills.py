"""kill -9, all along every call: nothing is lost, doubled, or left half-made.

A runtime dies at the first effect of a call, another one at the second, and so on to the last. The
next one is asked what there is, and what it says must be true.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
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
    goes_on,
    goes_on_once_started,
    pod_is_stopped,
)
from tests.support.e2e.runtime_process import PATIENCE, DidNotStart, RuntimeProcess

from winpod.cri.proto import api_pb2 as api
from winpod.errors import WinpodError
from winpod.images.base.builder import Base

pytestmark = pytest.mark.asyncio(loop_scope="module")

STAYS = 20
CREATED, RUNNING = api.CONTAINER_CREATED, api.CONTAINER_RUNNING


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def machine(
    base: Base, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[RuntimeProcess]:
    async with RuntimeProcess.running(tmp_path_factory.mktemp("kills"), base) as machine:
        yield machine


@pytest_asyncio.fixture(loop_scope="module")
async def runtime(machine: RuntimeProcess) -> AsyncIterator[RuntimeProcess]:
    if not machine.lives():
        await machine.restart()
    await machine.remove_all()
    forget_log(machine)
    (machine.data / "go").unlink(missing_ok=True)
    yield machine


@pytest_asyncio.fixture(loop_scope="module")
async def warm_runtime(base: Base, tmp_path: Path) -> AsyncIterator[RuntimeProcess]:
    async with RuntimeProcess.running(tmp_path, base, warm=1) as machine:
        yield machine


def deaths(
    runtime: RuntimeProcess,
    prepare: Callable[[], Awaitable[str]],
    act: Callable[[str], Awaitable[Any]],
) -> AsyncIterator[str]:
    return runtime_kills.deaths(runtime, prepare, act, lambda total: range(1, total + 1))


async def nothing() -> str:
    return ""


async def test_killed_in_run_pod_sandbox(runtime: RuntimeProcess) -> None:
    ports = [api.PortMapping(container_port=80, host_port=8080)]
    begun = []
    async for _ in deaths(runtime, nothing, lambda _: runtime.run_pod(port_mappings=ports)):
        pods = await runtime.pods()
        begun.append(len(pods))
        assert [pod.state for pod in pods] in ([], [api.SANDBOX_READY])
        await runtime.remove_all()
        assert runtime.leftovers() == {}
    assert sum(begun) <= len(begun) * 2 / 3


async def test_killed_while_it_boots_the_shell_of_a_pod(runtime: RuntimeProcess) -> None:
    def until_whole() -> None:
        while runtime.lives() and not list(runtime.own.glob("sandboxes/*/shell/whole")):
            time.sleep(0.01)

    async def until_booted(_: str) -> None:
        await runtime.run_pod()
        await asyncio.to_thread(until_whole)

    async for _ in deaths(runtime, nothing, until_booted):
        for pod in await runtime.pods():
            forget_log(runtime)
            await goes_on(runtime, await runtime.begin(pod.id, "ticks", hex(CODE)))
        await runtime.remove_all()
        assert runtime.leftovers() == {}


async def test_killed_in_create_container(runtime: RuntimeProcess) -> None:
    async for pod in deaths(runtime, runtime.run_pod, lambda pod: runtime.create(pod, "ticks")):
        found = await runtime.containers()
        assert [container.state for container in found] in ([], [CREATED])
        for container in found:
            await runtime.call(api.StartContainerRequest(container_id=container.id))
            await runtime.until_said("tick 2\n")
            await runtime.remove(container.id)
            forget_log(runtime)
        assert runtime.leftovers("containers", "runc", "disks", "processes", "groups") == {}
        await runtime.remove_pod(pod)
        assert runtime.leftovers() == {}


async def test_killed_in_start_container(runtime: RuntimeProcess) -> None:
    prepared = Prepared(runtime)
    async for container in deaths(runtime, prepared.created, prepared.start):
        await goes_on_once_started(runtime, container)
        await all_is_removed(runtime)


async def test_killed_in_stop_container(runtime: RuntimeProcess) -> None:
    async for container in deaths(runtime, Prepared(runtime).deaf, lambda c: runtime.stop(c, 1)):
        await can_be_stopped(runtime, container)
        await all_is_removed(runtime)


async def test_killed_in_stop_pod_sandbox(runtime: RuntimeProcess) -> None:
    async for pod in deaths(runtime, Prepared(runtime).pod, runtime.stop_pod):
        await pod_is_stopped(runtime, pod)
        assert runtime.leftovers("sandboxes", "namespaces", "leases", "links", "processes") == {}
        await all_is_removed(runtime)


async def test_killed_in_remove_container(runtime: RuntimeProcess) -> None:
    prepared = Prepared(runtime)
    async for container in deaths(runtime, prepared.started, prepared.remove_to_the_last):
        assert len(await runtime.containers()) <= 1
        await runtime.remove(container)
        assert await runtime.containers() == []
        assert runtime.leftovers("containers", "runc", "disks", "processes", "groups") == {}
        await runtime.remove_all()


async def test_killed_in_remove_pod_sandbox(runtime: RuntimeProcess) -> None:
    async for pod in deaths(runtime, Prepared(runtime).pod, runtime.remove_pod):
        await runtime.remove_pod(pod)
        assert (await runtime.pods(), await runtime.containers()) == ([], [])
        assert runtime.leftovers() == {}


async def test_killed_while_shells_are_booted_ahead_of_time(warm_runtime: RuntimeProcess) -> None:
    runtime = warm_runtime
    for number in range(1, 75, 4):
        await runtime.end()
        with contextlib.suppress(DidNotStart):
            await runtime.start(die_at=number)
            await asyncio.wait_for(runtime.ended(), PATIENCE)
    await runtime.restart()
    await runtime.until_warm(1)
    assert runtime.leftovers() == {}
    pod = await runtime.run_pod()
    await runtime.begin(pod, "ticks", hex(CODE))
    await goes_on(runtime, (await runtime.containers())[0].id)
    await runtime.remove_all()
    assert runtime.leftovers() == {}


async def test_killed_while_it_takes_a_shell_that_waits(warm_runtime: RuntimeProcess) -> None:
    runtime = warm_runtime

    async def waited() -> str:
        await runtime.until_warm(1)
        return ""

    async def act(_: str) -> None:
        await runtime.create(await runtime.run_pod(), "ticks")

    async for _ in deaths(runtime, waited, act):
        assert len(await runtime.pods()) <= 1
        assert {c.state for c in await runtime.containers()} <= {CREATED}
        await runtime.remove_all()
        assert runtime.leftovers() == {}


async def test_containers_that_end_while_nobody_looks_have_their_own_exit_code(
    runtime: RuntimeProcess,
) -> None:
    pod = await runtime.run_pod()
    container = await runtime.begin(pod, "ticks", hex(CODE))
    await runtime.until_said("tick 3\n")
    await runtime.end()
    (runtime.data / "go").touch()
    await runtime.until_said("ended")
    await runtime.start()
    seen = await runtime.until_exited(container)
    assert (seen.exit_code & 0xFFFFFFFF, seen.reason) == (CODE, "Error")
    assert seen.started_at < seen.finished_at


def pid_of(runtime: RuntimeProcess, container: str, what: str) -> int:
    """conmon, wproxy and init by the files they left; wineserver as the init's descendant."""
    folder = runtime.folder_of(container)
    files = {
        "conmon": "conmon.pid",
        "wproxy": "program.pid",
        "winit": "shell/shell.pid",
    }
    if what in files:
        return int((folder / files[what]).read_text())
    words = (line.split() for line in runtime.processes())
    return next(int(line[0]) for line in words if line[1].endswith(what) and container in line[-1])


@pytest.mark.parametrize("away", [False, True], ids=["watched", "while nobody looks"])
@pytest.mark.parametrize("what", ["conmon", "wproxy", "wineserver", "winit", "wagent.exe"])
async def test_a_container_that_loses_a_process_of_its_own_ends_and_can_be_removed(
    runtime: RuntimeProcess, what: str, away: bool
) -> None:
    pod = await runtime.run_pod()
    container = await runtime.begin(pod, "ticks", hex(CODE))
    await runtime.until_said("tick 3\n")
    pid = pid_of(runtime, container, what)
    if away:
        await runtime.end()
    os.kill(pid, signal.SIGKILL)
    if away:
        await runtime.start()
    seen = await runtime.until_exited(container)
    assert seen.exit_code != 0
    assert (seen.exit_code, seen.reason) in {(255, "Unknown"), (137, "Error")}
    assert runtime.leftovers("processes") == {}
    other = await runtime.begin(pod, "sleep", name="other")
    assert (await runtime.status(other)).state == RUNNING
    await runtime.remove(container)
    await runtime.remove_all()
    assert runtime.leftovers() == {}


async def test_killed_while_it_finds_everything_again(runtime: RuntimeProcess) -> None:
    kept = await runtime.begin(await runtime.run_pod("kept"), "ticks", hex(CODE))
    for number in range(1, 40, 3):
        pod = await runtime.run_pod(f"gone-{number}")
        await runtime.begin(pod, "sleep", name="gone")
        runtime.die_at(8)
        with contextlib.suppress(WinpodError):
            await runtime.remove_pod(pod)
        await runtime.end()
        with contextlib.suppress(DidNotStart):
            await runtime.start(die_at=number)
        await runtime.restart()
        await runtime.remove_pod(pod)
        assert {container.id for container in await runtime.containers()} == {kept}
    await goes_on(runtime, kept)


@pytest.mark.parametrize("seconds", [0.01, 0.05, 0.1, 0.2, 0.4])
async def test_a_client_that_goes_away_leaves_nothing_half_made(
    runtime: RuntimeProcess, seconds: float
) -> None:
    async def cut_short(request: Any) -> Any:
        with contextlib.suppress(TimeoutError, WinpodError):
            return await asyncio.wait_for(runtime.call(request), seconds)
        return None

    pod = await runtime.run_pod()
    made = await cut_short(runtime.container_request(pod, "ticks", hex(CODE)))
    container = made.container_id if made else await made_or_anew(runtime, pod)
    await cut_short(api.StartContainerRequest(container_id=container))
    if (await runtime.status(container)).state == CREATED:
        with contextlib.suppress(WinpodError):  # the first may just have come to its end
            await runtime.call(api.StartContainerRequest(container_id=container))
    await goes_on(runtime, container)
    await cut_short(api.RemoveContainerRequest(container_id=container))
    await cut_short(api.RemovePodSandboxRequest(pod_sandbox_id=pod))
    await runtime.remove_pod(pod)
    assert runtime.leftovers() == {}


async def made_or_anew(runtime: RuntimeProcess, pod: str) -> str:
    """One that was cut short is taken away as nobody's, and another has its name; or it was whole
    before the runtime heard of it, and stays."""
    deadline, looks = time.monotonic() + PATIENCE, 0
    while looks < STAYS:
        with contextlib.suppress(WinpodError):
            return await runtime.create(pod, "ticks", hex(CODE))
        states = [found.state for found in await runtime.containers()]
        assert time.monotonic() < deadline, f"the name is never free: {states}"
        looks = looks + 1 if states == [CREATED] else 0
        await asyncio.sleep(0.05)
    return str((await runtime.containers())[0].id)
