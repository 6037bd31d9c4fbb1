"""Mounts by the kernel's own calls: made apart, given owners and flags, and put in their place.

A tree that is still apart belongs to a descriptor and goes with it, so a crash leaves none behind.
Targets are opened below a root that no link leads out of, because what is there came with an image.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from winpod.own_thread import in_own_thread

_libc = ctypes.CDLL(None, use_errno=True)

_OPEN_TREE, _MOVE_MOUNT, _OPENAT2, _MOUNT_SETATTR = 428, 429, 437, 442
_AT_FDCWD, _AT_EMPTY_PATH, _AT_RECURSIVE = -100, 0x1000, 0x8000
_OPEN_TREE_CLONE = 1
_FROM_EMPTY, _TO_EMPTY = 0x4, 0x40
_READ_ONLY, _NO_SETUID, _NO_DEVICES, _OWNERS = 0x1, 0x2, 0x4, 0x100000
_RESOLVE_IN_ROOT = 0x10
_CLONE_FS, _NEW_MOUNTS = 0x200, 0x20000
_DETACH, _NO_FOLLOW = 2, 8


@contextmanager
def cloned(path: Path | str) -> Iterator[int]:
    """A copy of the mounts at a path, apart from everything."""
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC | _AT_RECURSIVE
    tree = _call(_OPEN_TREE, _AT_FDCWD, os.fsencode(path), flags)
    try:
        yield tree
    finally:
        os.close(tree)


def restrict(tree: int, *, readonly: bool = False, owners: int | None = None) -> None:
    """No set-user-id and no devices; `owners` is a user namespace whose users own the files."""
    flags = _NO_SETUID | _NO_DEVICES | (_READ_ONLY if readonly else 0)
    _set(tree, flags, 0)
    if owners is not None:
        _set(tree, _OWNERS, owners)


def _set(tree: int, flags: int, owners: int) -> None:
    attributes = struct.pack("QQQQ", flags, 0, 0, owners)
    how = _AT_EMPTY_PATH | _AT_RECURSIVE
    _call(_MOUNT_SETATTR, tree, b"", how, attributes, ctypes.c_size_t(len(attributes)))


def attach(tree: int, target: int) -> None:
    """Put a tree on an open place."""
    _call(_MOVE_MOUNT, tree, b"", target, b"", _FROM_EMPTY | _TO_EMPTY)


def attach_at(tree: int, path: Path) -> None:
    target = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        attach(tree, target)
    finally:
        os.close(target)


def attach_inside(tree: int, pid: int, path: str) -> None:
    """Put a tree on a path as a process sees it, over what it had there."""

    def act() -> None:
        namespace = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _check(_libc.unshare(_CLONE_FS))
            _check(_libc.setns(namespace, _NEW_MOUNTS))
        finally:
            os.close(namespace)
        _call(_MOVE_MOUNT, tree, b"", _AT_FDCWD, path.encode(), _FROM_EMPTY)

    in_own_thread(act)


def mount_overlay(lower: Sequence[int], disk: Path | None, target: Path) -> None:
    """`lower` are open trees, the topmost first; without a `disk` nothing can be written."""
    options = f"lowerdir={':'.join(f'/proc/self/fd/{tree}' for tree in lower)}"
    if disk:
        options += f",upperdir={_escaped(disk / 'upper')},workdir={_escaped(disk / 'work')}"
    kind = b"overlay"
    flags = _NO_SETUID | _NO_DEVICES
    _check(_libc.mount(kind, os.fsencode(target), kind, flags, options.encode()))


def unmount(path: Path) -> None:
    """All that is mounted on a path; nothing is fine too, and what a link leads to stays."""
    while _libc.umount2(os.fsencode(path), _DETACH | _NO_FOLLOW) == 0:
        pass
    if ctypes.get_errno() not in (errno.EINVAL, errno.ENOENT):
        _check(-1)


@contextmanager
def opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def open_below(root: int, path: str, flags: int) -> int:
    """What a path means to somebody whose `/` is the root, links and all."""
    how = struct.pack("QQQ", flags | os.O_CLOEXEC, 0, _RESOLVE_IN_ROOT)
    return _call(_OPENAT2, root, os.fsencode(path or "."), how, ctypes.c_size_t(len(how)))


def name_in(folder: int, name: str) -> str | None:
    """The name that an open directory has for what Windows finds there, whatever its case."""
    return next((one for one in os.listdir(folder) if one.upper() == name.upper()), None)


def _escaped(path: Path) -> str:
    """Overlayfs takes a comma for the next option."""
    return str(path).replace("\\", "\\\\").replace(",", "\\,").replace(":", "\\:")


def _call(number: int, *arguments: object) -> int:
    return _check(_libc.syscall(number, *arguments))


def _check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
