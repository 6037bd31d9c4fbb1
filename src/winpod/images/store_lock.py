"""Locks between processes that end with whoever has them.

A lock is a file with `flock`: the kernel lets go of it when the last process that has it open is
gone, so a lock that can be taken belongs to nobody who lives. Process ids would need guessing.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from pathlib import Path
from typing import Self

_LOOK_SECONDS = 0.05


class FileLock:
    """A file that is locked. `descriptor` may be inherited: the lock then lives as long."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor

    @classmethod
    def take(cls, path: Path) -> Self:
        """Wait for it."""
        while True:
            if lock := cls._open(path, fcntl.LOCK_EX):
                return lock

    @classmethod
    async def wait_for(cls, path: Path) -> Self:
        """As `take`, but whoever waits can be cancelled."""
        while True:
            if lock := cls.try_take(path):
                return lock
            await asyncio.sleep(_LOOK_SECONDS)

    @classmethod
    def try_take(cls, path: Path) -> Self | None:
        """It, or None where someone has it."""
        return cls._open(path, fcntl.LOCK_EX | fcntl.LOCK_NB)

    @classmethod
    def _open(cls, path: Path, how: int) -> Self | None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, how)
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
        """Let go, and leave no file: whoever waits on it finds it gone and opens another."""
        self.path.unlink(missing_ok=True)
        os.close(self.descriptor)


def _is_same_file(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
