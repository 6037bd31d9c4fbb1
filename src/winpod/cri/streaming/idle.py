"""Ends what has seen no traffic for too long: a forgotten session does not stay for ever."""

import asyncio
from types import TracebackType
from typing import Self


class IdleWatch:
    """`async with`: TimeoutError for the block when nothing touched it for `limit` seconds."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._timeout = asyncio.timeout(None)
        self._entered = False
        self._armed_for = 0.0

    async def __aenter__(self) -> Self:
        await self._timeout.__aenter__()
        self._entered = True
        self.touch()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._entered = False
        await self._timeout.__aexit__(kind, error, traceback)

    def touch(self) -> None:
        """There was traffic. Cheap: the clock is set anew only when a good part has run off."""
        if not self._entered or self._timeout.expired():
            return
        until = asyncio.get_running_loop().time() + self._limit
        if until - self._armed_for > self._limit / 16:
            self._armed_for = until
            self._timeout.reschedule(until)
