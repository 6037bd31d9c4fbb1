"""The scratch disk of a container, which holds what it writes to C:.

As on Windows, every container has a virtual disk of fixed size that uses only the space that was
written, so a full disk affects no other container. It is an ext4 file system in a sparse file,
without a journal: a container does not survive a power failure of the host.
"""

from __future__ import annotations

import os
from pathlib import Path

from winpod.compute.errors import DiskFailed
from winpod.compute.idmapped_mounts import unmount
from winpod.subprocesses import run_blocking

DEFAULT_SIZE = 20 << 30
MIN_SIZE = 8 << 20
RESERVE = 64 << 20
"""Free space that full scratch disks leave on the host's disk."""
_FEATURES = "^has_journal,^resize_inode"


def create_disk(folder: Path, size: int, owner: int) -> None:
    """Create and mount an empty disk at `folder/disk`, with directories `upper` and `work`."""
    image, mountpoint = folder / "disk.img", folder / "disk"
    with image.open("wb") as file:
        file.truncate(max(size, MIN_SIZE))
    mountpoint.mkdir(exist_ok=True)
    _run("mkfs.ext4", "-q", "-F", "-m", "0", "-O", _FEATURES, "-E", "nodiscard", str(image))
    mount_disk(folder)
    for name in ("upper", "work"):
        (mountpoint / name).mkdir()
        os.chown(mountpoint / name, owner, owner)


def default_disk_size(folder: Path) -> int:
    """Return the default size, or what the host has left if that is less.

    On an overcommitted disk, writes are lost when the host's disk is full, and a program notices
    only if it syncs.
    """
    return max(min(DEFAULT_SIZE, _free_bytes(folder) - RESERVE), MIN_SIZE)


def has_disk_size(folder: Path, size: int | None) -> bool:
    """Report whether an empty disk has the requested size, or fits the free space by default.

    Half of the reserve is left for what others wrote since the disk was created.
    """
    current = (folder / "disk.img").stat().st_size
    if size:
        return current == max(size, MIN_SIZE)
    return current <= max(_free_bytes(folder) - RESERVE // 2, MIN_SIZE)


def _free_bytes(folder: Path) -> int:
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def mount_disk(folder: Path) -> None:
    options = "loop,nosuid,nodev,noatime,barrier=0"
    _run("mount", "-o", options, str(folder / "disk.img"), str(folder / "disk"))


def disable_write_cache(folder: Path) -> None:
    """Mount with sync, so that I/O limits apply: the kernel attributes delayed writes to no
    cgroup."""
    _run("mount", "-o", "remount,sync", str(folder / "disk"))


def remove_disk(folder: Path) -> None:
    """Unmount and delete the disk, also a partially created one."""
    unmount(folder / "disk")
    (folder / "disk.img").unlink(missing_ok=True)


def block_device(folder: Path) -> str:
    """Return the `major:minor` of the disk, by which cgroups limit I/O."""
    number = (folder / "disk").stat().st_dev
    return f"{os.major(number)}:{os.minor(number)}"


def disk_usage(folder: Path) -> tuple[int, int]:
    """Return the used bytes and inodes."""
    if not os.path.ismount(folder / "disk"):
        return 0, 0
    status = os.statvfs(folder / "disk")
    used_bytes = (status.f_blocks - status.f_bfree) * status.f_frsize
    return used_bytes, status.f_files - status.f_ffree


def _run(*command: str) -> None:
    try:
        done = run_blocking(command)
    except FileNotFoundError:
        raise DiskFailed(f"this host has no {command[0]}") from None
    if done.code:
        raise DiskFailed(f"{command[0]}: {done.error_text}")
