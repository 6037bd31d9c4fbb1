"""A microVM's network: a tap beside the pod's own interface, and all that comes to either goes on
to the other.

The interface was made by CNI plugins and stays as they made it, so whatever they do with it they do
with the guest; the guest has its address and its hardware address.
"""

from __future__ import annotations

import ctypes
import fcntl
import ipaddress
import os
import struct
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from winpod.compute.errors import MachineFailed
from winpod.compute.hypervisor.guest import Guest
from winpod.own_thread import in_own_thread

TAP = "tap0"
_CARD = "eth0"
_TUNSETIFF, _IFF_TAP, _IFF_NO_PI, _IFF_VNET_HDR = 0x400454CA, 0x0002, 0x1000, 0x4000
_NEW_NETWORK = 0x40000000
_DEFAULT_MTU = 1500
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Link:
    """What a guest is told of its network."""

    mac: str
    mtu: int
    addresses: tuple[str, ...]
    gateways: tuple[str, ...]


def read_link(interface: str, result: Mapping[str, Any]) -> Link:
    """From what CNI plugins answered."""
    interfaces = result.get("interfaces") or []
    own = next(
        (n for n, one in enumerate(interfaces) if one.get("sandbox") and one["name"] == interface),
        None,
    )
    if own is None:
        raise MachineFailed(f"the network has no interface {interface} in the pod")
    ips = [ip for ip in result.get("ips") or [] if ip.get("interface", own) == own]
    return Link(
        interfaces[own].get("mac", ""),
        int(interfaces[own].get("mtu") or _DEFAULT_MTU),
        tuple(str(ipaddress.ip_interface(ip["address"])) for ip in ips),
        tuple(ip["gateway"] for ip in ips if ip.get("gateway")),
    )


def open_tap(netns: Path, interface: str) -> int:
    """A tap in the namespace, joined to its interface; open, and gone when it is closed."""

    def act() -> int:
        namespace = os.open(netns, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if _libc.setns(namespace, _NEW_NETWORK):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        finally:
            os.close(namespace)
        tap = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
        asked = struct.pack("16sH22x", TAP.encode(), _IFF_TAP | _IFF_NO_PI | _IFF_VNET_HDR)
        try:
            fcntl.ioctl(tap, _TUNSETIFF, asked)
            _join(interface)
        except BaseException:
            os.close(tap)
            raise
        return tap

    try:
        return in_own_thread(act)
    except OSError as error:
        raise MachineFailed(f"it cannot be connected: {error.strerror}") from error


async def tell_guest(guest: Guest, link: Link) -> None:
    """Its addresses and where they lead, as soon as it has seen its network card."""
    for address in map(ipaddress.ip_interface, link.addresses):
        where = (str(address.ip), str(address.network.prefixlen))
        await guest.ask_when_seen("address", _CARD, *where)
    for gateway in link.gateways:
        await guest.ask("route", _CARD, gateway)


def _join(interface: str) -> None:
    _run("ip", "link", "set", TAP, "up")
    for one, other in ((interface, TAP), (TAP, interface)):
        _run("tc", "qdisc", "replace", "dev", one, "ingress")
        goes = ("action", "mirred", "egress", "redirect", "dev", other)
        match = ("protocol", "all", "u32", "match", "u8", "0", "0")
        _run("tc", "filter", "add", "dev", one, "parent", "ffff:", *match, *goes)


def _run(*command: str) -> None:
    """In the namespace that the thread is in."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    except FileNotFoundError:
        raise MachineFailed(f"this machine has no {command[0]} (package iproute2)") from None
    if done.returncode:
        raise MachineFailed(f"{' '.join(command[:4])}: {done.stderr.strip()}")
