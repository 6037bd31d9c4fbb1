"""A microVM's network: a tap that mirrors all traffic with the pod's interface.

CNI plugins configured the interface and it stays unchanged, so whatever they apply to it applies to
the guest, which has its IP and MAC addresses.
"""

from __future__ import annotations

import ctypes
import fcntl
import ipaddress
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from winpod.compute.agent.protocol import GuestCommand
from winpod.compute.errors import MicroVmFailed
from winpod.compute.hypervisor.guest_client import GuestClient
from winpod.concurrency import run_in_own_thread
from winpod.subprocesses import run_blocking

TAP = "tap0"
_GUEST_INTERFACE = "eth0"
_TUNSETIFF, _IFF_TAP, _IFF_NO_PI, _IFF_VNET_HDR = 0x400454CA, 0x0002, 0x1000, 0x4000
_NEW_NETWORK = 0x40000000
_DEFAULT_MTU = 1500
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class GuestNetworkConfig:
    """The network configuration of a guest."""

    mac: str
    mtu: int
    addresses: tuple[str, ...]
    gateways: tuple[str, ...]


def read_cni_result(interface: str, result: Mapping[str, Any]) -> GuestNetworkConfig:
    """Derive the guest's network configuration from a CNI result."""
    interfaces = result.get("interfaces") or []
    index = next(
        (
            number
            for number, entry in enumerate(interfaces)
            if entry.get("sandbox") and entry["name"] == interface
        ),
        None,
    )
    if index is None:
        raise MicroVmFailed(f"the CNI result has no interface {interface} in the pod")
    ips = [ip for ip in result.get("ips") or [] if ip.get("interface", index) == index]
    return GuestNetworkConfig(
        interfaces[index].get("mac", ""),
        int(interfaces[index].get("mtu") or _DEFAULT_MTU),
        tuple(str(ipaddress.ip_interface(ip["address"])) for ip in ips),
        tuple(ip["gateway"] for ip in ips if ip.get("gateway")),
    )


def open_tap(netns: Path, interface: str) -> int:
    """Open a tap in the namespace, connected to its interface; closing it removes it."""

    def create_tap() -> int:
        namespace = os.open(netns, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if _libc.setns(namespace, _NEW_NETWORK):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        finally:
            os.close(namespace)
        tap = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
        request = struct.pack("16sH22x", TAP.encode(), _IFF_TAP | _IFF_NO_PI | _IFF_VNET_HDR)
        try:
            fcntl.ioctl(tap, _TUNSETIFF, request)
            _redirect_traffic(interface)
        except BaseException:
            os.close(tap)
            raise
        return tap

    try:
        return run_in_own_thread(create_tap)
    except OSError as error:
        raise MicroVmFailed(f"its network cannot be connected: {error.strerror}") from error


async def configure_guest(guest: GuestClient, link: GuestNetworkConfig) -> None:
    """Configure addresses and routes once the guest has detected its network card."""
    for address in map(ipaddress.ip_interface, link.addresses):
        arguments = (str(address.ip), str(address.network.prefixlen))
        await guest.request_when_plugged(GuestCommand.SET_ADDRESS, _GUEST_INTERFACE, *arguments)
    for gateway in link.gateways:
        await guest.request(GuestCommand.SET_ROUTE, _GUEST_INTERFACE, gateway)


def _redirect_traffic(interface: str) -> None:
    _run("ip", "link", "set", TAP, "up")
    for device, other in ((interface, TAP), (TAP, interface)):
        _run("tc", "qdisc", "replace", "dev", device, "ingress")
        redirect = ("action", "mirred", "egress", "redirect", "dev", other)
        match = ("protocol", "all", "u32", "match", "u8", "0", "0")
        _run("tc", "filter", "add", "dev", device, "parent", "ffff:", *match, *redirect)


def _run(*command: str) -> None:
    """Run a command in the thread's network namespace."""
    try:
        done = run_blocking(command)
    except FileNotFoundError:
        raise MicroVmFailed(f"this host has no {command[0]} (package iproute2)") from None
    if done.code:
        raise MicroVmFailed(f"{' '.join(command[:4])}: {done.error_text}")
