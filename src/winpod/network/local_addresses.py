"""Addresses that this machine answers at without having them on an interface.

One route makes a whole network local, so that servers can listen at any address of it and pods
reach them by way of their gateway. The route is the only trace, and making it twice is the same as
once.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from ipaddress import IPv4Network

from winpod.network.errors import NoNetwork

_NEW_ROUTE, _DELETE_ROUTE = 24, 25
_REQUEST, _ACKNOWLEDGE, _REPLACE, _CREATE = 0x1, 0x4, 0x100, 0x400
_TABLE_LOCAL, _BY_ADMINISTRATOR, _SCOPE_HOST, _TYPE_LOCAL = 255, 4, 254, 2
_DESTINATION, _INTERFACE = 1, 4
_ERROR = 2


def claim(network: IPv4Network) -> None:
    """Every address of the network is this machine's."""
    code = _ask(_NEW_ROUTE, _CREATE | _REPLACE, network)
    if code:
        raise NoNetwork(
            f"{network}, where services have their addresses, cannot be made this machine's own: "
            f"{os.strerror(code)}.",
            "It takes root, and a loopback interface that is up (ip link set lo up).",
        )


def give_up(network: IPv4Network) -> None:
    code = _ask(_DELETE_ROUTE, 0, network)
    if code not in (0, errno.ESRCH):
        raise NoNetwork(f"the route for {network} cannot be removed: {os.strerror(code)}.")


def _ask(kind: int, flags: int, network: IPv4Network) -> int:
    """The kernel's error number, 0 for none."""
    route = struct.pack(
        "=BBBBBBBBI",
        socket.AF_INET,
        network.prefixlen,
        *(0, 0),
        _TABLE_LOCAL,
        _BY_ADMINISTRATOR,
        _SCOPE_HOST,
        _TYPE_LOCAL,
        0,
    )
    body = route + _attribute(_DESTINATION, network.network_address.packed)
    body += _attribute(_INTERFACE, struct.pack("=I", socket.if_nametoindex("lo")))
    header = struct.pack("=IHHII", 16 + len(body), kind, _REQUEST | _ACKNOWLEDGE | flags, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as asked:
        asked.settimeout(5)
        asked.send(header + body)
        reply = asked.recv(4096)
    _, told, *_ = struct.unpack_from("=IHHII", reply)
    return -int(struct.unpack_from("=i", reply, 16)[0]) if told == _ERROR else 0


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value
