"""Named network namespaces and their interface counters.

A namespace is a file in a directory with the namespace mounted on it, created with loopback up. A
file without a mount was left by a crash: it does not count as a namespace, and the next `create`
or `remove` deletes it. The namespace lives until its file is removed and no process uses it.

The network namespace is a property of the thread, so code enters one only in a dedicated thread
that ends afterwards. Sockets and processes created there stay in the namespace.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import re
import socket
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from winpod.concurrency import run_in_own_thread
from winpod.errors import InvalidInput
from winpod.network.attachments import INTERFACE
from winpod.network.errors import NamespaceFailed

DEFAULT_DIRECTORY = Path("/run/winpod/netns")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_THREAD_NETNS = Path("/proc/thread-self/ns/net")
_CLONE_NEWNET = 0x40000000
_MS_BIND = 4096
_MNT_DETACH = 2
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1
_INTERFACE_FLAGS = "16sH14x"
_NAMESPACE_SYSCTLS = {"ip_unprivileged_port_start": "0", "ping_group_range": "0 2147483647"}
"""Windows lets every program listen on any port and send pings."""

_T = TypeVar("_T")
_libc = ctypes.CDLL(None, use_errno=True)


class NetworkNamespaces:
    def __init__(self, directory: Path = DEFAULT_DIRECTORY) -> None:
        self.directory = directory

    def path(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise InvalidInput(f'"{name}" is not a valid name of a network namespace.')
        return self.directory / name

    def exists(self, name: str) -> bool:
        return is_namespace(self.path(name))

    def names(self) -> list[str]:
        """Return the names of all namespaces, including incomplete ones."""
        try:
            return sorted(path.name for path in self.directory.iterdir())
        except FileNotFoundError:
            return []

    def create(self, name: str, existing: Path | None = None) -> Path:
        """Name a new namespace, or an existing one, and bring loopback up in it.

        Fail if the name is in use.
        """
        path = self.path(name)
        if is_namespace(path):
            raise NamespaceFailed(f"The network namespace {path} exists already.")
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            path.touch(mode=0o444)
            run_in_own_thread(lambda: _mount_namespace(path, existing))
        except OSError as error:
            with contextlib.suppress(NamespaceFailed):
                self.remove(name)
            raise NamespaceFailed(
                f"The network namespace {path} cannot be created: {error.strerror}.", _advice(error)
            ) from error
        return path

    def remove(self, name: str) -> None:
        """Remove a namespace, complete or not. Idempotent."""
        path = self.path(name)
        try:
            while _unmount(path):
                pass
            path.unlink(missing_ok=True)
        except OSError as error:
            raise NamespaceFailed(
                f"The network namespace {path} cannot be removed: {error.strerror}.", _advice(error)
            ) from error

    def run_in(self, name: str, function: Callable[[], _T]) -> _T:
        """Call a function inside the namespace and return its result."""
        return run_in_netns(self.path(name), function)


def is_namespace(path: Path) -> bool:
    try:
        return path.stat().st_dev == _THREAD_NETNS.stat().st_dev
    except OSError:
        return False


def has_interface(path: Path, name: str) -> bool:
    """Return whether the path is a namespace with an interface of this name."""
    if not is_namespace(path):
        return False
    try:
        return run_in_netns(path, lambda: socket.if_nametoindex(name)) > 0
    except OSError:
        return False


def run_in_netns(path: Path, function: Callable[[], _T]) -> _T:
    def enter() -> _T:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                _check_result(_libc.setns(descriptor, _CLONE_NEWNET))
            finally:
                os.close(descriptor)
        except OSError as error:
            raise NamespaceFailed(
                f"The network namespace {path} cannot be entered: {error.strerror}.", _advice(error)
            ) from error
        return function()

    return run_in_own_thread(enter)


def _mount_namespace(path: Path, existing: Path | None) -> None:
    if existing is None:
        _check_result(_libc.unshare(_CLONE_NEWNET))
    else:
        with existing.open() as namespace:
            _check_result(_libc.setns(namespace.fileno(), _CLONE_NEWNET))
    _bring_up_loopback()
    for name, text in _NAMESPACE_SYSCTLS.items():
        (Path("/proc/sys/net/ipv4") / name).write_text(text)
    _check_result(_libc.mount(bytes(_THREAD_NETNS), bytes(path), None, _MS_BIND, None))


def _bring_up_loopback() -> None:
    """Set the interface up, as the loopback CNI plugin does; the kernel adds 127.0.0.1 and ::1."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as any_socket:
        request = struct.pack(_INTERFACE_FLAGS, b"lo", 0)
        reply = fcntl.ioctl(any_socket, _SIOCGIFFLAGS, request)
        name, flags = struct.unpack(_INTERFACE_FLAGS, reply)
        request = struct.pack(_INTERFACE_FLAGS, name, flags | _IFF_UP)
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, request)


def _unmount(path: Path) -> bool:
    """Unmount the topmost mount and return whether there was one."""
    if _libc.umount2(bytes(path), _MNT_DETACH) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOENT):
        return False
    raise OSError(number, os.strerror(number))


def _check_result(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _advice(error: OSError) -> str:
    return "This needs root." if error.errno in (errno.EPERM, errno.EACCES) else ""


_COUNTERS = Path("/proc/thread-self/net/dev")
_ROUTES = Path("/proc/thread-self/net/route")
_DEFAULT_ROUTE = "00000000"
_SKIPPED_IN_PODS = ("lo", "tap0")
"""Traffic of a microVM crosses both its tap and the pod's interface; count it only once."""
_SKIPPED_ON_HOST = ("lo", "veth")
"""Name prefixes of loopback and of the host ends of pod interfaces."""


@dataclass(frozen=True)
class InterfaceCounters:
    interface: str
    received_bytes: int
    received_packets: int
    receive_errors: int
    received_dropped: int
    sent_bytes: int
    sent_packets: int
    send_errors: int
    sent_dropped: int


def read_counters(netns: Path) -> list[InterfaceCounters]:
    """Return the counters of a sandbox, the pod's interface first."""
    all_counters = parse_counters(run_in_netns(netns, _COUNTERS.read_text))
    shown = [counters for counters in all_counters if counters.interface not in _SKIPPED_IN_PODS]
    return sorted(shown, key=lambda counters: counters.interface != INTERFACE)


def host_counters() -> list[InterfaceCounters]:
    """Return the counters of the host's interfaces, that of the default route first."""
    return host_interfaces(parse_counters(_COUNTERS.read_text()), _ROUTES.read_text())


def host_interfaces(counters: Iterable[InterfaceCounters], routes: str) -> list[InterfaceCounters]:
    """Select and order the host's interfaces; `routes` is the content of /proc/net/route."""
    rows = (line.split() for line in routes.splitlines()[1:])
    default = {row[0] for row in rows if row[1] == _DEFAULT_ROUTE}
    shown = [entry for entry in counters if not entry.interface.startswith(_SKIPPED_ON_HOST)]
    return sorted(shown, key=lambda entry: entry.interface not in default)


def parse_counters(text: str) -> list[InterfaceCounters]:
    return [_parse(line) for line in text.splitlines()[2:]]


def _parse(line: str) -> InterfaceCounters:
    name, _, numbers = line.partition(":")
    values = [int(number) for number in numbers.split()]
    return InterfaceCounters(name.strip(), *values[:4], *values[8:12])
