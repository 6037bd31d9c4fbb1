"""File helpers: locks between processes, atomic writes, and safe removal of directory trees.

Locks use `flock`: the kernel releases them when the last process that has the file open exits, so
there are no stale locks, unlike with PID files.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import itertools
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_POLL_SECONDS = 0.05


class FileLock:
    """A locked file. A child that inherits `descriptor` holds the lock as well."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    @classmethod
    def acquire(cls, path: Path, *, shared: bool = False, mode: int = 0o600) -> Self:
        """Wait for the lock. A missing file is created with this mode."""
        while True:
            if lock := cls._open(path, fcntl.LOCK_SH if shared else fcntl.LOCK_EX, mode):
                return lock

    @classmethod
    async def acquire_async(cls, path: Path) -> Self:
        """Wait for the lock; can be cancelled."""
        while True:
            if lock := cls.try_acquire(path):
                return lock
            await asyncio.sleep(_POLL_SECONDS)

    @classmethod
    def try_acquire(cls, path: Path) -> Self | None:
        """Return the lock, or None if it is held by another process."""
        return cls._open(path, fcntl.LOCK_EX | fcntl.LOCK_NB, 0o600)

    @classmethod
    def is_held(cls, path: Path) -> bool:
        """Whether a live process holds the lock, exclusively or shared."""
        try:
            lock = cls.try_acquire(path)
        except FileNotFoundError:
            return False
        if lock:
            lock.release()
        return lock is None

    @classmethod
    def _open(cls, path: Path, operation: int, mode: int) -> Self | None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
        try:
            fcntl.flock(descriptor, operation)
            if _is_same_file(path, descriptor):
                return cls(path, descriptor)
        except BlockingIOError:
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        return None

    def release(self) -> None:
        os.close(self.descriptor)

    def remove(self) -> None:
        """Delete the file and release the lock. Waiters notice this and create a new file."""
        self.path.unlink(missing_ok=True)
        os.close(self.descriptor)


