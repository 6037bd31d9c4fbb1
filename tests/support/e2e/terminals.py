"""Programs that run in a terminal."""

import asyncio
import fcntl
import os
import pty
import re
import select
import struct
import termios
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Terminal:
    """The user's side of a terminal."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._seen = ""

    def type(self, text: str) -> None:
        os.write(self._descriptor, text.encode())

    async def until(self, words: str) -> None:
        while words not in self._seen:
            data = await asyncio.to_thread(os.read, self._descriptor, 65536)
            self._seen += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", data.decode(errors="replace"))
        self._seen = self._seen.partition(words)[2]


@asynccontextmanager
async def terminal() -> AsyncIterator[tuple[Terminal, int]]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    try:
        yield Terminal(ours), theirs
    finally:
        os.close(ours)
        os.close(theirs)


def read_until(descriptor: int, wanted: bytes) -> bytes:
    seen = b""
    while wanted not in seen:
        assert select.select([descriptor], [], [], 300)[0], seen
        data = os.read(descriptor, 4096)
        assert data, seen
        seen += data
    return seen
