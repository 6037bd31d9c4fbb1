"""The network of a sandbox, from its namespace to its address, and back to nothing.

In both directions a crash is made good by the next `sweep`: the namespace's name and the entry in
the CNI cache outlive the process, and stand there before anything else of the sandbox does.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from winpod.network.attachments import Attached, Attachment
from winpod.network.cni import Cni, Ready
from winpod.network.counters import Counters, read_counters
from winpod.network.errors import NotListening
from winpod.network.namespaces import Namespaces
from winpod.network.settings import Subnet
from winpod.windows.errors import WinpodError

_LOCALHOST = ("127.0.0.1", "::1")


class SandboxNetworks:
    """`write_told` makes the network of subnets that a node tells, where that is ours to make."""

    def __init__(
        self,
        namespaces: Namespaces,
        cni: Cni,
        write_told: Callable[[Sequence[Subnet]], Path | None] | None = None,
    ) -> None:
        self.namespaces = namespaces
        self.cni = cni
        self._write_told = write_told

    def netns(self, sandbox_id: str) -> Path:
        return self.namespaces.path(sandbox_id)

    def holds(self, sandbox_id: str) -> bool:
        return self.namespaces.exists(sandbox_id)

    async def connect(
        self,
        attachment: Attachment,
        netns: Path | None = None,
        opened: Callable[[], None] = lambda: None,
    ) -> Attached:
        """Connect the sandbox, in a given namespace, which it keeps, or in a new one.

        `opened` is called when the namespace is there. Where that fails, nothing is left.
        """
        sandbox_id = attachment.sandbox_id
        making = asyncio.create_task(asyncio.to_thread(self.namespaces.create, sandbox_id, netns))
        try:
            place = await asyncio.shield(making)
            opened()
            return await self.cni.add(replace(attachment, netns=place))
        except BaseException:
            await asyncio.wait((making,))
            if not making.exception():
                self.namespaces.remove(sandbox_id)
            raise

    async def disconnect(self, sandbox_id: str) -> None:
        """Take it all apart. Again, or what is gone already, is fine."""
        await self.cni.delete(Attachment(sandbox_id, self.netns(sandbox_id)))
        await asyncio.to_thread(self.namespaces.remove, sandbox_id)

    async def dial(
        self, sandbox_id: str, port: int, addresses: Sequence[str] = ()
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to a port as a process of the sandbox would make it: to localhost, or to
        one of the sandbox's own addresses, which is where Windows dials."""
        reason = ""
        for address in (*_LOCALHOST, *addresses):
            make = partial(socket.socket, socket.AF_INET6 if ":" in address else socket.AF_INET)
            dialled = await asyncio.to_thread(self.namespaces.call, sandbox_id, make)
            dialled.setblocking(False)
            try:
                await asyncio.get_running_loop().sock_connect(dialled, (address, port))
                return await asyncio.open_connection(sock=dialled)
            except OSError as error:
                dialled.close()
                reason = reason or error.strerror or str(error)
        raise NotListening(sandbox_id, port, reason)

    def use(self, subnets: Sequence[Subnet]) -> None:
        if self._write_told:
            self._write_told(subnets)

    def counters(self, sandbox_id: str) -> list[Counters]:
        return read_counters(self.netns(sandbox_id))

    def describe(self) -> dict[str, object]:
        return {"kind": "cni", "directory": str(self.cni.directory)}

    async def sweep(self, known: Collection[str]) -> list[str]:
        """At start: remove what belongs to no known sandbox; sentences on what could not be."""
        troubles = await self.cni.sweep(known)
        for name in self.namespaces.names():
            if name not in known:
                try:
                    self.namespaces.remove(name)
                except WinpodError as error:
                    troubles.append(str(error))
        return troubles

    async def trouble(self) -> str:
        """Why pods cannot be connected, empty where they can."""
        status = await self.cni.status()
        return "" if isinstance(status, Ready) else status.reason
