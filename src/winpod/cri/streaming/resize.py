"""Terminal sizes from the client: JSON objects one after the other, cut anywhere."""

import asyncio
import contextlib
import json

from winpod.cri.streaming.api import ByteReader, Size

MAX_LENGTH = 256
MAX_SIZE = 0xFFFF


class NotASize(Exception):
    """The client sent something else."""


class Sizes:
    """Iterates over the sizes of a terminal. Who looks late sees only the newest: it has no other.

    Feed it with `follow`; it ends when that does.
    """

    def __init__(self) -> None:
        self._newest: Size | None = None
        self._over = False
        self._changed = asyncio.Event()

    def __aiter__(self) -> "Sizes":
        return self

    async def __anext__(self) -> Size:
        while self._newest is None:
            if self._over:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        size, self._newest = self._newest, None
        return size

    def end(self) -> None:
        self._over = True
        self._changed.set()

    async def follow(self, stream: ByteReader) -> None:
        """Takes sizes from `stream` to its end, or to the first thing that is none."""
        decoder = SizeDecoder()
        with contextlib.suppress(ConnectionError, NotASize):
            while data := await stream.read():
                for size in decoder.feed(data):
                    self._newest = size
                    self._changed.set()
        self.end()


class SizeDecoder:
    def __init__(self) -> None:
        self._pending = b""

    def feed(self, data: bytes) -> list[Size]:
        """The sizes these bytes complete; one below 1 counts for nothing."""
        self._pending += data
        sizes: list[Size] = []
        while b"}" in self._pending[:MAX_LENGTH]:
            text, brace, self._pending = self._pending.partition(b"}")
            size = _size(text + brace)
            if size.width >= 1 and size.height >= 1:
                sizes.append(size)
        if len(self._pending) >= MAX_LENGTH:
            raise NotASize("no size is this long")
        return sizes


def _size(text: bytes) -> Size:
    try:
        value = json.loads(text)
        width, height = value["Width"], value["Height"]
    except (ValueError, TypeError, KeyError) as error:
        raise NotASize("not a width and a height") from error
    if not (isinstance(width, int) and isinstance(height, int)):
        raise NotASize("not a width and a height in characters")
    return Size(min(width, MAX_SIZE), min(height, MAX_SIZE))
