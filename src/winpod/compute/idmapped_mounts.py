"""Mounts by the kernel's mount API: cloned as detached trees, given owners and flags, attached.

A detached tree belongs to a file descriptor and ends with it, so a crash leaves none behind.
Targets are opened below a root that symlinks cannot escape, because its content comes from images.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from winpod.concurrency import run_in_own_thread

_libc = ctypes.CDLL(None, use_errno=True)

_OPEN_TREE, _MOVE_MOUNT, _OPENAT2, _MOUNT_SETATTR = 428, 429, 437, 442
_AT_FDCWD, _AT_EMPTY_PATH, _AT_RECURSIVE = -100, 0x1000, 0x8000
_OPEN_TREE_CLONE = 1
_FROM_EMPTY, _TO_EMPTY = 0x4, 0x40
_READ_ONLY, _NO_SETUID, _NO_DEVICES, _OWNERS = 0x1, 0x2, 0x4, 0x100000
_RESOLVE_IN_ROOT = 0x10
_CLONE_FS, _NEW_MOUNTS = 0x200, 0x20000
_MS_REC, _MS_PRIVATE = 1 << 14, 1 << 18
_DETACH, _NO_FOLLOW = 2, 8


@contextmanager
def clone_tree(path: Path | str) -> Iterator[int]:
    """Clone the mounts at a path as a detached, private tree.

    Where the source's propagation is shared (the default under systemd), a clone is a peer of its
    source: unmounting the source would remove the clone's child mounts too.
    """
    tree = _open_tree(path)
    try:
        _set(tree, propagation=_MS_PRIVATE)
        yield tree
    finally:
        os.close(tree)


def _open_tree(path: Path | str) -> int:
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC | _AT_RECURSIVE
    return _call(_OPEN_TREE, _AT_FDCWD, os.fsencode(path), flags)


def set_tree_attributes(tree: int, *, readonly: bool = False, owners: int | None = None) -> None:
    """Set nosuid and nodev on a tree; `owners` is a user namespace to map file owners with."""
    flags = _NO_SETUID | _NO_DEVICES | (_READ_ONLY if readonly else 0)
    _set(tree, flags)
    if owners is not None:
        _set(tree, _OWNERS, owners=owners)


def _set(tree: int, flags: int = 0, *, propagation: int = 0, owners: int = 0) -> None:
    attributes = struct.pack("QQQQ", flags, 0, propagation, owners)
    how = _AT_EMPTY_PATH | _AT_RECURSIVE
    _call(_MOUNT_SETATTR, tree, b"", how, attributes, ctypes.c_size_t(len(attributes)))


def move_tree(tree: int, target: int) -> None:
    """Attach a tree to an open mount point."""
    _call(_MOVE_MOUNT, tree, b"", target, b"", _FROM_EMPTY | _TO_EMPTY)


def move_tree_to(tree: int, path: Path) -> None:
    target = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        move_tree(tree, target)
    finally:
        os.close(target)


def move_tree_into(tree: int, pid: int, path: str) -> None:
    """Attach a tree to a path in the mount namespace of a process, over existing mounts."""

    def enter_and_move() -> None:
        namespace = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _check(_libc.unshare(_CLONE_FS))
            _check(_libc.setns(namespace, _NEW_MOUNTS))
        finally:
            os.close(namespace)
        _call(_MOVE_MOUNT, tree, b"", _AT_FDCWD, path.encode(), _FROM_EMPTY)

    run_in_own_thread(enter_and_move)


def mount_overlay(lower: Sequence[int], disk: Path | None, target: Path) -> None:
    """Mount an overlay of detached trees, topmost first; without a `disk` it is read-only.

    Kernels up to at least 6.12 refuse lower layers outside the caller's mount namespace. So the
    trees are attached in a mount namespace of the thread's own, which ends with the thread.
    """
    tree = run_in_own_thread(lambda: _overlay_tree(lower, disk, target))
    try:
        move_tree_to(tree, target)
    finally:
        os.close(tree)


def _overlay_tree(lower: Sequence[int], disk: Path | None, scratch: Path) -> int:
    """Return a detached overlay. `scratch` is a mount point for the thread's own namespace."""
    options = f"lowerdir={':'.join(str(number) for number in range(len(lower)))}"
    if disk:
        options += f",upperdir={_escaped(disk / 'upper')},workdir={_escaped(disk / 'work')}"
    _check(_libc.unshare(_NEW_MOUNTS))
    _mount("none", Path("/"), flags=_MS_REC | _MS_PRIVATE)
    _mount("tmpfs", scratch)
    os.chdir(scratch)  # this thread only; relative layer names keep the options below a page
    for number, tree in enumerate(lower):
        layer = Path(str(number))
        layer.mkdir()
        move_tree_to(tree, layer)
    merged = Path("merged")
    merged.mkdir()
    _mount("overlay", merged, _NO_SETUID | _NO_DEVICES, options)
    return _open_tree(merged)


def _mount(kind: str, target: Path, flags: int = 0, options: str = "") -> None:
    name = kind.encode()
    _check(_libc.mount(name, os.fsencode(target), name, flags, options.encode()))


def unmount(path: Path) -> None:
    """Detach all mounts on a path, if any. Does not follow a symlink."""
    while _libc.umount2(os.fsencode(path), _DETACH | _NO_FOLLOW) == 0:
        pass
    if ctypes.get_errno() not in (errno.EINVAL, errno.ENOENT):
        _check(-1)


@contextmanager
def open_path(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def open_in_root(root: int, path: str, flags: int) -> int:
    """Open a path with `root` as the root directory, also for symlinks."""
    how = struct.pack("QQQ", flags | os.O_CLOEXEC, 0, _RESOLVE_IN_ROOT)
    return _call(_OPENAT2, root, os.fsencode(path or "."), how, ctypes.c_size_t(len(how)))


def find_name_ignoring_case(folder: int, name: str) -> str | None:
    """Return the name of a directory entry as it is spelled on disk, or None."""
    return next((entry for entry in os.listdir(folder) if entry.upper() == name.upper()), None)


def _escaped(path: Path) -> str:
    """Escape an overlayfs option, where a comma starts the next option."""
    return str(path).replace("\\", "\\\\").replace(",", "\\,").replace(":", "\\:")


def _call(number: int, *arguments: object) -> int:
    return _check(_libc.syscall(number, *arguments))


def _check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
