"""The identity of a container's Windows: build, registry of the image, hostname and DNS.

Silos boot before their container is known, so all of this is applied to a running Windows.
"""

from __future__ import annotations

import ctypes
import ipaddress
import os
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from winpod.compute.agent.client import RegistryChange
from winpod.compute.agent.protocol import RegistryRoot
from winpod.compute.backend import SandboxSpec
from winpod.concurrency import run_in_own_thread
from winpod.images.winreg.hives import compose_registry
from winpod.images.winreg.wine_registry import RegistryFile, RegistryValue
from winpod.windows.builds import Build

_NEW_UTS = 0x04000000
_CONTROL = r"System\CurrentControlSet\Control\ComputerName"
_TCPIP = r"System\CurrentControlSet\Services\Tcpip\Parameters"
_NETBIOS_LENGTH = 15
_HOST_RESOLVER = Path("/etc/resolv.conf")
_libc = ctypes.CDLL(None, use_errno=True)


@lru_cache(maxsize=64)
def registry_changes(
    prefix: Path, host: Build, build: Build, layers: tuple[Path, ...]
) -> tuple[RegistryChange, ...]:
    """Return the changes from the registry that silos boot with to that of an image."""
    before, after = compose_registry(prefix, host, ()), compose_registry(prefix, build, layers)
    return (
        *_changes(after.system, before.system, RegistryRoot.MACHINE, ""),
        *_changes(after.user, before.user, RegistryRoot.USER, ""),
        *_changes(after.default_user, before.default_user, RegistryRoot.USERS, ".Default\\"),
    )


def _changes(
    after: RegistryFile, before: RegistryFile, root: RegistryRoot, key_prefix: str
) -> Iterator[RegistryChange]:
    for change in after.diff_from(before):
        value = change.value or RegistryValue(0, b"")
        data = value.data if change.value else None
        yield RegistryChange(key_prefix + change.key, change.name, data, value.kind, root)


def hostname_values(sandbox: SandboxSpec) -> list[RegistryChange]:
    """Return the registry values of the computer name and of its DNS configuration."""
    short = computer_name(sandbox.hostname)
    servers, searches = dns_configuration(sandbox)
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
    value = RegistryValue.text(text)
    return RegistryChange(key, name, value.data, value.kind)


def resolv_conf(sandbox: SandboxSpec) -> str:
    """Return the pod's resolv.conf, which Wine reads."""
    servers, searches = dns_configuration(sandbox)
    lines = [f"nameserver {server}" for server in servers]
    lines += [f"search {' '.join(searches)}"] if searches else []
    lines += [f"options {' '.join(sandbox.options)}"] if sandbox.options else []
    return "".join(f"{line}\n" for line in lines)


def dns_configuration(
    sandbox: SandboxSpec, host_file: Path = _HOST_RESOLVER
) -> tuple[Sequence[str], Sequence[str]]:
    """Return servers and search domains; default to those in the host's resolv.conf."""
    if sandbox.servers or sandbox.searches:
        return sandbox.servers, sandbox.searches
    return _read_resolver(host_file)


def _read_resolver(file: Path) -> tuple[list[str], list[str]]:
    """Read servers and search domains, without servers on loopback, which pods cannot reach."""
    try:
        rows = [line.split() for line in file.read_text().splitlines()]
    except OSError:
        rows = []
    servers = [line[1] for line in rows if line[:1] == ["nameserver"] and len(line) > 1]
    searches = [line[1:] for line in rows if line[:1] in (["search"], ["domain"])]
    return [s for s in servers if not _is_loopback(s)], searches[-1] if searches else []


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return True


def set_hostname(pid: int, hostname: str) -> None:
    """Set the hostname in the UTS namespace of a process."""

    def enter_and_set() -> None:
        namespace = os.open(f"/proc/{pid}/ns/uts", os.O_RDONLY | os.O_CLOEXEC)
        try:
            if _libc.setns(namespace, _NEW_UTS):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        finally:
            os.close(namespace)
        name = hostname.encode()[:63]
        if _libc.sethostname(name, ctypes.c_size_t(len(name))):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    run_in_own_thread(enter_and_set)
