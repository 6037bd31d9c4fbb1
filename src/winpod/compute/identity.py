"""What a container's Windows says it is: its build, its image's registry, its name, its resolver.

A shell is booted before anybody knows whose it will be, so all of this is told to it afterwards.
"""

from __future__ import annotations

import ctypes
import ipaddress
import os
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from winpod.compute.agent import RegistryChange, Root
from winpod.compute.backend import SandboxAsked
from winpod.images.hives import compose_registry
from winpod.images.wine_registry import RegistryFile, Value
from winpod.own_thread import in_own_thread
from winpod.windows.builds import Build

_NEW_UTS = 0x04000000
_CONTROL = r"System\CurrentControlSet\Control\ComputerName"
_TCPIP = r"System\CurrentControlSet\Services\Tcpip\Parameters"
_NETBIOS_LENGTH = 15
_HOST_RESOLVER = Path("/etc/resolv.conf")
_libc = ctypes.CDLL(None, use_errno=True)


@lru_cache(maxsize=64)
def registry_of(
    prefix: Path, host: Build, build: Build, layers: tuple[Path, ...]
) -> tuple[RegistryChange, ...]:
    """What turns the registry that shells boot with into that of an image."""
    before, after = compose_registry(prefix, host, ()), compose_registry(prefix, build, layers)
    return (
        *_changes(after.system, before.system, Root.MACHINE, ""),
        *_changes(after.user, before.user, Root.USER, ""),
        *_changes(after.default_user, before.default_user, Root.USERS, ".Default\\"),
    )


def _changes(
    after: RegistryFile, before: RegistryFile, root: Root, start: str
) -> Iterator[RegistryChange]:
    for change in after.changes_from(before):
        value = change.value or Value(0, b"")
        data = value.data if change.value else None
        yield RegistryChange(start + change.key, change.name, data, value.kind, root)


def names_of(sandbox: SandboxAsked) -> list[RegistryChange]:
    """The computer's name and where it looks up others, as Windows' registry has them."""
    short = computer_name(sandbox.hostname)
    servers, searches = resolver_of(sandbox)
    return [
        *(_text(rf"{_CONTROL}\{key}", "ComputerName", short) for key in _COMPUTER_NAMES),
        _text(_TCPIP, "Hostname", sandbox.hostname),
        _text(_TCPIP, "NV Hostname", sandbox.hostname),
        _text(_TCPIP, "NameServer", " ".join(servers)),
        _text(_TCPIP, "SearchList", ",".join(searches)),
    ]


_COMPUTER_NAMES = ("ComputerName", "ActiveComputerName")


def computer_name(hostname: str) -> str:
    return hostname.upper()[:_NETBIOS_LENGTH]


def _text(key: str, name: str, text: str) -> RegistryChange:
    value = Value.text(text)
    return RegistryChange(key, name, value.data, value.kind)


def resolver_file(sandbox: SandboxAsked) -> str:
    """What Wine reads: the pod's own configuration."""
    servers, searches = resolver_of(sandbox)
    lines = [f"nameserver {server}" for server in servers]
    lines += [f"search {' '.join(searches)}"] if searches else []
    lines += [f"options {' '.join(sandbox.options)}"] if sandbox.options else []
    return "".join(f"{line}\n" for line in lines)


def resolver_of(
    sandbox: SandboxAsked, machine: Path = _HOST_RESOLVER
) -> tuple[Sequence[str], Sequence[str]]:
    """Servers and search domains; a pod that names none has the machine's, from that file."""
    if sandbox.servers or sandbox.searches:
        return sandbox.servers, sandbox.searches
    return _read_resolver(machine)


def _read_resolver(file: Path) -> tuple[list[str], list[str]]:
    """A server on the machine's own loopback is not to be reached from a pod."""
    try:
        words = [line.split() for line in file.read_text().splitlines()]
    except OSError:
        words = []
    servers = [line[1] for line in words if line[:1] == ["nameserver"] and len(line) > 1]
    searches = [line[1:] for line in words if line[:1] in (["search"], ["domain"])]
    return [s for s in servers if not _is_loopback(s)], searches[-1] if searches else []


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return True


def set_hostname(pid: int, hostname: str) -> None:
    """Of the machine that a process believes to be on."""

    def act() -> None:
        namespace = os.open(f"/proc/{pid}/ns/uts", os.O_RDONLY | os.O_CLOEXEC)
        try:
            if _libc.setns(namespace, _NEW_UTS):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        finally:
            os.close(namespace)
        name = hostname.encode()[:63]
        if _libc.sethostname(name, ctypes.c_size_t(len(name))):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    in_own_thread(act)
