"""Named network namespaces: files of a directory, each with a namespace mounted on it.

A name is whole once its namespace is mounted, with loopback up; a file without one was left by a
crash, counts as not there, and goes with the next `create` or `remove`. The namespace lives until
its name is removed and no process is left inside.

A thread has a network namespace, and keeps it: so whatever enters one does so in a thread of its
own, which ends with it. Sockets and processes made there stay in the namespace; that is how a
caller outside gets one.
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
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from winpod.network.errors import NamespaceFailed
from winpod.own_thread import in_own_thread
from winpod.windows.errors import InvalidInput

DEFAULT_DIRECTORY = Path("/run/winpod/netns")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_OWN = Path("/proc/thread-self/ns/net")
_CLONE_NEWNET = 0x40000000
_MS_BIND = 4096
_MNT_DETACH = 2
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1
_INTERFACE_FLAGS = "16sH14x"
_OPEN_TO_ALL = {"ip_unprivileged_port_start": "0", "ping_group_range": "0 2147483647"}
"""Windows lets every program listen on every port, and send pings."""

_T = TypeVar("_T")
_libc = ctypes.CDLL(None, use_errno=True)


class Namespaces:
    def __init__(self, directory: Path = DEFAULT_DIRECTORY) -> None:
        self.directory = directory

    def path(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise InvalidInput(f'"{name}" cannot be the name of a network namespace.')
        return self.directory / name

    def exists(self, name: str) -> bool:
        return is_namespace(self.path(name))

    def names(self) -> list[str]:
        """All of them, half-made ones too."""
        try:
            return sorted(path.name for path in self.directory.iterdir())
        except FileNotFoundError:
            return []

    def create(self, name: str, existing: Path | None = None) -> Path:
        """A namespace with loopback up, new or one that exists. A name in use is an error."""
        path = self.path(name)
        if is_namespace(path):
            raise NamespaceFailed(f"The network namespace {path} exists already.")
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            path.touch(mode=0o444)
            in_own_thread(lambda: _make(path, existing))
        except OSError as error:
            with contextlib.suppress(NamespaceFailed):
                self.remove(name)
            raise NamespaceFailed(
                f"The network namespace {path} cannot be made: {error.strerror}.", _advice(error)
            ) from error
        return path

    def remove(self, name: str) -> None:
        """Whatever is there of it; nothing is fine too."""
        path = self.path(name)
        try:
            while _unmounted(path):
                pass
            path.unlink(missing_ok=True)
        except OSError as error:
            raise NamespaceFailed(
                f"The network namespace {path} cannot be removed: {error.strerror}.", _advice(error)
            ) from error

    def call(self, name: str, function: Callable[[], _T]) -> _T:
        """What the function returns when it is called inside the namespace."""
        return inside(self.path(name), function)


def is_namespace(path: Path) -> bool:
    try:
        return path.stat().st_dev == _OWN.stat().st_dev
    except OSError:
        return False


def has_interface(path: Path, name: str) -> bool:
    """Whether a namespace is there and has an interface of this name."""
    if not is_namespace(path):
        return False
    try:
        return inside(path, lambda: socket.if_nametoindex(name)) > 0
    except OSError:
        return False


def inside(path: Path, function: Callable[[], _T]) -> _T:
    def entered() -> _T:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                _succeed(_libc.setns(descriptor, _CLONE_NEWNET))
            finally:
                os.close(descriptor)
        except OSError as error:
            raise NamespaceFailed(
                f"The network namespace {path} cannot be entered: {error.strerror}.", _advice(error)
            ) from error
        return function()

    return in_own_thread(entered)


def _make(path: Path, existing: Path | None) -> None:
    if existing is None:
        _succeed(_libc.unshare(_CLONE_NEWNET))
    else:
        with existing.open() as namespace:
            _succeed(_libc.setns(namespace.fileno(), _CLONE_NEWNET))
    _raise_loopback()
    for name, text in _OPEN_TO_ALL.items():
        (Path("/proc/sys/net/ipv4") / name).write_text(text)
    _succeed(_libc.mount(bytes(_OWN), bytes(path), None, _MS_BIND, None))


def _raise_loopback() -> None:
    """The kernel gives it 127.0.0.1 and ::1 by itself; this is all that the CNI plugin does."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as any_socket:
        asked = struct.pack(_INTERFACE_FLAGS, b"lo", 0)
        name, flags = struct.unpack(_INTERFACE_FLAGS, fcntl.ioctl(any_socket, _SIOCGIFFLAGS, asked))
        raised = struct.pack(_INTERFACE_FLAGS, name, flags | _IFF_UP)
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, raised)


def _unmounted(path: Path) -> bool:
    """Whether there was a mount to take away."""
    if _libc.umount2(bytes(path), _MNT_DETACH) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOENT):
        return False
    raise OSError(number, os.strerror(number))


def _succeed(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _advice(error: OSError) -> str:
    return "This needs root." if error.errno in (errno.EPERM, errno.EACCES) else ""
