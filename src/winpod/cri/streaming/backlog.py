"""Bytes that came from a client and wait to be read, counted so that they stay few.

No client of the CRI heeds SPDY's windows, and WebSocket has none: back pressure is to stop
reading the connection. A `Backlog` counts for one connection; its `Inbox`es hold the bytes of its
streams.
"""

import asyncio
from collections import deque

LIMIT = 1024 * 1024


class Backlog:
    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._size = 0
        self._changed = asyncio.Event()

    def change(self, count: int) -> None:
        self._size += count
        self._changed.set()

    @property
    def full(self) -> bool:
        return self._size >= self._limit

    async def shrink(self, patience: float) -> bool:
        """Waits until there is room, at most `patience` seconds; whether there is."""
        try:
            async with asyncio.timeout(patience):
                while self.full:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True


class Inbox:
    """What one stream received: read by one reader, in order, up to an end or a failure."""

    def __init__(self, backlog: Backlog) -> None:
        self._backlog = backlog
        self._pieces: deque[bytes] = deque()
        self._changed = asyncio.Event()
        self._over = False
        self._failure: ConnectionError | None = None

    def put(self, data: bytes) -> None:
        """Keeps `data` for the reader; drops it where there will be none."""
        if data and not self._over:
            self._pieces.append(data)
            self._backlog.change(len(data))
            self._changed.set()

    def end(self) -> None:
        """Nothing more comes; what waits can still be read."""
        self._over = True
        self._changed.set()

    def fail(self, failure: ConnectionError) -> None:
        """Nothing more comes, and what waits is worth nothing."""
        if self._failure is None:
            self._failure = failure
            self.discard()

    def discard(self) -> None:
        """Nobody will read: drops what waits and what comes."""
        self.end()
        self._backlog.change(-sum(map(len, self._pieces)))
        self._pieces.clear()

    async def read(self, limit: int) -> bytes:
        """Between 1 and `limit` bytes; none at the end. Raises what it failed with."""
        while not self._pieces:
            if self._failure is not None:
                raise self._failure
            if self._over:
                return b""
            self._changed.clear()
            await self._changed.wait()
        piece = self._pieces.popleft()
        if len(piece) > limit:
            self._pieces.appendleft(piece[limit:])
            piece = piece[:limit]
        self._backlog.change(-len(piece))
        return piece
