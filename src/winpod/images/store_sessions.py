"""The work in progress of processes: a directory for each, and whether it still lives."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from winpod.images.store_lock import FileLock

_SHARED, _OWNER = "lock", "owner"


@dataclass(frozen=True, slots=True)
class Session:
    """A directory for work in progress, and the locks that say for whom it is there.

    The shared lock is inherited by processes that work in the directory, and keeps it; the owner's
    is not, and keeps the leases.
    """

    directory: Path
    shared: FileLock
    owner: FileLock


class Sessions:
    def __init__(self, ingest: Path) -> None:
        self._ingest = ingest
        self._own: Session | None = None

    def own(self) -> Session:
        """This process' place for what is in progress."""
        if self._own is None:
            directory = self._ingest / f"session-{uuid4().hex}"
            directory.mkdir(mode=0o700)
            self._own = Session(
                directory, FileLock.take(directory / _SHARED), FileLock.take(directory / _OWNER)
            )
        return self._own

    def dead(self) -> list[Path]:
        used = self._with(_SHARED)
        return [path for path in self._ingest.glob("session-*") if path.name not in used]

    def living(self) -> set[str]:
        return self._with(_OWNER)

    def _with(self, lock: str) -> set[str]:
        """Sessions in which a living process has a lock."""
        own = {self._own.directory.name} if self._own else set()
        others = {path.name for path in self._ingest.glob("session-*")} - own
        return own | {name for name in others if _is_locked(self._ingest / name / lock)}

    def close(self) -> None:
        if self._own:
            shutil.rmtree(self._own.directory, ignore_errors=True)
            self._own.owner.release()
            self._own.shared.release()
            self._own = None


def _is_locked(path: Path) -> bool:
    """Whether a living process has it."""
    try:
        lock = FileLock.try_take(path)
    except FileNotFoundError:
        return False
    if lock:
        lock.release()
    return lock is None
