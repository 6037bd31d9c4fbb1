"""What was removed and still takes room of the machine: nobody waits while it is given back.

To remove a directory is to rename it into this place, so a crash loses none of it: what is there at
the next start is cleared then. One is cleared after the other, beside everything else that runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from shutil import disk_usage

from winpod.windows.errors import WinpodError

_LITTLE = 64 << 20
_log = logging.getLogger(__name__)


class Leavings:
    """`clear` removes one directory, with all that is mounted or counted by it."""

    def __init__(self, place: Path, clear: Callable[[Path], Awaitable[None]]) -> None:
        self._place = place
        self._clear = clear
        self._clearing: asyncio.Task[None] | None = None

    async def open(self) -> None:
        self._place.mkdir(parents=True, exist_ok=True)
        self._begin()
        await self.close()

    async def take(self, folder: Path) -> None:
        """Nothing is fine too. On a disk that is almost full, somebody waits for the room."""
        self._move(folder)
        self._begin()
        if disk_usage(self._place).free < _LITTLE:
            await self.close()

    def _move(self, folder: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            folder.rename(self._place / folder.name)

    def _begin(self) -> None:
        if self._clearing is None or self._clearing.done():
            self._clearing = asyncio.create_task(self._clear_all())

    async def close(self) -> None:
        if self._clearing:
            await asyncio.shield(self._clearing)

    async def _clear_all(self) -> None:
        failed: set[Path] = set()
        while left := set(self._place.iterdir()) - failed:
            for folder in left:
                try:
                    await self._clear(folder)
                except (WinpodError, OSError) as error:
                    failed.add(folder)
                    _log.warning("%s is left for the next start: %s", folder, error)
