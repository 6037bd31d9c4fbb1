"""API client that fails after some changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

from tests.support.memory_api import MemoryApi


class DyingApi(MemoryApi):
    """API client of one operator process with a shared store; fails after its last write."""

    def __init__(self, store: MemoryApi, writes: int) -> None:
        super().__init__()
        self.store = store
        self.writes_left = writes
        self.died = asyncio.Event()

    async def request(self, method: str, path: str, body: object = None, **more: Any) -> bytes:
        await self._alive()
        answer = await self.store.request(method, path, body, **more)
        if method != "GET":
            self.writes_left -= 1
            if self.writes_left == 0:
                self.died.set()
        await self._alive()
        return answer

    async def watch(self, kind: Any, path: str, params: Mapping[str, str]) -> AsyncIterator[Any]:
        async for change in self.store.watch(kind, path, params):
            await self._alive()
            yield change

    async def _alive(self) -> None:
        if self.died.is_set():
            await asyncio.Future()
