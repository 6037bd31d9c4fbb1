"""A container's own disk: what it writes to C: goes here, and it can be full without anybody else.

As on Windows, where every container has a virtual disk, it has a size from the start, and takes of
the machine only what was written. It is an ext4 file system in a sparse file, without a journal:
a container does not outlive the machine's power.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from winpod.compute.errors import DiskFailed
from winpod.compute.mounts import unmount

DEFAULT_SIZE = 20 << 30
SMALLEST = 8 << 20
RESERVE = 64 << 20
"""What a full disk leaves of the machine's."""
_FEATURES = "^has_journal,^resize_inode"


def make_disk(folder: Path, size: int, owner: int) -> None:
    """`folder/disk` becomes an empty disk of that many bytes, with `upper` and `work` in it."""
    image, place = folder / "disk.img", folder / "disk"
    with image.open("wb") as file:
        file.truncate(max(size, SMALLEST))
    place.mkdir(exist_ok=True)
    _run("mkfs.ext4", "-q", "-F", "-m", "0", "-O", _FEATURES, "-E", "nodiscard", str(image))
    mount_disk(folder)
    for name in ("upper", "work"):
        (place / name).mkdir()
        os.chown(place / name, owner, owner)


def size_that_fits(folder: Path) -> int:
    """The usual size, or what the machine has left: who fills a disk that promises more, loses
    what he wrote last, and hears of it only if he asks."""
    return max(min(DEFAULT_SIZE, _left(folder) - RESERVE), SMALLEST)


def fits(folder: Path, size: int | None) -> bool:
    """Whether a disk on which nothing is yet has the size that is asked for, or promises no more
    than the machine still has; half of the reserve is for what others wrote since it was made."""
    present = (folder / "disk.img").stat().st_size
    if size:
        return present == max(size, SMALLEST)
    return present <= max(_left(folder) - RESERVE // 2, SMALLEST)


def _left(folder: Path) -> int:
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def mount_disk(folder: Path) -> None:
    options = "loop,nosuid,nodev,noatime,barrier=0"
    _run("mount", "-o", options, str(folder / "disk.img"), str(folder / "disk"))


def write_at_once(folder: Path) -> None:
    """What is written is on its way before the program goes on, so that its rate can be limited:
    what the kernel writes later, it writes in nobody's name."""
    _run("mount", "-o", "remount,sync", str(folder / "disk"))


def remove_disk(folder: Path) -> None:
    """Whatever is there of it."""
    unmount(folder / "disk")
    (folder / "disk.img").unlink(missing_ok=True)


def device_of(folder: Path) -> str:
    """The `major:minor` that the kernel counts and limits its traffic by."""
    number = (folder / "disk").stat().st_dev
    return f"{os.major(number)}:{os.minor(number)}"


def used(folder: Path) -> tuple[int, int]:
    """Bytes and inodes."""
    if not os.path.ismount(folder / "disk"):
        return 0, 0
    status = os.statvfs(folder / "disk")
    used_bytes = (status.f_blocks - status.f_bfree) * status.f_frsize
    return used_bytes, status.f_files - status.f_ffree


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    except FileNotFoundError:
        raise DiskFailed(f"this machine has no {command[0]}") from None
    if done.returncode:
        raise DiskFailed(f"{command[0]}: {done.stderr.strip()}")
