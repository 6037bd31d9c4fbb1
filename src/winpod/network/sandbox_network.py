"""Sandbox networking: create the namespace and run CNI ADD, or the reverse.

The namespace's file and the CNI cache entry are written before any other resource of the sandbox,
so `remove_unknown` recovers from a crash at any point.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from winpod.config import Subnet
from winpod.errors import WinpodError
from winpod.network.attachments import Attachment, AttachResult
from winpod.network.cni import Cni, CniReady
from winpod.network.errors import PortNotListening
from winpod.network.netns import InterfaceCounters, NetworkNamespaces, read_counters

_LOCALHOST = ("127.0.0.1", "::1")


class CniSandboxNetwork:
    """Sandbox network backed by CNI plugins.

    `write_node_network` writes the CNI configuration of the node's pod CIDRs; None if winpod does
    not manage the configuration.
    """

    def __init__(
        self,
        namespaces: NetworkNamespaces,
        cni: Cni,
        write_node_network: Callable[[Sequence[Subnet]], Path | None] | None = None,
    ) -> None:
        self.namespaces = namespaces
        self.cni = cni
        self._write_node_network = write_node_network

    def netns(self, sandbox_id: str) -> Path:
        return self.namespaces.path(sandbox_id)

    def is_connected(self, sandbox_id: str) -> bool:
        return self.namespaces.exists(sandbox_id)

    async def connect(
        self,
        attachment: Attachment,
        netns: Path | None = None,
        opened: Callable[[], None] = lambda: None,
    ) -> AttachResult:
        """Connect the sandbox, in a new namespace or in the given existing one.

        `opened` is called once the namespace exists. On failure everything is rolled back.
        """
        sandbox_id = attachment.sandbox_id
        creation = asyncio.create_task(asyncio.to_thread(self.namespaces.create, sandbox_id, netns))
        try:
            created = await asyncio.shield(creation)
            opened()
            return await self.cni.add(replace(attachment, netns=created))
        except BaseException:
            await asyncio.wait((creation,))
            if not creation.exception():
                self.namespaces.remove(sandbox_id)
            raise

    async def disconnect(self, sandbox_id: str) -> None:
        """Disconnect the sandbox and remove its namespace. Idempotent."""
        await self.cni.delete(Attachment(sandbox_id, self.netns(sandbox_id)))
        await asyncio.to_thread(self.namespaces.remove, sandbox_id)

    async def dial(
        self, sandbox_id: str, port: int, addresses: Sequence[str] = ()
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to a port from inside the sandbox.

        Try localhost first, then the sandbox's addresses, which is where Windows connects to.
        """
        reason = ""
        for address in (*_LOCALHOST, *addresses):
            create = partial(socket.socket, socket.AF_INET6 if ":" in address else socket.AF_INET)
            connection = await asyncio.to_thread(self.namespaces.run_in, sandbox_id, create)
            connection.setblocking(False)
            try:
                await asyncio.get_running_loop().sock_connect(connection, (address, port))
                return await asyncio.open_connection(sock=connection)
            except OSError as error:
                connection.close()
                reason = reason or error.strerror or str(error)
        raise PortNotListening(sandbox_id, port, reason)

    def set_subnets(self, subnets: Sequence[Subnet]) -> None:
        if self._write_node_network:
            self._write_node_network(subnets)

    def counters(self, sandbox_id: str) -> list[InterfaceCounters]:
        return read_counters(self.netns(sandbox_id))

    def describe(self) -> dict[str, object]:
        return {"kind": "cni", "directory": str(self.cni.directory)}

    async def remove_unknown(self, known: Collection[str]) -> list[str]:
        """Remove networks of unknown sandboxes at start; return a message per failure."""
        failures = await self.cni.remove_unknown(known)
        for name in self.namespaces.names():
            if name not in known:
                try:
                    self.namespaces.remove(name)
                except WinpodError as error:
                    failures.append(str(error))
        return failures

    async def unavailable_reason(self) -> str:
        """Return why pods cannot be connected, or an empty string."""
        status = await self.cni.status()
        return "" if isinstance(status, CniReady) else status.reason
