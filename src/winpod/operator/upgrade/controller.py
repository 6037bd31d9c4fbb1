"""Reconciles WindowsUpgrade resources in the leader, one at a time, the oldest first.

All progress is in the resource's status, which is read before each step. So the next leader
continues where the previous one stopped, at whatever moment it died.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from winpod.clock import Clock, utc_now
from winpod.errors import Unavailable
from winpod.k8s.client import ApiClient, ApiError
from winpod.k8s.event_recorder import Event
from winpod.k8s.informer import Reflector
from winpod.operator.upgrade import progress
from winpod.operator.upgrade.reconciler import UpgradeReconciler
from winpod.operator.upgrade.resource import UPGRADES, UpgradeStatus, WindowsUpgrade
from winpod.operator.upgrade.snapshot import SnapshotReader

_POLL_SECONDS = 2.0
_IDLE_FACTOR = 4.0
"""Idle time after a reconciliation, as a multiple of its duration: large clusters take long."""
_log = logging.getLogger(__name__)


class UpgradeController:
    def __init__(
        self,
        api: ApiClient,
        snapshots: SnapshotReader,
        record_event: Callable[[Event], None],
        clock: Clock = utc_now,
    ) -> None:
        self._api = api
        self._reconciler = UpgradeReconciler(api, snapshots, record_event, clock)
        self._upgrades: dict[str, WindowsUpgrade] = {}
        self._changed = asyncio.Event()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(Reflector(self._api, WindowsUpgrade, UPGRADES, self).run())
            group.create_task(self._work())

    async def on_list(self, objects: Sequence[WindowsUpgrade]) -> None:
        self._upgrades = {upgrade.name: upgrade for upgrade in objects}
        self._changed.set()

    def on_change(self, obj: WindowsUpgrade) -> None:
        """Wake up if the spec changed or deletion was requested; the status is our own."""
        cached = self._upgrades.get(obj.name)
        if cached is None or cached.metadata.generation != obj.metadata.generation:
            self._changed.set()
        self._upgrades[obj.name] = obj

    def on_delete(self, obj: WindowsUpgrade) -> None:
        self._upgrades.pop(obj.name, None)

    async def _work(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            while name := self._next():
                started = time.monotonic()
                if not await self._reconcile(name):
                    duration = time.monotonic() - started
                    await self._wait(max(_POLL_SECONDS, _IDLE_FACTOR * duration))

    def _next(self) -> str:
        """Return the name of the next upgrade: started ones first, then the oldest."""
        waiting = [u for u in self._upgrades.values() if not progress.is_finished(u)]
        waiting.sort(key=lambda u: (not u.status.phase, u.metadata.creation_timestamp, u.name))
        return waiting[0].name if waiting else ""

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
                self._changed.clear()
        except TimeoutError:
            return

    async def _reconcile(self, name: str) -> bool:
        """Reconcile; return whether to continue without waiting."""
        try:
            upgrade = await self._read(name)
            if upgrade is None or progress.is_finished(upgrade):
                return True
            return await self._reconciler.reconcile(upgrade)
        except ApiError as error:
            if error.is_conflict or error.is_not_found:  # changed concurrently: read it again
                return True
            if cached := self._upgrades.get(name):
                self._reconciler.record_event(cached, "UpgradeWaits", error.message, "Warning")
            return False
        except Unavailable as error:
            _log.info("Upgrade %s is waiting: %s", name, error, extra={"upgrade": name})
            self._reconciler.reset_timers()
            return False

    async def _read(self, name: str) -> WindowsUpgrade | None:
        """Read the upgrade; None if it was deleted or recreated in the meantime."""
        uid = self._upgrades[name].metadata.uid
        upgrade = await self._api.get(WindowsUpgrade, f"{UPGRADES}/{name}")
        cached = self._upgrades.get(name)
        if cached is None or cached.metadata.uid != uid:
            return None
        if upgrade is None:
            del self._upgrades[name]
            return None
        self._upgrades[name] = _without_status(upgrade)
        return upgrade


def _without_status(upgrade: WindowsUpgrade) -> WindowsUpgrade:
    """Keep only what decides the order, as read: the next status update may fail."""
    return WindowsUpgrade(upgrade.metadata, upgrade.spec, UpgradeStatus(upgrade.status.phase))
