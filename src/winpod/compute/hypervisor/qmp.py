"""QEMU's own way of being told: one JSON object a line, on a Unix socket.

One connection at a time is all that QEMU takes; whoever has it, has it for one conversation.
"""

from __future__ import annotations

import array
import asyncio
import json
import socket
import time
from pathlib import Path
from typing import Any, Self

from winpod.compute.agent import short_name
from winpod.compute.errors import MachineFailed, MachineGone
from winpod.compute.hypervisor.guest import PATIENCE

_LISTEN_SECONDS = 10.0


class Qmp:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._rest = b""

    async def __aenter__(self) -> Self:
        self._socket.setblocking(False)
        try:
            await self._connect()
        except OSError as error:
            self._socket.close()
            raise MachineGone(f"QEMU does not answer: {error.strerror}") from None
        await self._line()
        await self.do("qmp_capabilities")
        return self

    async def _connect(self) -> None:
        """A socket that is new is there a moment before QEMU listens on it."""
        deadline = time.monotonic() + _LISTEN_SECONDS
        while True:
            try:
                with short_name(self._path) as name:
                    await asyncio.get_running_loop().sock_connect(self._socket, name)
            except ConnectionRefusedError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.005)
            else:
                return

    async def __aexit__(self, *_: object) -> None:
        self._socket.close()

    async def do(self, command: str, **arguments: object) -> Any:
        words = {"execute": command, "arguments": arguments}
        try:
            await asyncio.get_running_loop().sock_sendall(
                self._socket, json.dumps(words).encode() + b"\n"
            )
        except OSError:
            raise MachineGone("QEMU has ended") from None
        return await self._answer(command)

    async def hand_over(self, name: str, descriptor: int) -> None:
        """A file that QEMU shall have open, under a name."""
        await self._do_with(descriptor, "getfd", fdname=name)

    async def lend(self, descriptor: int) -> int:
        """A file that QEMU shall open as `/dev/fdset/` and the number that comes back."""
        return int((await self._do_with(descriptor, "add-fd"))["fdset-id"])

    async def _do_with(self, descriptor: int, command: str, **arguments: object) -> Any:
        words = json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n"
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))]
        self._socket.sendmsg([words], ancillary)
        return await self._answer(command)

    async def _answer(self, command: str) -> Any:
        while True:
            said = json.loads(await self._line())
            if "return" in said:
                return said["return"]
            if "error" in said:
                raise MachineFailed(f"QEMU refused {command}: {said['error'].get('desc')}")

    async def _line(self) -> bytes:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(PATIENCE):
                while b"\n" not in self._rest:
                    data = await loop.sock_recv(self._socket, 1 << 16)
                    if not data:
                        raise MachineGone("QEMU has ended")
                    self._rest += data
        except (OSError, TimeoutError):
            raise MachineGone("QEMU does not answer") from None
        line, _, self._rest = self._rest.partition(b"\n")
        return line