def _is_same_file(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def user_home() -> Path:
    """Return the home directory, or /dev/null for a user without one, as in a container."""
    try:
        return Path.home()
    except RuntimeError:
        return Path(os.devnull)


_CURRENT = "..data"
_NEXT = "..data_tmp"

FileContents = Mapping[str, bytes]
"""Content by relative path."""


def read_directory(folder: Path) -> dict[str, bytes]:
    """Read the current content of a directory written by `write_directory_atomic`."""
    current = folder / _CURRENT
    if not current.exists():
        return {}
    found = (path for path in current.resolve().rglob("*") if path.is_file())
    return {str(path.relative_to(current.resolve())): path.read_bytes() for path in found}


def write_directory_atomic(folder: Path, files: FileContents) -> bool:
    """Replace the content of the directory atomically; return whether anything changed.

    As the kubelet's AtomicWriter: the files are in a hidden directory, `..data` is a symlink to it,
    and every visible name is a symlink through `..data`. Only that symlink is replaced.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(folder)
    if (folder / _CURRENT).exists() and read_directory(folder) == dict(files):
        return False
    content_directory = Path(tempfile.mkdtemp(prefix="..", dir=folder))
    content_directory.chmod(0o755)
    for name, content in files.items():
        (content_directory / name).parent.mkdir(parents=True, exist_ok=True)
        (content_directory / name).write_bytes(content)
    previous = (folder / _CURRENT).readlink() if (folder / _CURRENT).is_symlink() else None
    (folder / _NEXT).unlink(missing_ok=True)
    (folder / _NEXT).symlink_to(content_directory.name)
    (folder / _NEXT).replace(folder / _CURRENT)
    _update_links(folder, {name.partition("/")[0] for name in files})
    if previous:
        remove_tree(folder / previous, ignore_errors=True)
    return True


def _update_links(folder: Path, names: set[str]) -> None:
    existing = {path.name for path in folder.iterdir() if not path.name.startswith("..")}
    for name in names - existing:
        (folder / name).symlink_to(f"{_CURRENT}/{name}")
    for name in existing - names:
        (folder / name).unlink()


def _remove_leftovers(folder: Path) -> None:
    """Remove content left by an interrupted write."""
    current = (folder / _CURRENT).readlink().name if (folder / _CURRENT).is_symlink() else ""
    for path in folder.iterdir():
        is_content = path.name.startswith("..") and path.is_dir() and not path.is_symlink()
        if is_content and path.name != current:
            remove_tree(path)


def write_atomic(file: Path, content: bytes) -> None:
    """Write the file atomically, readable by its owner only."""
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_name(f".{file.name}.new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(content)
        opened.flush()
        os.fsync(opened.fileno())
    new.replace(file)


@dataclass(frozen=True, slots=True)
class TreeUsage:
    bytes: int
    inodes: int


def tree_usage(*trees: Path, ignore_errors: bool = False) -> TreeUsage:
    """Return the disk usage. Each inode counts once, and symlinks are not followed."""
    blocks: dict[tuple[int, int], int] = {}
    pending = [os.fspath(tree) for tree in trees]
    while pending:
        path = pending.pop()
        try:
            status = os.lstat(path)
            inode = (status.st_dev, status.st_ino)
            if inode in blocks:
                continue
            blocks[inode] = status.st_blocks
            if stat.S_ISDIR(status.st_mode):
                with os.scandir(path) as entries:
                    pending += [entry.path for entry in entries]
        except OSError:
            if not ignore_errors:
                raise
    return TreeUsage(sum(blocks.values()) * 512, len(blocks))


def sync_filesystem(directory: Path) -> None:
    """Write the directory's filesystem to disk, so that a power failure does not lose content."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    finally:
        os.close(descriptor)


_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(path: Path, *, ignore_errors: bool = False) -> None:
    """Remove a directory with everything in it, however deep.

    Symlinks are not followed and mount points are not entered: mounts in the tree are kept, and
    raise OSError after everything else is removed. A directory is renamed into the topmost one
    before it is emptied: this fails for mount points, and bounds stack and open files at any depth.
    """
    try:
        _remove_content(path)
        path.rmdir()
    except OSError:
        if not ignore_errors:
            raise


def _remove_content(path: Path) -> None:
    top = os.open(path, _DIRECTORY)
    prefix, numbers = f".removing-{secrets.token_hex(8)}-", itertools.count()
    names = (f"{prefix}{number}" for number in numbers)
    try:
        while True:
            removed, failure = _remove_entries(top, path, names)
            if failure and not removed:
                raise failure
            if not failure and not removed:
                return
    finally:
        os.close(top)


def _remove_entries(top: int, path: Path, names: Iterator[str]) -> tuple[int, OSError | None]:
    """Return how many entries were removed, and the first failure."""
    removed, failure = 0, None
    with os.scandir(top) as entries:
        for entry in entries:
            try:
                if entry.is_dir(follow_symlinks=False):
                    new = next(names)
                    _move(top, entry.name, top, new)
                    _remove_directory(top, new, names)
                else:
                    os.unlink(entry.name, dir_fd=top)
                removed += 1
            except FileNotFoundError:
                removed += 1
            except OSError as error:
                error.filename = str(path / entry.name)
                failure = failure or error
    return removed, failure


def _remove_directory(top: int, name: str, names: Iterator[str]) -> None:
    """Remove a directory in `top`; its subdirectories become directories in `top`."""
    folder = _open_directory(top, name)
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    _move(folder, entry.name, top, next(names))
                else:
                    os.unlink(entry.name, dir_fd=folder)
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=top)


def _move(folder: int, name: str, top: int, new: str) -> None:
    try:
        os.rename(name, new, src_dir_fd=folder, dst_dir_fd=top)
    except PermissionError:  # without root: a directory that is not writable by its owner
        os.chmod(name, 0o700, dir_fd=folder)
        os.rename(name, new, src_dir_fd=folder, dst_dir_fd=top)


def _open_directory(top: int, name: str) -> int:
    try:
        return os.open(name, _DIRECTORY, dir_fd=top)
    except PermissionError:
        os.chmod(name, 0o700, dir_fd=top)
        return os.open(name, _DIRECTORY, dir_fd=top)
