"""An upgrade's progress on the terminal, until it is over or people have to do something."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
from rich.progress import TimeElapsedColumn as Elapsed

from winpod.cluster.upgrade.progress import BLOCKED, PENDING, RUNNING, is_settled
from winpod.cluster.upgrade.resource import UPGRADES, Status, WindowsUpgrade
from winpod.node.api import ApiServer
from winpod.windows.errors import NotFound, Unavailable

_LOOK_SECONDS = 1.0
_OPERATOR_SECONDS = 30.0
_STOP_SECONDS = 10.0


async def follow(api: ApiServer, name: str) -> WindowsUpgrade:
    """Until it is done, undone, or stopped by something that only people can change.

    What stopped it before may have changed just now, so a stop has to last.
    """
    waited = stopped = 0.0
    with _shown() as show:
        while upgrade := await api.get(WindowsUpgrade, f"{UPGRADES}/{name}"):
            status = upgrade.status
            is_heard = status.observed_generation == upgrade.metadata.generation
            show(status)
            stopped = stopped + _LOOK_SECONDS if is_heard and status.phase == BLOCKED else 0.0
            if is_heard and (is_settled(upgrade) or stopped > _STOP_SECONDS):
                return upgrade
            if not is_heard and waited >= _OPERATOR_SECONDS:
                raise Unavailable(
                    f"no operator has taken up the upgrade {name} for {waited:.0f} s.",
                    "It goes on as soon as one runs: winpod operator.",
                )
            waited = 0.0 if is_heard else waited + _LOOK_SECONDS
            await asyncio.sleep(_LOOK_SECONDS)
    raise NotFound(f"the upgrade {name} was deleted, and what it had done was undone.")


async def until_gone(api: ApiServer, name: str) -> None:
    """One that is over and was deleted goes as soon as the operator lets it go."""
    for _ in range(round(_OPERATOR_SECONDS / _LOOK_SECONDS)):
        if await api.get(WindowsUpgrade, f"{UPGRADES}/{name}") is None:
            return
        await asyncio.sleep(_LOOK_SECONDS)
    raise Unavailable(
        f"the upgrade {name} is over, and no operator lets it go.",
        "It goes as soon as one runs: winpod operator.",
    )


@contextmanager
def _shown() -> Iterator[Callable[[Status], None]]:
    """A bar on a terminal, a line for each change elsewhere; both on stderr."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines().show
        return
    columns = (
        SpinnerColumn(),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        Elapsed(),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("waiting for the operator", total=None)

        def show(status: Status) -> None:
            done = sum(step.state not in (PENDING, RUNNING) for step in status.steps)
            told = f"{status.phase}: {status.message}" if status.phase else "waiting"
            total = len(status.steps) or None
            bar.update(task, completed=done, total=total, description=told)

        yield show


class _Lines:
    def __init__(self) -> None:
        self._last = ""

    def show(self, status: Status) -> None:
        line = f"{status.phase}: {status.message}"
        if status.phase and line != self._last:
            print(f"winpod: {line}", file=sys.stderr, flush=True)
            self._last = line
