"""A simulated sandbox network for scale tests: sandboxes get unreachable addresses.

No kernel object is created and nothing is persisted; the address is derived from the sandbox's id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from winpod.config import Subnet
from winpod.network.attachments import INTERFACE, Attachment, AttachResult, Dns
from winpod.network.errors import NoCniConfig, PortNotListening
from winpod.network.netns import InterfaceCounters

_RESERVED = 2
"""The network address and the gateway."""


class SimulatedSandboxNetwork:
    def __init__(self, subnets: Sequence[Subnet]) -> None:
        self._subnets = tuple(subnets)
        self.connected: dict[str, int] = {}

    def set_subnets(self, subnets: Sequence[Subnet]) -> None:
        self._subnets = tuple(subnets)

    async def connect(
        self,
        attachment: Attachment,
        netns: Path | None = None,
        opened: Callable[[], None] = lambda: None,
    ) -> AttachResult:
        del netns
        opened()
        number = self._free_number(attachment.sandbox_id)
        self.connected[attachment.sandbox_id] = number
        addresses = tuple(str(subnet[number]) for subnet in self._subnets)
        return AttachResult("simulated", addresses, Dns(), {})

    def _free_number(self, sandbox_id: str) -> int:
        if not self._subnets:
            raise NoCniConfig("No pod subnet is configured.")
        size = min(subnet.num_addresses for subnet in self._subnets) - _RESERVED - 1
        taken = set(self.connected.values())
        if len(taken) >= size:
            raise NoCniConfig(
                f"All {size} addresses of {self._subnets[0]} are in use.",
                "Configure a larger subnet in network.subnets.",
            )
        number = int(sandbox_id, 16) % size
        while number + _RESERVED in taken:
            number = (number + 1) % size
        return number + _RESERVED

    async def disconnect(self, sandbox_id: str) -> None:
        self.connected.pop(sandbox_id, None)

    async def dial(
        self, sandbox_id: str, port: int, addresses: Sequence[str] = ()
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        del addresses
        raise PortNotListening(sandbox_id, port, "it is simulated")

    def is_connected(self, sandbox_id: str) -> bool:
        return sandbox_id in self.connected

    def netns(self, sandbox_id: str) -> Path | None:
        del sandbox_id
        return None

    def counters(self, sandbox_id: str) -> list[InterfaceCounters]:
        del sandbox_id
        return [InterfaceCounters(INTERFACE, 0, 0, 0, 0, 0, 0, 0, 0)]

    async def remove_unknown(self, known: Collection[str]) -> list[str]:
        del known
        return []

    async def unavailable_reason(self) -> str:
        return "" if self._subnets else "No pod subnet is configured."

    def describe(self) -> Mapping[str, object]:
        return {"kind": "simulated", "subnets": [str(subnet) for subnet in self._subnets]}
