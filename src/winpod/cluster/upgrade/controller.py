"""Upgrades in their turn: the leading operator does one at a time, the oldest first.

Where one stands is in the resource's status and nowhere else, and it is read before each step. So
whoever leads next goes on where the last one was, at whatever moment that one died.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from datetime import datetime

from winpod.cluster.upgrade import progress
from winpod.cluster.upgrade.advancing import Advancing
from winpod.cluster.upgrade.resource import UPGRADES, Status, WindowsUpgrade
from winpod.cluster.upgrade.survey import Survey
from winpod.node.api import ApiServer, Refused
from winpod.node.event_series import Event
from winpod.node.following import Following
from winpod.node.means import utc_now
from winpod.windows.errors import Unavailable

_POLL_SECONDS = 2.0
_REST = 4.0
"""How many times as long as a look took, nothing is looked at: large clusters take long."""
_log = logging.getLogger(__name__)


class Upgrades:
    def __init__(
        self,
        api: ApiServer,
        survey: Survey,
        tell: Callable[[Event], None],
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._api = api
        self._advancing = Advancing(api, survey, tell, clock)
        self._known: dict[str, WindowsUpgrade] = {}
        self._changed = asyncio.Event()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(Following(self._api, WindowsUpgrade, UPGRADES, self).run())
            group.create_task(self._work())

    async def listed(self, objects: Sequence[WindowsUpgrade]) -> None:
        self._known = {upgrade.name: upgrade for upgrade in objects}
        self._changed.set()

    def changed(self, obj: WindowsUpgrade) -> None:
        """What was asked has changed, to be deleted too; its status is written here."""
        known = self._known.get(obj.name)
        if known is None or known.metadata.generation != obj.metadata.generation:
            self._changed.set()
        self._known[obj.name] = obj

    def deleted(self, obj: WindowsUpgrade) -> None:
        self._known.pop(obj.name, None)

    async def _work(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            while name := self._next():
                began = time.monotonic()
                if not await self._advance(name):
                    took = time.monotonic() - began
                    await self._wait(max(_POLL_SECONDS, _REST * took))

    def _next(self) -> str:
        """An upgrade that was begun goes before one that was not."""
        waiting = [u for u in self._known.values() if not progress.is_over(u)]
        waiting.sort(key=lambda u: (not u.status.phase, u.metadata.creation_timestamp, u.name))
        return waiting[0].name if waiting else ""

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
                self._changed.clear()
        except TimeoutError:
            return

    async def _advance(self, name: str) -> bool:
        """Whether there may be more to do at once."""
        try:
            upgrade = await self._read(name)
            if upgrade is None or progress.is_over(upgrade):
                return True
            return await self._advancing.go_on(upgrade)
        except Refused as error:
            if error.is_conflict or error.is_missing:  # somebody was faster: it is read again
                return True
            if known := self._known.get(name):
                self._advancing.tell(known, "UpgradeWaits", error.sentence, "Warning")
            return False
        except Unavailable as error:
            _log.info("the upgrade %s waits: %s", name, error)
            self._advancing.forget_time()
            return False

    async def _read(self, name: str) -> WindowsUpgrade | None:
        """None where it has gone, or another of its name has come while it was read."""
        asked = self._known[name].metadata.uid
        upgrade = await self._api.get(WindowsUpgrade, f"{UPGRADES}/{name}")
        known = self._known.get(name)
        if known is None or known.metadata.uid != asked:
            return None
        if upgrade is None:
            del self._known[name]
            return None
        self._known[name] = _as_saved(upgrade)
        return upgrade


def _as_saved(upgrade: WindowsUpgrade) -> WindowsUpgrade:
    """What decides whose turn it is, as it was read: what is written next may not get through."""
    return WindowsUpgrade(upgrade.metadata, upgrade.spec, Status(upgrade.status.phase))
