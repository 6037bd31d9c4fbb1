"""Connection helpers of the streaming server: receive buffers, disconnects and idle timeouts.

CRI clients ignore SPDY flow control, and WebSocket has none, so back pressure means to stop reading
from the connection. A `ReceiveWindow` counts the unread bytes of a connection; a `StreamBuffer`
holds those of a stream.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

LIMIT = 1024 * 1024


class ReceiveWindow:
    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._size = 0
        self._changed = asyncio.Event()

    def adjust(self, count: int) -> None:
        self._size += count
        self._changed.set()

    @property
    def full(self) -> bool:
        return self._size >= self._limit

    async def wait_for_space(self, seconds: float) -> bool:
        """Wait for buffer space, at most `seconds`. Returns whether there is any."""
        try:
            async with asyncio.timeout(seconds):
                while self.full:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True


class StreamBuffer:
    """Received bytes of a stream, for a single reader."""

    def __init__(self, backlog: ReceiveWindow) -> None:
        self._backlog = backlog
        self._chunks: deque[bytes] = deque()
        self._changed = asyncio.Event()
        self._finished = False
        self._failure: ConnectionError | None = None

    def put(self, data: bytes) -> None:
        """Buffer `data` for the reader; drop it if the stream is finished."""
        if data and not self._finished:
            self._chunks.append(data)
            self._backlog.adjust(len(data))
            self._changed.set()

    def finish(self) -> None:
        """Mark the end of the stream. Buffered data can still be read."""
        self._finished = True
        self._changed.set()

    def fail(self, failure: ConnectionError) -> None:
        """Fail the stream and drop buffered data."""
        if self._failure is None:
            self._failure = failure
            self.discard()

    def discard(self) -> None:
        """Drop buffered and future data: there is no reader."""
        self.finish()
        self._backlog.adjust(-sum(map(len, self._chunks)))
        self._chunks.clear()

    async def read(self, limit: int) -> bytes:
        """Read 1 to `limit` bytes; empty at the end. Raises the failure, if any."""
        while not self._chunks:
            if self._failure is not None:
                raise self._failure
            if self._finished:
                return b""
            self._changed.clear()
            await self._changed.wait()
        chunk = self._chunks.popleft()
        if len(chunk) > limit:
            self._chunks.appendleft(chunk[limit:])
            chunk = chunk[:limit]
        self._backlog.adjust(-len(chunk))
        return chunk


T = TypeVar("T")

LINGER = 60.0
"""Seconds that a client may take to close the connection after the session ended."""


class ClientGone(ConnectionError):
    """The client closed the connection, or it broke."""


class Connection(Protocol):
    async def wait_disconnected(self) -> None:
        """Wait until the client disconnects."""

    async def finish(self) -> None:
        """Close the connection after the client has received all data."""


async def cancel_on_disconnect(connection: Connection, work: Coroutine[Any, Any, T]) -> T | None:
    """Run `work`; if the client disconnects first, cancel it and return None."""
    task = asyncio.create_task(work)
    disconnected = asyncio.create_task(connection.wait_disconnected())
    try:
        await asyncio.wait((task, disconnected), return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        disconnected.cancel()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


class IdleWatch:
    """Context manager that raises TimeoutError if not touched for `limit` seconds."""

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
        """Record activity. Cheap: the timer is rescheduled only after a part of it has elapsed."""
        if not self._entered or self._timeout.expired():
            return
        deadline = asyncio.get_running_loop().time() + self._limit
        if deadline - self._armed_for > self._limit / 16:
            self._armed_for = deadline
            self._timeout.reschedule(deadline)
