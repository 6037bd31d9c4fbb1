"""The streams of a container's own program, joined while it runs.

conmon has them, and answers at a socket in the container's folder: a packet's first byte names the
stream. conmon waits for whoever does not read, and the program then waits for conmon: one that
attaches reads on or leaves. What was written before is in the log only; who attaches before the
start misses nothing, because wproxy starts no program while the folder's `hold` is locked.

Input that is for one client ends when that one leaves; to conmon, any client is that one. So a
client without input, of such a container, stays until the end, and its output is dropped.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

from winpod.compute.agent import Size, Stream, short_name
from winpod.windows.errors import Unavailable

_STREAMS = {2: Stream.OUTPUT, 3: Stream.ERRORS}
_LONGEST_PACKET = 64 << 10
_INPUT_PACKET = 8 << 10
_POLL_SECONDS = 0.005


class AttachFailed(Unavailable):
    """The supervisor of a container has ended, or is not there yet."""

    def __init__(self, error: OSError) -> None:
        super().__init__(
            f"the container's own program cannot be attached to: {error.strerror}.",
            "Its log has what it wrote.",
        )


class Attached:
    def __init__(self, connection: socket.socket, control: Path, *, stays: bool) -> None:
        self._connection = connection
        self._control = control
        self._stays = stays

    @classmethod
    async def before_start(cls, folder: Path, *, stdin: bool) -> Attached:
        """Waits for the container to be started, and keeps its program back until it is joined."""
        hold = os.open(folder / "hold", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(hold, fcntl.LOCK_SH)
            while True:
                try:
                    return await cls.to(folder, stdin=stdin)
                except AttachFailed:
                    if not os.fstat(hold).st_nlink:
                        raise
                await asyncio.sleep(_POLL_SECONDS)
        finally:
            os.close(hold)

    @classmethod
    async def to(cls, folder: Path, *, stdin: bool) -> Attached:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.setblocking(False)
        try:
            with short_name(folder / "attach") as name:
                await asyncio.get_running_loop().sock_connect(connection, name)
        except OSError as error:
            connection.close()
            raise AttachFailed(error) from None
        for_one = "stdin_stays" not in (folder / "stdio").read_text().split()
        return cls(connection, folder / "ctl", stays=for_one and not stdin)

    async def __aenter__(self) -> Attached:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._stays:
            asyncio.get_running_loop().add_reader(self._connection, self._drop)
        else:
            self._connection.close()

    def _drop(self) -> None:
        if not self._connection.recv(_LONGEST_PACKET):
            asyncio.get_running_loop().remove_reader(self._connection)
            self._connection.close()

    async def output(self) -> AsyncIterator[tuple[Stream, bytes]]:
        while packet := await self._receive():
            if stream := _STREAMS.get(packet[0]):
                yield stream, packet[1:]

    async def _receive(self) -> bytes:
        loop = asyncio.get_running_loop()
        try:
            return await loop.sock_recv(self._connection, _LONGEST_PACKET)
        except ConnectionResetError:  # input that nobody took; the last output still waits
            return await loop.sock_recv(self._connection, _LONGEST_PACKET)

    async def write(self, data: bytes) -> None:
        """Waits for a program that does not read."""
        for start in range(0, len(data), _INPUT_PACKET):
            packet = data[start : start + _INPUT_PACKET]
            await asyncio.get_running_loop().sock_sendall(self._connection, packet)

    async def end_input(self) -> None:
        """This client sends no more. The program hears of it if its input was for one client."""
        self._connection.shutdown(socket.SHUT_WR)

    async def resize(self, size: Size) -> None:
        control = os.open(self._control, os.O_WRONLY | os.O_NONBLOCK)
        try:
            os.write(control, f"1 {size.rows} {size.columns}\n".encode())
        finally:
            os.close(control)
