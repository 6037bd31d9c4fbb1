"""Work that several pulls of a process have in common, done once for all who wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from winpod.images.pull_progress import LayerProgress, Progress

Key = tuple[str, str]


class Sharing:
    def __init__(self) -> None:
        self._running: dict[Key, _Running] = {}

    async def share(
        self, key: Key, work: Callable[[Progress], Awaitable[None]], progress: Progress
    ) -> bool:
        """Do work that others may be doing: wait for theirs, or do it for all.

        False where it was theirs and failed, which says nothing of one's own: they may have gone
        away, or not have been let in.
        """
        shared = self._running.get(key)
        is_own = shared is None
        if shared is None:
            shared = self._running[key] = _Running()
            shared.task = asyncio.create_task(self._run(key, shared, work))
        shared.waiting.append(progress)
        try:
            await asyncio.shield(shared.task)
        except Exception:
            if is_own:
                raise
            return False
        finally:
            shared.waiting.remove(progress)
            if not shared.waiting:
                self._forget(key, shared)
                shared.task.cancel()
                await asyncio.wait([shared.task])
        return True

    async def _run(
        self, key: Key, shared: _Running, work: Callable[[Progress], Awaitable[None]]
    ) -> None:
        try:
            await work(shared.report)
        finally:
            self._forget(key, shared)

    def _forget(self, key: Key, shared: _Running) -> None:
        """Let nobody else wait for it."""
        if self._running.get(key) is shared:
            del self._running[key]


@dataclass(slots=True)
class _Running:
    """A layer on its way, and those who wait for it."""

    waiting: list[Progress] = field(default_factory=list)
    task: asyncio.Task[None] = field(init=False)

    def report(self, progress: LayerProgress) -> None:
        for one in self.waiting:
            one(progress)
