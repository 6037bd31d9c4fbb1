"""Where an instance is, by the network's own word and never by the instance's."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable

from winpod.instances.cluster.inputs import is_address
from winpod.instances.errors import Unreachable


async def addresses_of(
    instance: str, address: str, port: int, known: Iterable[str] = ()
) -> tuple[str, ...]:
    """Its address, what that resolves to where it is a name, and those that are known anyway."""
    if is_address(address):
        return tuple(dict.fromkeys((address, *known)))
    try:
        found = await asyncio.get_running_loop().getaddrinfo(address, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise Unreachable(
            f"{instance}: the address of {address} is not known: {error.strerror}.",
            "See that the name is right and that name servers here know it.",
        ) from None
    resolved = sorted({str(one[4][0]) for one in found})
    return tuple(dict.fromkeys((*resolved, address, *known)))
