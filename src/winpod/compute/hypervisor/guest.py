"""A microVM's first process, spoken to from the host: words in, an error number and data out.

The connection is kept: QEMU can lose what a client sends just after another has left. So one that
is new is tried with a question, and thrown away where nothing answers. An answer that comes later
than anybody waited for it reaches whoever connects next, so each has the mark of its question. The
other end may have been broken into, so nothing it sends is trusted: sizes are bounded, and it has
to answer in time.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import secrets
import struct
import time
from collections.abc import Callable
from pathlib import Path

from winpod.compute.agent import short_name
from winpod.compute.errors import GuestRefused, MachineGone

MOST_BYTES = 1 << 20
PATIENCE = 80.0
"""Seconds for anything a guest does: a busy machine has no time for it for the most of them. Who
called the runtime gives up after 120."""
_PULSE, _MOST_SILENT = 10.0, 8
_TRIES = (2.0, 2.0, 4.0, 8.0, 16.0, 32.0)
_MARK = 8
_HEADER = struct.Struct("<II")
_SILENT = (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError)

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Guest:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._streams: Streams | None = None
        self._turn = asyncio.Lock()
        self._answers = 0

    async def ask(self, *words: str) -> bytes:
        """What it answers; `GuestRefused` has the error's number."""
        async with self._turn:
            try:
                async with asyncio.timeout(PATIENCE):
                    return await self._ask(self._streams or await self._connect(), words)
            except (GuestRefused, MachineGone):
                raise
            except BaseException as error:
                self._let_go()
                if isinstance(error, _SILENT):
                    raise MachineGone(f"the guest does not answer ({words[0]})") from None
                raise

    async def ask_when_seen(self, *words: str) -> bytes:
        """About a device that was just plugged in, which is there when the guest has seen it."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return await self.ask(*words)
            except GuestRefused as error:
                if error.number != errno.ENODEV or time.monotonic() > deadline:
                    raise
            await asyncio.sleep(0.01)

    async def until_up(self, seconds: float, lives: Callable[[], bool]) -> None:
        """Returns when it answers at all; nobody waits for the guest of a QEMU that has ended."""
        try:
            async with asyncio.timeout(seconds), self._turn:
                while self._streams is None:
                    try:
                        self._streams = await self._connect()
                    except MachineGone:
                        if not lives():
                            raise
                        await asyncio.sleep(0.02)
        except TimeoutError:
            raise MachineGone("the guest did not start") from None

    async def until_silent(self, pulse: float = _PULSE) -> None:
        """Returns when nobody has had an answer for that many pulses.

        They are counted, and not the time: this process may have had none itself.
        """
        asking, silent = None, 0
        try:
            while silent < _MOST_SILENT:
                before = self._answers
                if asking is None or asking.done():
                    asking = asyncio.create_task(self._try())
                await asyncio.sleep(pulse)
                silent = silent + 1 if self._answers == before else 0
        finally:
            if asking:
                asking.cancel()

    async def _try(self) -> None:
        with contextlib.suppress(MachineGone, GuestRefused):
            await self.ask("ping")

    def close(self) -> None:
        self._let_go()

    async def _connect(self) -> Streams:
        for seconds in _TRIES:
            try:
                with short_name(self._path) as name:
                    streams = await asyncio.open_unix_connection(name, limit=4 * MOST_BYTES)
            except OSError as error:
                raise MachineGone(f"the microVM is gone: {error.strerror}") from None
            try:
                async with asyncio.timeout(seconds):
                    await self._ask(streams, ("ping",))
            except _SILENT:
                streams[1].close()
                continue
            self._streams = streams
            return streams
        raise MachineGone("the guest does not answer")

    def _let_go(self) -> None:
        if self._streams:
            self._streams[1].close()
            self._streams = None

    async def _ask(self, streams: Streams, words: tuple[str, ...]) -> bytes:
        reader, writer = streams
        payload = b"".join(os.fsencode(word) + b"\0" for word in words)
        mark = secrets.token_bytes(_MARK)
        writer.write(struct.pack("<I", len(payload)) + mark + payload)
        await writer.drain()
        await reader.readuntil(mark)
        size, error = _HEADER.unpack(await reader.readexactly(_HEADER.size))
        if size > MOST_BYTES:
            raise EOFError
        data = await reader.readexactly(size)
        self._answers += 1
        if error:
            raise GuestRefused(error, words)
        return data
