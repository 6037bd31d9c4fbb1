"""Shells that are booted for a sandbox before its first container is known.

Where none waits, a boot can begin as soon as the sandbox has its network namespace, and go on while
that is connected and the image pulled. Who does not need it gives it up.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from winpod.compute.shells import Shells
from winpod.windows.errors import WinpodError

_log = logging.getLogger(__name__)


class Ahead:
    """Known by the place where the shell will be."""

    def __init__(self, shells: Shells) -> None:
        self._shells = shells
        self._begun: dict[Path, asyncio.Task[None]] = {}

    def begin(self, place: Path, netns: Path) -> None:
        self._begun[place] = asyncio.create_task(self._begin(place, netns))
        self._begun[place].add_done_callback(lambda _: self._begun.pop(place))

    async def _begin(self, place: Path, netns: Path) -> None:
        """Where that fails, the container that needs it tries again, and tells."""
        try:
            await self._shells.begin(place, netns=netns)
        except (WinpodError, OSError) as error:
            _log.warning("a shell could not be booted ahead of its container: %s", error)

    async def until_there(self, place: Path) -> None:
        """Or has failed, or was never begun."""
        if begun := self._begun.get(place):
            await asyncio.wait((begun,))

    async def give_up(self, place: Path) -> None:
        """Nothing of one that was still on its way is left."""
        if begun := self._begun.get(place):
            begun.cancel()
            await asyncio.wait((begun,))

    async def close(self) -> None:
        for place in list(self._begun):
            await self.give_up(place)
