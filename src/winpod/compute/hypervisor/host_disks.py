"""A disk of this machine, opened for one pod: nobody else has it as long as it is open.

QEMU is given the open file and not the name, so what was looked at is what is attached, and it is
free again when the microVM ends, however it ends.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from winpod.compute.disk_sources import FOOT_BYTES, HEAD_BYTES, RAW, DiskRefused, image_format
from winpod.compute.plan import Mount, SourceKind

_NOT_WRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM)


@dataclass(frozen=True, slots=True)
class HostDisk:
    """`name` is the same for the same disk, whatever path leads to it."""

    name: str
    descriptor: int
    format: str
    is_device: bool


def disk_name(mount: Mount) -> str:
    """Also says whether there is a disk at all."""
    return _name(_look(mount, lambda: Path(mount.source).stat()))


def open_disk(mount: Mount) -> HostDisk:
    """Only for one pod that writes, or for several that read."""
    disk_name(mount)
    is_device = mount.kind is SourceKind.PHYSICAL_DISK
    flags = os.O_RDONLY if mount.readonly else os.O_RDWR
    flags |= os.O_CLOEXEC | os.O_NONBLOCK | (os.O_EXCL if is_device else 0)
    try:
        descriptor = os.open(mount.source, flags)
    except OSError as error:
        raise _refused(mount, error) from None
    try:
        status = _look(mount, lambda: os.fstat(descriptor))
        if not mount.readonly and not is_device and not status.st_mode & 0o222:
            raise _read_only(mount)
        os.set_blocking(descriptor, True)
        _take(mount, descriptor)
        found = RAW if is_device else _format(mount.source, descriptor)
        return HostDisk(_name(status), descriptor, found, is_device)
    except BaseException:
        os.close(descriptor)
        raise


def _look(mount: Mount, stat_it: Callable[[], os.stat_result]) -> os.stat_result:
    try:
        status = stat_it()
    except OSError as error:
        raise _refused(mount, error) from None
    if mount.kind is SourceKind.PHYSICAL_DISK:
        if not stat.S_ISBLK(status.st_mode):
            raise DiskRefused(
                f"{mount.source} is no block device.",
                f"Name one, or an image in a file: virtual-disk://{mount.source}.",
            )
    elif not stat.S_ISREG(status.st_mode):
        raise DiskRefused(
            f"{mount.source} is not a file with a disk in it.",
            f"Name one, or a block device: physical-disk://{mount.source}.",
        )
    elif not status.st_size:
        raise DiskRefused(
            f"{mount.source} is empty, and a disk has a size.",
            f"Give it one: truncate -s 10G {mount.source}.",
        )
    return status


def _name(status: os.stat_result) -> str:
    is_device = stat.S_ISBLK(status.st_mode)
    where = f"{status.st_rdev}" if is_device else f"{status.st_dev}:{status.st_ino}"
    return hashlib.sha256(where.encode()).hexdigest()[:16]


def _take(mount: Mount, descriptor: int) -> None:
    """The lock is the open file's, which QEMU will have."""
    how = fcntl.LOCK_SH if mount.readonly else fcntl.LOCK_EX
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _in_use(mount) from None


def _format(path: str, descriptor: int) -> str:
    size = os.fstat(descriptor).st_size
    head = os.pread(descriptor, HEAD_BYTES, 0)
    return image_format(path, head, os.pread(descriptor, FOOT_BYTES, max(size - FOOT_BYTES, 0)))


def _refused(mount: Mount, error: OSError) -> DiskRefused:
    if error.errno == errno.ENOENT:
        return DiskRefused(
            f"there is no disk {mount.source}.", "Make it, or correct the path in the mount."
        )
    if error.errno == errno.EBUSY:
        return _in_use(mount)
    if error.errno in _NOT_WRITABLE and not mount.readonly:
        return _read_only(mount)
    return DiskRefused(f"the disk {mount.source} cannot be opened: {error.strerror}.")


def _in_use(mount: Mount) -> DiskRefused:
    return DiskRefused(
        f"the disk {mount.source} is in use, by another pod or by this machine.",
        "One pod at a time can have it; unmount it, or end the other pod.",
    )


def _read_only(mount: Mount) -> DiskRefused:
    return DiskRefused(
        f"the disk {mount.source} can only be read, and is to be written on {mount.destination}.",
        "Mount it read-only.",
    )
