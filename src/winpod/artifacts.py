"""Directories of artifacts that are built once and then only read.

An artifact is built in a directory with a leading dot that is renamed when it is complete. Builds
and removals hold a lock; the next one removes directories that a crashed one left.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from winpod.files import FileLock, remove_tree, sync_filesystem

_BUILDING, _REMOVING, _LOCK = ".building-", ".removing-", ".lock"


def artifact_id(inputs: object) -> str:
    """Return the digest of everything that an artifact is built from, its name."""
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


class ArtifactDirectory:
    """Artifacts of one kind. All methods except `complete` and the locks require the lock.

    `discard` removes an incomplete or outdated artifact, `mode` are the permissions of a complete
    one.
    """

    def __init__(
        self, path: Path, *, discard: Callable[[Path], None] = remove_tree, mode: int = 0o755
    ) -> None:
        self.path = path
        self._discard = discard
        self._mode = mode

    def lock(self, on_wait: Callable[[], None] = lambda: None) -> FileLock:
        """Wait for the lock; call `on_wait` first if another process holds it."""
        self.path.mkdir(parents=True, exist_ok=True)
        if lock := FileLock.try_acquire(self.path / _LOCK):
            return lock
        on_wait()
        return FileLock.acquire(self.path / _LOCK)

    async def lock_async(self) -> FileLock:
        self.path.mkdir(parents=True, exist_ok=True)
        return await FileLock.acquire_async(self.path / _LOCK)

    def complete(self) -> list[Path]:
        try:
            return [path for path in self.path.iterdir() if path.name[0] != "."]
        except FileNotFoundError:
            return []

    def sweep(self) -> None:
        """Remove directories of crashed builds and removals."""
        for path in list(self.path.iterdir()):
            if path.name.startswith((_BUILDING, _REMOVING)):
                self._discard(path)

    @contextmanager
    def building(self) -> Iterator[Path]:
        """Return a directory to build in, which `save` completes; a failure discards it."""
        work = Path(tempfile.mkdtemp(prefix=_BUILDING, dir=self.path))
        try:
            yield work
        except BaseException:
            with contextlib.suppress(OSError):  # the next build removes it
                self._discard(work)
            raise

    def save(self, work: Path, name: str) -> Path:
        """Rename a finished build; an existing artifact with that name is equivalent."""
        work.chmod(self._mode)
        sync_filesystem(work)
        final = self.path / name
        if final.exists():
            self._discard(work)
        else:
            work.rename(final)
        return final

    def remove(self, artifacts: Iterable[Path]) -> None:
        """Remove artifacts: atomically out of use, then their content."""
        for path in artifacts:
            path.rename(path.with_name(f"{_REMOVING}{path.name}"))
        self.sweep()

    def keep_only(self, artifact: Path) -> None:
        """Remove all others."""
        self.remove([path for path in self.complete() if path != artifact])
