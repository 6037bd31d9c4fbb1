"""Runtimes that are killed during a call, and assertions about the restarted runtime.

Each run is killed at a later effect of the call.
"""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

from tests.support.e2e.runtime_process import RuntimeProcess
from winpod.cri.proto import api_pb2 as api
from winpod.errors import WinpodError

CODE = 0xC0000123
KILLED = 0xC000013A
_MIN_EFFECTS = 4


async def deaths(
    runtime: RuntimeProcess,
    prepare: Callable[[], Awaitable[str]],
    act: Callable[[str], Awaitable[Any]],
    places: Callable[[int], Iterable[int]],
) -> AsyncIterator[str]:
    """Kill the runtime during `act`, each time at a later effect; yield the object after a restart.

    `places` selects effects from their total number.
    """
    thing = await prepare()
    runtime.die_at(10**9)
    await act(thing)
    total = runtime.effects()
    assert total >= _MIN_EFFECTS
    await runtime.remove_all()
    for number in sorted(set(places(total))):
        thing = await prepare()
        runtime.die_at(number)
        with contextlib.suppress(WinpodError):
            await act(thing)
        await runtime.restart()
        print(f"killed at effect {number} of {total}")
        yield thing


async def ticks_on(runtime: RuntimeProcess, name: str = "app") -> None:
    ticks = int(re.findall(r"tick (\d+)", await runtime.until_said("tick ", name))[-1])
    await runtime.until_said(f"tick {ticks + 3}\n", name)


async def goes_on(runtime: RuntimeProcess, container: str) -> None:
    """Assert that the program runs, its log is complete, and it exits with its own code."""
    await ticks_on(runtime)
    (runtime.data / "go").touch()
    seen = await runtime.until_exited(container)
    (runtime.data / "go").unlink()
    assert seen.exit_code & 0xFFFFFFFF == CODE
    log_is_whole(runtime)


def log_is_whole(runtime: RuntimeProcess, name: str = "app") -> None:
    lines = runtime.said(name).splitlines()
    assert lines == ["begun", *(f"tick {i}" for i in range(1, len(lines) - 1)), "ended"]


def forget_log(runtime: RuntimeProcess) -> None:
    (runtime.folder / "logs/app.log").unlink(missing_ok=True)


class Prepared:
    """Objects that calls are tested on."""

    def __init__(self, runtime: RuntimeProcess) -> None:
        self._runtime = runtime

    async def created(self) -> str:
        """Create a container."""
        forget_log(self._runtime)
        return await self._runtime.create(await self._runtime.run_pod(), "ticks", hex(CODE))

    async def started(self) -> str:
        """Start a container."""
        return await self._runtime.begin(await self._runtime.run_pod(), "sleep")

    async def deaf(self) -> str:
        """Start a container that ignores the stop event."""
        forget_log(self._runtime)
        container = await self._runtime.begin(await self._runtime.run_pod(), "deaf")
        await self._runtime.until_said("deaf")
        return container

    async def pod(self) -> str:
        """Run a pod with a running container."""
        pod = await self._runtime.run_pod()
        await self._runtime.begin(pod, "sleep")
        return pod

    async def remove_to_the_last(self, container: str) -> None:
        await self._runtime.remove(container)
        await asyncio.to_thread(self._runtime.until_cleared)

    async def start(self, container: str) -> None:
        await self._runtime.call(api.StartContainerRequest(container_id=container))


async def goes_on_once_started(runtime: RuntimeProcess, container: str) -> None:
    """Assert that the container is either created or running, and works once started."""
    seen = await runtime.status(container)
    assert seen.state in (api.CONTAINER_CREATED, api.CONTAINER_RUNNING)
    if seen.state == api.CONTAINER_CREATED:
        assert runtime.said() == ""
        await Prepared(runtime).start(container)
    await goes_on(runtime, container)


async def can_be_stopped(runtime: RuntimeProcess, container: str) -> None:
    """Assert that the container is running or exited, and is reported as killed after a stop."""
    running = (api.CONTAINER_RUNNING, api.CONTAINER_EXITED)
    assert (await runtime.status(container)).state in running
    await runtime.stop(container)
    await was_killed(runtime, container)


async def was_killed(runtime: RuntimeProcess, container: str) -> None:
    seen = await runtime.status(container)
    assert (seen.state, seen.exit_code & 0xFFFFFFFF) == (api.CONTAINER_EXITED, KILLED)


async def pod_is_stopped(runtime: RuntimeProcess, pod: str) -> None:
    await runtime.stop_pod(pod)
    assert [pod.state for pod in await runtime.pods()] == [api.SANDBOX_NOTREADY]
    (container,) = await runtime.containers()
    await was_killed(runtime, container.id)


async def all_is_removed(runtime: RuntimeProcess) -> None:
    await runtime.remove_all()
    assert runtime.leftovers() == {}
