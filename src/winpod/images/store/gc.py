"""Garbage collection of the image store, with its file layout and per-process work directories."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from winpod.files import FileLock, remove_tree
from winpod.images.store.database import StoreDatabase


@dataclass(frozen=True, slots=True)
class StorePaths:
    root: Path

    def create(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True, mode=0o711)
        for part in (self.content, self.layers, self.blobs):
            part.mkdir(parents=True, exist_ok=True)

    @property
    def content(self) -> Path:
        return self.root / "content"

    @property
    def layers(self) -> Path:
        return self.root / "layers"

    @property
    def ingest(self) -> Path:
        return self.root / "ingest"

    @property
    def blobs(self) -> Path:
        return self.root / "ingest" / "blobs"

    def document(self, digest: str) -> Path:
        return self.root / "content" / digest.replace(":", "/")

    def layer(self, diff_id: str) -> Path:
        return self.root / "layers" / diff_id.partition(":")[2]

    def blob(self, digest: str) -> Path:
        """Path of a download until it is unpacked."""
        return self.blobs / digest.replace(":", "-")

    def blob_lock(self, digest: str) -> Path:
        """Lock file of the process that writes the blob."""
        path = self.blob(digest)
        return path.with_name(f"{path.name}.lock")


def delete_unreferenced(database: StoreDatabase, oldest: float, active: Collection[str]) -> None:
    """Delete leases that are older than `oldest` and not active, and all unreferenced rows."""
    rows = database.execute(
        "SELECT id, session FROM leases WHERE created_at < ?", (oldest,)
    ).fetchall()
    database.executemany(
        "DELETE FROM leases WHERE id = ?",
        [(row["id"],) for row in rows if row["session"] not in active],
    )
    for statement in (
        "DELETE FROM documents WHERE root NOT IN (SELECT root FROM names)",
        "DELETE FROM images WHERE NOT EXISTS (SELECT 1 FROM names WHERE "
        "(names.host, names.handler, names.id) = (images.host, images.handler, images.id))",
        "DELETE FROM manifests WHERE digest NOT IN "
        "(SELECT manifest FROM images UNION SELECT manifest FROM holds)",
        "DELETE FROM layers WHERE diff_id NOT IN (SELECT diff_id FROM manifest_layers WHERE kept)",
    ):
        database.execute(statement)


def unreferenced_files(database: StoreDatabase, paths: StorePaths) -> list[Path]:
    documents = database.column(
        "SELECT digest FROM documents UNION SELECT digest FROM manifests "
        "UNION SELECT config FROM manifests "
        "UNION SELECT digest FROM leased WHERE kind = 'document'"
    )
    layers = database.column(
        "SELECT diff_id FROM manifest_layers WHERE kept "
        "UNION SELECT digest FROM leased WHERE kind = 'layer'"
    )
    blobs = database.column("SELECT digest FROM leased WHERE kind = 'blob'")
    kept = {
        *map(paths.document, documents),
        *map(paths.layer, layers),
        *map(paths.blob, blobs),
        *map(paths.blob_lock, blobs),
    }
    existing = [
        *paths.content.glob("*/*"),
        *paths.layers.iterdir(),
        *paths.blobs.iterdir(),
    ]
    return [path for path in existing if path not in kept]


def rename_aside(path: Path, ingest: Path) -> Path | None:
    """Remove a file, or rename a directory so that the caller can delete it later."""
    if path.name.startswith("trash-"):
        return path
    if not path.is_dir():
        path.unlink(missing_ok=True)
        return None
    return path.rename(ingest / f"trash-{uuid4().hex}")


_SHARED, _OWNER = "lock", "owner"


@dataclass(frozen=True, slots=True)
class WorkDirectory:
    """A directory for work in progress, and its locks.

    Worker processes inherit the shared lock, which protects the directory. They do not inherit the
    owner lock, which protects the leases.
    """

    directory: Path
    shared: FileLock
    owner: FileLock


class WorkDirectories:
    def __init__(self, ingest: Path) -> None:
        self._ingest = ingest
        self._own: WorkDirectory | None = None

    def current(self) -> WorkDirectory:
        """Return the work directory of this process, creating it if needed."""
        if self._own is None:
            directory = self._ingest / f"session-{uuid4().hex}"
            directory.mkdir(mode=0o700)
            self._own = WorkDirectory(
                directory,
                FileLock.acquire(directory / _SHARED),
                FileLock.acquire(directory / _OWNER),
            )
        return self._own

    def stale(self) -> list[Path]:
        used = self._sessions_holding(_SHARED)
        return [path for path in self._ingest.glob("session-*") if path.name not in used]

    def active(self) -> set[str]:
        return self._sessions_holding(_OWNER)

    def _sessions_holding(self, lock: str) -> set[str]:
        """Return the sessions whose lock is held by a live process."""
        own = {self._own.directory.name} if self._own else set()
        others = {path.name for path in self._ingest.glob("session-*")} - own
        return own | {name for name in others if FileLock.is_held(self._ingest / name / lock)}

    def close(self) -> None:
        if self._own:
            remove_tree(self._own.directory, ignore_errors=True)
            self._own.owner.release()
            self._own.shared.release()
            self._own = None
