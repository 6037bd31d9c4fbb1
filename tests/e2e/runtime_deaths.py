"""A runtime that dies all along a call, and what must be true of the next one.

It dies at an effect of the call, another one at a later effect.
"""

import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

from tests.e2e.runtime_process import RuntimeProcess

from winpod.windows.errors import WinpodError

CODE = 0xC0000123
KILLED = 0xC000013A
_FEWEST = 4


async def deaths(
    runtime: RuntimeProcess,
    prepare: Callable[[], Awaitable[str]],
    act: Callable[[str], Awaitable[Any]],
    places: Callable[[int], Iterable[int]],
) -> AsyncIterator[str]:
    """Die in the act, each time some effects later; gives what was prepared, after the restart.

    `places` chooses among so many effects.
    """
    thing = await prepare()
    runtime.die_at(10**9)
    await act(thing)
    total = runtime.effects()
    assert total >= _FEWEST
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
    """The one program of a container runs, its log is whole, and its exit code its own."""
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
