"""Connections to a pod's ports from inside of its microVM, where localhost is the pod's own.

Each connection has its own virtio port. Both sides send frames: a length and the data; a length of
0 is the end. What the guest sends is not trusted.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import struct
from collections.abc import Sequence

from winpod.compute.agent.client import short_socket_path
from winpod.compute.agent.protocol import GuestCommand
from winpod.compute.errors import MicroVmFailed, MicroVmGone
from winpod.compute.hypervisor.guest_client import GUEST_TIMEOUT, Streams
from winpod.compute.hypervisor.microvm import MicroVm
from winpod.concurrency import run_to_completion

LOCALHOST = ("127.0.0.1", "::1")
_PREFIX = "dial-"
_MAX_CONNECTIONS = 12
"""At once. A microVM has 31 ports, and each container needs one too."""
_BLOCK = 16 << 10
_NUMBER = struct.Struct("<I")


class GuestDialer:
    """Dials from one microVM."""

    def __init__(self, vm: MicroVm) -> None:
        self._vm = vm
        self._slots = asyncio.Semaphore(_MAX_CONNECTIONS)
        self._relays: set[asyncio.Task[None]] = set()
        self._stale_ports = [path.name for path in vm.folder.glob(f"{_PREFIX}*")]

    async def dial(self, port: int, addresses: Sequence[str]) -> Streams:
        """Connect to localhost or the first address that answers. Raises OSError if none does."""
        while self._stale_ports:  # of an earlier daemon
            await self._vm.remove_port(self._stale_ports.pop())
        await self._slots.acquire()
        name = _PREFIX + secrets.token_hex(8)
        try:
            remote = await self._connect(name, port, (*LOCALHOST, *addresses))
            local, relay_end = socket.socketpair()
        except BaseException:
            await run_to_completion(self._release(name))
            raise
        task = asyncio.create_task(self._relay(name, remote, relay_end))
        self._relays.add(task)
        task.add_done_callback(self._relays.discard)
        return await asyncio.open_connection(sock=local)

    def close(self) -> None:
        for task in self._relays:
            task.cancel()

    async def _connect(self, name: str, port: int, addresses: Sequence[str]) -> Streams:
        await self._vm.add_port(name)
        with short_socket_path(self._vm.folder / name) as path:
            streams = await asyncio.open_unix_connection(path)
        try:
            command = (GuestCommand.DIAL, name, str(port), *addresses)
            await self._vm.guest.request_when_plugged(*command)
            async with asyncio.timeout(GUEST_TIMEOUT):
                number = await _read_number(streams[0])
            if number:
                raise OSError(number, os.strerror(number))
        except BaseException as error:
            streams[1].close()
            if isinstance(error, TimeoutError | EOFError):
                raise MicroVmGone("the guest does not answer (dial)") from None
            raise
        return streams

    async def _relay(self, name: str, remote: Streams, relay_end: socket.socket) -> None:
        local = await asyncio.open_connection(sock=relay_end)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(_send(local[0], remote[1]))
                both.create_task(_receive(remote[0], local[1]))
        except* (OSError, EOFError):
            pass
        finally:
            for _, writer in (local, remote):
                writer.close()
            await run_to_completion(self._release(name))

    async def _release(self, name: str) -> None:
        with contextlib.suppress(MicroVmGone, MicroVmFailed):
            await self._vm.remove_port(name)
        self._slots.release()


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
