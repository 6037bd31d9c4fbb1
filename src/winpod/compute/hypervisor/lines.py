"""Connections to ports of a pod from inside of its microVM, where localhost is the pod's own.

Each has a port of the microVM for itself, for as long as it lasts. Both sides send frames there: a
length and as many bytes, a length of 0 for the end. What the guest sends is not trusted.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import struct
from collections.abc import Sequence

from winpod.compute.agent import short_name
from winpod.compute.errors import MachineFailed, MachineGone
from winpod.compute.hypervisor.guest import PATIENCE, Streams
from winpod.compute.hypervisor.machines import PodMachine

LOCALHOST = ("127.0.0.1", "::1")
_PREFIX = "dial-"
_MOST_LINES = 12
"""At once: a microVM has 31 ports, and each of its containers needs one too."""
_BLOCK = 16 << 10
_NUMBER = struct.Struct("<I")


class Lines:
    """All connections into one microVM."""

    def __init__(self, machine: PodMachine) -> None:
        self._machine = machine
        self._free = asyncio.Semaphore(_MOST_LINES)
        self._carrying: set[asyncio.Task[None]] = set()
        self._left = [path.name for path in machine.folder.glob(f"{_PREFIX}*")]

    async def open(self, port: int, addresses: Sequence[str]) -> Streams:
        """To the first of localhost and the addresses that answers; OSError where none does."""
        while self._left:  # by a runtime that ended
            await self._machine.remove_port(self._left.pop())
        await self._free.acquire()
        name = _PREFIX + secrets.token_hex(8)
        try:
            far = await self._call(name, port, (*LOCALHOST, *addresses))
            near, ours = socket.socketpair()
        except BaseException:
            await asyncio.shield(self._hang_up(name))
            raise
        task = asyncio.create_task(self._carry(name, far, ours))
        self._carrying.add(task)
        task.add_done_callback(self._carrying.discard)
        return await asyncio.open_connection(sock=near)

    def close(self) -> None:
        for task in self._carrying:
            task.cancel()

    async def _call(self, name: str, port: int, addresses: Sequence[str]) -> Streams:
        machine = self._machine
        await machine.add_port(name)
        with short_name(machine.folder / name) as path:
            streams = await asyncio.open_unix_connection(path)
        try:
            await self._machine.guest.ask_when_seen("dial", name, str(port), *addresses)
            async with asyncio.timeout(PATIENCE):
                number = await _read_number(streams[0])
            if number:
                raise OSError(number, os.strerror(number))
        except BaseException as error:
            streams[1].close()
            if isinstance(error, TimeoutError | EOFError):
                raise MachineGone("the guest does not answer (dial)") from None
            raise
        return streams

    async def _carry(self, name: str, far: Streams, ours: socket.socket) -> None:
        near = await asyncio.open_connection(sock=ours)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(_send(near[0], far[1]))
                both.create_task(_receive(far[0], near[1]))
        except* (OSError, EOFError):
            pass
        finally:
            for _, writer in (near, far):
                writer.close()
            await asyncio.shield(self._hang_up(name))

    async def _hang_up(self, name: str) -> None:
        with contextlib.suppress(MachineGone, MachineFailed):
            await self._machine.remove_port(name)
        self._free.release()


async def _send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_BLOCK):
        writer.write(_NUMBER.pack(len(data)) + data)
        await writer.drain()
    writer.write(_NUMBER.pack(0))
    await writer.drain()


async def _receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while size := await _read_number(reader):
        if size > _BLOCK:
            raise EOFError
        writer.write(await reader.readexactly(size))
        await writer.drain()
    writer.write_eof()


async def _read_number(reader: asyncio.StreamReader) -> int:
    (number,) = _NUMBER.unpack(await reader.readexactly(_NUMBER.size))
    return int(number)
