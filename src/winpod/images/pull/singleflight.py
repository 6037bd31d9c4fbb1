"""Deduplication of layer downloads within a process, and progress reporting of pulls."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum

LOGGER = logging.getLogger("winpod.images.pull.puller")
_LOG_SECONDS = 10.0


class LayerState(StrEnum):
    BASE = "base layer, not pulled"
    PRESENT = "already here"
    WAITING = "waiting"
    DOWNLOADING = "downloading"
    UNPACKING = "unpacking"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class LayerProgress:
    digest: str
    state: LayerState
    done: int
    total: int


Progress = Callable[[LayerProgress], None]


def ignore_progress(_: LayerProgress) -> None:
    pass


class ProgressLog:
    """Forwards the progress of one image, and logs state changes and every ten seconds."""

    def __init__(self, name: str, callback: Progress) -> None:
        self._name = name
        self._callback = callback
        self._logged: dict[str, tuple[LayerState | None, float]] = {}

    def report(self, progress: LayerProgress) -> None:
        state, logged_at = self._logged.get(progress.digest, (None, 0.0))
        now = time.monotonic()
        if progress.state is not state or now - logged_at > _LOG_SECONDS:
            self._logged[progress.digest] = (progress.state, now)
            LOGGER.info(
                "%s: %s %s (%d of %d bytes)",
                self._name,
                progress.digest,
                progress.state,
                progress.done,
                progress.total,
            )
        self._callback(progress)


Key = tuple[str, str]


class SingleFlight:
    def __init__(self) -> None:
        self._running: dict[Key, _SharedTask] = {}

    async def run(
        self, key: Key, work: Callable[[Progress], Awaitable[None]], progress: Progress
    ) -> bool:
        """Run the work for a key, or wait for the run of another caller.

        Return False if the run of another caller failed. That does not imply that this caller's
        work would fail: the other one may have been cancelled or have had wrong credentials.
        """
        shared = self._running.get(key)
        is_own = shared is None
        if shared is None:
            shared = self._running[key] = _SharedTask()
            shared.task = asyncio.create_task(self._run(key, shared, work))
        shared.waiters.append(progress)
        try:
            await asyncio.shield(shared.task)
        except Exception:
            if is_own:
                raise
            return False
        finally:
            shared.waiters.remove(progress)
            if not shared.waiters:
                self._remove(key, shared)
                shared.task.cancel()
                await asyncio.wait([shared.task])
        return True

    async def _run(
        self, key: Key, shared: _SharedTask, work: Callable[[Progress], Awaitable[None]]
    ) -> None:
        try:
            await work(shared.report)
        finally:
            self._remove(key, shared)

    def _remove(self, key: Key, shared: _SharedTask) -> None:
        """Stop offering the run to new callers."""
        if self._running.get(key) is shared:
            del self._running[key]


@dataclass(slots=True)
class _SharedTask:
    """A running task and the progress callbacks of its waiters."""

    waiters: list[Progress] = field(default_factory=list)
    task: asyncio.Task[None] = field(init=False)

    def report(self, progress: LayerProgress) -> None:
        for callback in self.waiters:
            callback(progress)
