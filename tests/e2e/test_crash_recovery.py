"""Crash recovery of the runtime: nothing may be lost, duplicated or left incomplete.

The runtime is killed with SIGKILL at each effect of a call, from the first to the last. After every
restart, its state must match reality.
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

STABLE_POLLS = 20
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


def kill_during(
    runtime: RuntimeProcess,
    prepare: Callable[[], Awaitable[str]],
    act: Callable[[str], Awaitable[Any]],
) -> AsyncIterator[str]:
    return runtime_kills.deaths(runtime, prepare, act, lambda total: range(1, total + 1))


async def prepare_nothing() -> str:
    return ""


async def test_killed_in_run_pod_sandbox(runtime: RuntimeProcess) -> None:
    ports = [api.PortMapping(container_port=80, host_port=8080)]
    pod_counts = []
    async for _ in kill_during(
        runtime, prepare_nothing, lambda _: runtime.run_pod(port_mappings=ports)
    ):
        pods = await runtime.pods()
        pod_counts.append(len(pods))
        assert [pod.state for pod in pods] in ([], [api.SANDBOX_READY])
        await runtime.remove_all()
        assert runtime.leftovers() == {}
    assert sum(pod_counts) <= len(pod_counts) * 2 / 3


async def test_killed_while_booting_silo_of_pod(runtime: RuntimeProcess) -> None:
    def wait_until_booted() -> None:
        while runtime.lives() and not list(runtime.own.glob("sandboxes/*/shell/whole")):
            time.sleep(0.01)

    async def run_booted_pod(_: str) -> None:
        await runtime.run_pod()
        await asyncio.to_thread(wait_until_booted)

    async for _ in kill_during(runtime, prepare_nothing, run_booted_pod):
        for pod in await runtime.pods():
            forget_log(runtime)
            await goes_on(runtime, await runtime.begin(pod.id, "ticks", hex(CODE)))
        await runtime.remove_all()
        assert runtime.leftovers() == {}


async def test_killed_in_create_container(runtime: RuntimeProcess) -> None:
    async for pod in kill_during(
        runtime, runtime.run_pod, lambda pod: runtime.create(pod, "ticks")
    ):
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
    async for container in kill_during(runtime, prepared.created, prepared.start):
        await goes_on_once_started(runtime, container)
        await all_is_removed(runtime)


async def test_killed_in_stop_container(runtime: RuntimeProcess) -> None:
    async for container in kill_during(
        runtime, Prepared(runtime).deaf, lambda c: runtime.stop(c, 1)
    ):
        await can_be_stopped(runtime, container)
        await all_is_removed(runtime)


async def test_killed_in_stop_pod_sandbox(runtime: RuntimeProcess) -> None:
    async for pod in kill_during(runtime, Prepared(runtime).pod, runtime.stop_pod):
        await pod_is_stopped(runtime, pod)
        assert runtime.leftovers("sandboxes", "namespaces", "leases", "links", "processes") == {}
        await all_is_removed(runtime)


async def test_killed_in_remove_container(runtime: RuntimeProcess) -> None:
    prepared = Prepared(runtime)
    async for container in kill_during(runtime, prepared.started, prepared.remove_to_the_last):
        assert len(await runtime.containers()) <= 1
        await runtime.remove(container)
        assert await runtime.containers() == []
        assert runtime.leftovers("containers", "runc", "disks", "processes", "groups") == {}
        await runtime.remove_all()


async def test_killed_in_remove_pod_sandbox(runtime: RuntimeProcess) -> None:
    async for pod in kill_during(runtime, Prepared(runtime).pod, runtime.remove_pod):
        await runtime.remove_pod(pod)
        assert (await runtime.pods(), await runtime.containers()) == ([], [])
        assert runtime.leftovers() == {}


async def test_killed_while_prebooting_silos(warm_runtime: RuntimeProcess) -> None:
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


async def test_killed_while_claiming_prebooted_silo(warm_runtime: RuntimeProcess) -> None:
    runtime = warm_runtime

    async def wait_warm() -> str:
        await runtime.until_warm(1)
        return ""

    async def act(_: str) -> None:
        await runtime.create(await runtime.run_pod(), "ticks")

    async for _ in kill_during(runtime, wait_warm, act):
        assert len(await runtime.pods()) <= 1
        assert {c.state for c in await runtime.containers()} <= {CREATED}
        await runtime.remove_all()
        assert runtime.leftovers() == {}


async def test_container_that_exits_while_runtime_is_stopped_keeps_exit_code(
    runtime: RuntimeProcess,
) -> None:
    pod = await runtime.run_pod()
    container = await runtime.begin(pod, "ticks", hex(CODE))
    await runtime.until_said("tick 3\n")
    await runtime.end()
    (runtime.data / "go").touch()
    await runtime.until_said("ended")
    await runtime.start()
    status = await runtime.until_exited(container)
    assert (status.exit_code & 0xFFFFFFFF, status.reason) == (CODE, "Error")
    assert status.started_at < status.finished_at


def process_id(runtime: RuntimeProcess, container: str, process: str) -> int:
    """Return the PID from a PID file, or by name for wineserver and wagent.exe."""
    folder = runtime.folder_of(container)
    files = {
        "conmon": "conmon.pid",
        "wproxy": "program.pid",
        "winit": "shell/shell.pid",
    }
    if process in files:
        return int((folder / files[process]).read_text())
    rows = (row.split() for row in runtime.processes())
    return next(int(row[0]) for row in rows if row[1].endswith(process) and container in row[-1])


@pytest.mark.parametrize("while_stopped", [False, True], ids=["runtime running", "runtime stopped"])
@pytest.mark.parametrize("process", ["conmon", "wproxy", "wineserver", "winit", "wagent.exe"])
async def test_container_exits_when_one_of_its_processes_is_killed(
    runtime: RuntimeProcess, process: str, while_stopped: bool
) -> None:
    pod = await runtime.run_pod()
    container = await runtime.begin(pod, "ticks", hex(CODE))
    await runtime.until_said("tick 3\n")
    pid = process_id(runtime, container, process)
    if while_stopped:
        await runtime.end()
    os.kill(pid, signal.SIGKILL)
    if while_stopped:
        await runtime.start()
    status = await runtime.until_exited(container)
    assert status.exit_code != 0
    assert (status.exit_code, status.reason) in {(255, "Unknown"), (137, "Error")}
    assert runtime.leftovers("processes") == {}
    other = await runtime.begin(pod, "sleep", name="other")
    assert (await runtime.status(other)).state == RUNNING
    await runtime.remove(container)
    await runtime.remove_all()
    assert runtime.leftovers() == {}


async def test_killed_during_recovery(runtime: RuntimeProcess) -> None:
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
async def test_cancelled_calls_leave_nothing_incomplete(
    runtime: RuntimeProcess, seconds: float
) -> None:
    async def call_and_cancel(request: Any) -> Any:
        with contextlib.suppress(TimeoutError, WinpodError):
            return await asyncio.wait_for(runtime.call(request), seconds)
        return None

    pod = await runtime.run_pod()
    created = await call_and_cancel(runtime.container_request(pod, "ticks", hex(CODE)))
    container = created.container_id if created else await find_or_create(runtime, pod)
    await call_and_cancel(api.StartContainerRequest(container_id=container))
    if (await runtime.status(container)).state == CREATED:
        with contextlib.suppress(WinpodError):  # the cancelled call may complete just now
            await runtime.call(api.StartContainerRequest(container_id=container))
    await goes_on(runtime, container)
    await call_and_cancel(api.RemoveContainerRequest(container_id=container))
    await call_and_cancel(api.RemovePodSandboxRequest(pod_sandbox_id=pod))
    await runtime.remove_pod(pod)
    assert runtime.leftovers() == {}


async def find_or_create(runtime: RuntimeProcess, pod: str) -> str:
    """Create the container again, or find it if the cancelled call had completed.

    An incomplete container is removed, which frees its name; a completed one stays.
    """
    deadline, polls = time.monotonic() + PATIENCE, 0
    while polls < STABLE_POLLS:
        with contextlib.suppress(WinpodError):
            return await runtime.create(pod, "ticks", hex(CODE))
        states = [found.state for found in await runtime.containers()]
        assert time.monotonic() < deadline, f"the name was not released: {states}"
        polls = polls + 1 if states == [CREATED] else 0
        await asyncio.sleep(0.05)
    return str((await runtime.containers())[0].id)
