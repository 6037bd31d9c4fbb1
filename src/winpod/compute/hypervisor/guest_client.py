"""Client of a microVM's first process (wguest): words in, an errno and data out.

The connection is kept open, because QEMU can lose what a client sends right after another one
disconnected. A new connection is tested with a ping, and dropped if there is no answer. An answer
that is later than its timeout reaches the next connection, so answers repeat the random mark of
their request. The guest may be compromised, so nothing it sends is trusted: sizes are bounded, and
answers have to be in time.
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

from winpod.compute.agent.client import short_socket_path
from winpod.compute.agent.protocol import GUEST_MARK_SIZE, GUEST_MAX_BYTES, GuestCommand
from winpod.compute.errors import GuestError, MicroVmGone

GUEST_TIMEOUT = 80.0
"""Timeout in seconds for anything a guest does. On a busy host most of it is waiting for CPU time.
CRI clients time out after 120 seconds."""
_PING_SECONDS, _MAX_MISSED = 10.0, 8
_CONNECT_TIMEOUTS = (2.0, 2.0, 4.0, 8.0, 16.0, 32.0)
_HEADER = struct.Struct("<II")
_NO_ANSWER = (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError)

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class GuestClient:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._streams: Streams | None = None
        self._lock = asyncio.Lock()
        self._answers = 0

    async def request(self, *command: str) -> bytes:
        """Run a command in the guest and return its data. Raises GuestError with the errno."""
        async with self._lock:
            try:
                async with asyncio.timeout(GUEST_TIMEOUT):
                    return await self._exchange(self._streams or await self._connect(), command)
            except (GuestError, MicroVmGone):
                raise
            except BaseException as error:
                self._disconnect()
                if isinstance(error, _NO_ANSWER):
                    raise MicroVmGone(f"the guest does not answer ({command[0]})") from None
                raise

    async def request_when_plugged(self, *command: str) -> bytes:
        """Run a command on a hotplugged device; retry until the guest has detected it."""
        deadline = time.monotonic() + GUEST_TIMEOUT
        while True:
            try:
                return await self.request(*command)
            except GuestError as error:
                if error.number != errno.ENODEV or time.monotonic() > deadline:
                    raise
            await asyncio.sleep(0.01)

    async def wait_ready(self, seconds: float, is_running: Callable[[], bool]) -> None:
        """Return when the guest answers. Fails early if QEMU has ended."""
        try:
            async with asyncio.timeout(seconds), self._lock:
                while self._streams is None:
                    try:
                        self._streams = await self._connect()
                    except MicroVmGone:
                        if not is_running():
                            raise
                        await asyncio.sleep(0.02)
        except TimeoutError:
            raise MicroVmGone("the guest did not start") from None

    async def wait_unresponsive(self, interval: float = _PING_SECONDS) -> None:
        """Return when the guest has not answered for several intervals.

        Intervals are counted rather than time, because this process may have been stalled itself.
        """
        pinging, missed = None, 0
        try:
            while missed < _MAX_MISSED:
                before = self._answers
                if pinging is None or pinging.done():
                    pinging = asyncio.create_task(self._ping())
                await asyncio.sleep(interval)
                missed = missed + 1 if self._answers == before else 0
        finally:
            if pinging:
                pinging.cancel()

    async def _ping(self) -> None:
        with contextlib.suppress(MicroVmGone, GuestError):
            await self.request(GuestCommand.PING)

    def close(self) -> None:
        self._disconnect()

    async def _connect(self) -> Streams:
        for seconds in _CONNECT_TIMEOUTS:
            try:
                with short_socket_path(self._path) as name:
                    streams = await asyncio.open_unix_connection(name, limit=4 * GUEST_MAX_BYTES)
            except OSError as error:
                raise MicroVmGone(f"the microVM is gone: {error.strerror}") from None
            try:
                async with asyncio.timeout(seconds):
                    await self._exchange(streams, (GuestCommand.PING,))
            except _NO_ANSWER:
                streams[1].close()
                continue
            self._streams = streams
            return streams
        raise MicroVmGone("the guest does not answer")

    def _disconnect(self) -> None:
        if self._streams:
            self._streams[1].close()
            self._streams = None

    async def _exchange(self, streams: Streams, command: tuple[str, ...]) -> bytes:
        reader, writer = streams
        payload = b"".join(os.fsencode(word) + b"\0" for word in command)
        mark = secrets.token_bytes(GUEST_MARK_SIZE)
        writer.write(struct.pack("<I", len(payload)) + mark + payload)
        await writer.drain()
        await reader.readuntil(mark)
        size, error = _HEADER.unpack(await reader.readexactly(_HEADER.size))
        if size > GUEST_MAX_BYTES:
            raise EOFError
        data = await reader.readexactly(size)
        self._answers += 1
        if error:
            raise GuestError(error, command)
        return data
