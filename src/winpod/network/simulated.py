"""A stand-in for real networks, for scale: every sandbox has an address, and nobody reaches it.

Nothing is made and nothing is remembered; an address follows from the sandbox's id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from winpod.network.attachments import INTERFACE, Attached, Attachment, Dns
from winpod.network.counters import Counters
from winpod.network.errors import NoNetwork, NotListening
from winpod.network.settings import Subnet

_RESERVED = 2
"""The subnet's own address, and its gateway's."""


class SimulatedNetworks:
    def __init__(self, subnets: Sequence[Subnet]) -> None:
        self._subnets = tuple(subnets)
        self.connected: dict[str, int] = {}

    def use(self, subnets: Sequence[Subnet]) -> None:
        self._subnets = tuple(subnets)

    async def connect(
        self,
        attachment: Attachment,
        netns: Path | None = None,
        opened: Callable[[], None] = lambda: None,
    ) -> Attached:
        del netns
        opened()
        number = self._free_number(attachment.sandbox_id)
        self.connected[attachment.sandbox_id] = number
        addresses = tuple(str(subnet[number]) for subnet in self._subnets)
        return Attached("simulated", addresses, Dns(), {})

    def _free_number(self, sandbox_id: str) -> int:
        if not self._subnets:
            raise NoNetwork("No subnet for pods has been told.")
        size = min(subnet.num_addresses for subnet in self._subnets) - _RESERVED - 1
        taken = set(self.connected.values())
        if len(taken) >= size:
            raise NoNetwork(
                f"All {size} addresses of {self._subnets[0]} are taken.",
                "Configure a larger one: network.subnets.",
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
        raise NotListening(sandbox_id, port, "it is simulated")

    def holds(self, sandbox_id: str) -> bool:
        return sandbox_id in self.connected

    def netns(self, sandbox_id: str) -> Path | None:
        del sandbox_id
        return None

    def counters(self, sandbox_id: str) -> list[Counters]:
        del sandbox_id
        return [Counters(INTERFACE, 0, 0, 0, 0, 0, 0, 0, 0)]

    async def sweep(self, known: Collection[str]) -> list[str]:
        del known
        return []

    async def trouble(self) -> str:
        return "" if self._subnets else "No subnet for pods has been told."

    def describe(self) -> Mapping[str, object]:
        return {"kind": "simulated", "subnets": [str(subnet) for subnet in self._subnets]}
