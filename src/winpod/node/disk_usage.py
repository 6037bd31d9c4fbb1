"""How much of a disk a directory uses, looked at no more than once a minute."""

from __future__ import annotations

import asyncio
import os
import stat
import time
from dataclasses import dataclass, field
from pathlib import Path

_KEPT_SECONDS = 60.0
_BLOCK = 512


@dataclass(frozen=True, slots=True)
class DiskUsed:
    """At a time in nanoseconds since 1970."""

    time: int
    bytes: int = 0
    inodes: int = 0


@dataclass(frozen=True, slots=True)
class Disk:
    """The file system that a directory is on."""

    capacity_bytes: int
    available_bytes: int
    free_bytes: int
    inodes: int
    inodes_free: int

    def used(self) -> DiskUsed:
        """Now; a part of what is free may be kept for the system, and so not available."""
        return DiskUsed(
            time.time_ns(),
            self.capacity_bytes - self.free_bytes,
            max(0, self.inodes - self.inodes_free),
        )


def disk_of(folder: Path) -> Disk:
    """The one that a directory is on, or will be."""
    found = os.statvfs(next(place for place in (folder, *folder.parents) if place.exists()))
    return Disk(
        found.f_frsize * found.f_blocks,
        found.f_frsize * found.f_bavail,
        found.f_frsize * found.f_bfree,
        found.f_files,
        found.f_ffree,
    )


@dataclass(slots=True)
class DiskUsage:
    _known: dict[Path, tuple[DiskUsed, float]] = field(default_factory=dict)

    async def read(self, folder: Path) -> DiskUsed:
        known = self._known.get(folder)
        if known and known[1] > time.monotonic():
            return known[0]
        found = await asyncio.to_thread(measure, folder)
        self._known[folder] = (found, time.monotonic() + _KEPT_SECONDS)
        return found

    def forget_the_expired(self) -> None:
        now = time.monotonic()
        self._known = {folder: kept for folder, kept in self._known.items() if kept[1] > now}


def measure(folder: Path) -> DiskUsed:
    """What is below a directory, files with several names once; links lead nowhere."""
    size, counted = 0, set()
    waiting = [str(folder)]
    while waiting:
        path = waiting.pop()
        try:
            found = os.lstat(path)
            if (found.st_dev, found.st_ino) in counted:
                continue
            counted.add((found.st_dev, found.st_ino))
            size += found.st_blocks * _BLOCK
            if stat.S_ISDIR(found.st_mode):
                waiting += [entry.path for entry in os.scandir(path)]
        except OSError:
            continue
    return DiskUsed(time.time_ns(), size, len(counted))
