"""SQLite database of the image store: schema and image queries.

Write transactions are exclusive across processes.
"""

from __future__ import annotations

import sqlite3
from functools import partial
from pathlib import Path

from winpod.database import Database, NewerVersion
from winpod.errors import InvalidInput
from winpod.files import FileLock
from winpod.images.errors import StoreUnavailable, database_error, store_error
from winpod.images.references import parse_reference
from winpod.images.store.records import StoredImage, StoredLayer, VariantKey
from winpod.windows.handlers import Handlers

BUSY_SECONDS = 60.0

_IMAGES = """
CREATE TABLE manifests (
    digest TEXT PRIMARY KEY,
    config TEXT NOT NULL,
    architecture TEXT NOT NULL,
    os_version TEXT NOT NULL,
    documents INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE manifest_layers (
    manifest TEXT NOT NULL REFERENCES manifests ON DELETE CASCADE,
    position INTEGER NOT NULL,
    digest TEXT NOT NULL,
    diff_id TEXT NOT NULL,
    base INTEGER NOT NULL,
    kept INTEGER NOT NULL,
    PRIMARY KEY (manifest, position)
) WITHOUT ROWID;
CREATE TABLE layers (
    diff_id TEXT PRIMARY KEY,
    bytes INTEGER NOT NULL,
    inodes INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE images (
    host TEXT NOT NULL,
    handler TEXT NOT NULL,
    id TEXT NOT NULL,
    manifest TEXT NOT NULL REFERENCES manifests,
    pulled_at REAL NOT NULL,
    PRIMARY KEY (host, handler, id)
) WITHOUT ROWID;
CREATE TABLE names (
    host TEXT NOT NULL,
    handler TEXT NOT NULL,
    name TEXT NOT NULL,
    id TEXT NOT NULL,
    root TEXT NOT NULL,
    PRIMARY KEY (host, handler, name),
    FOREIGN KEY (host, handler, id) REFERENCES images ON DELETE CASCADE
) WITHOUT ROWID;
CREATE TABLE documents (
    root TEXT NOT NULL,
    digest TEXT NOT NULL,
    PRIMARY KEY (root, digest)
) WITHOUT ROWID;
CREATE TABLE leases (
    id TEXT PRIMARY KEY,
    purpose TEXT NOT NULL,
    session TEXT NOT NULL,
    created_at REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE leased (
    lease TEXT NOT NULL REFERENCES leases ON DELETE CASCADE,
    kind TEXT NOT NULL,
    digest TEXT NOT NULL,
    PRIMARY KEY (lease, kind, digest)
) WITHOUT ROWID
"""

_PINS_AND_HOLDS = """
ALTER TABLE images ADD COLUMN pinned INTEGER NOT NULL DEFAULT 0;
CREATE TABLE holds (
    owner TEXT NOT NULL,
    manifest TEXT NOT NULL REFERENCES manifests,
    PRIMARY KEY (owner, manifest)
) WITHOUT ROWID
"""

MIGRATIONS = (_IMAGES, _PINS_AND_HOLDS)


class StoreDatabase(Database):
    """Run statements inside `read_transaction` or `write_transaction`.

    Only removals are durable. A lease lost in a power failure does no harm, because its content is
    likely lost too; a lost removal would.
    """

    def __init__(self, root: Path) -> None:
        try:
            open_lock = FileLock.acquire(root / "state.lock")
        except OSError as error:
            raise store_error(root, error) from None
        with open_lock:  # several processes may create or migrate it
            super().__init__(
                root / "state.db",
                MIGRATIONS,
                convert_error=partial(_store_error, root),
                busy_seconds=BUSY_SECONDS,
            )


def _store_error(root: Path, error: Exception) -> Exception:
    if isinstance(error, NewerVersion):
        return StoreUnavailable(
            f"{root / 'state.db'} has version {error.version}, and this winpod supports up to "
            f"version {len(MIGRATIONS)}.",
            "It was created by a newer winpod: use that one, or another root.",
        )
    if isinstance(error, sqlite3.Error):
        return database_error(root, error)
    return store_error(root, error) if isinstance(error, OSError) else error


_MIN_ID_PREFIX = 4


class ImageQueries:
    """Image queries for the nodes of one host build, or for the whole store if `host` is None."""

    def __init__(self, database: StoreDatabase, host: str | None, handlers: Handlers) -> None:
        self._database = database
        self._host = host
        self._handlers = handlers

    def canonical(self, handler: str | None) -> str | None:
        return None if handler is None else self._handlers.get(handler).name

    def keys(self, handler: str | None, *, everywhere: bool = False) -> list[VariantKey]:
        host = None if everywhere else self._host
        rows = self._database.execute("SELECT host, handler, id FROM images")
        return [
            (row["host"], row["handler"], row["id"])
            for row in rows
            if host in (None, row["host"]) and handler in (None, row["handler"])
        ]

    def find_matching(
        self, text: str, handler: str | None, *, everywhere: bool = False
    ) -> list[VariantKey]:
        """Return the images that match an id, a name, or an id prefix, in this order."""
        keys = self.keys(handler, everywhere=everywhere)
        plain = text.removeprefix("sha256:")
        if _is_hexadecimal(plain) and len(plain) == 64:
            return [key for key in keys if key[2] == f"sha256:{plain}"]
        named = self._named(text) if plain == text else set()
        if by_name := [key for key in keys if key in named]:
            return by_name
        if not _is_hexadecimal(plain) or len(plain) < _MIN_ID_PREFIX:
            return []
        by_prefix = [key for key in keys if key[2].startswith(f"sha256:{plain}")]
        if len({key[2] for key in by_prefix}) > 1:
            raise InvalidInput(
                f'"{text}" is a prefix of several image ids.', "Use a longer prefix."
            )
        return by_prefix

    def _named(self, text: str) -> set[VariantKey]:
        reference = parse_reference(text)
        repository = f"{reference.registry}/{reference.repository}"
        if not reference.digest:
            rows = self._database.execute(
                "SELECT host, handler, id FROM names WHERE name = ?", (str(reference),)
            )
        else:
            rows = self._database.execute(
                "SELECT host, handler, id FROM names JOIN images USING (host, handler, id) "
                "WHERE name = ? OR (manifest = ? AND substr(name, 1, ?) IN (?, ?))",
                (
                    f"{repository}@{reference.digest}",
                    reference.digest,
                    len(repository) + 1,
                    f"{repository}@",
                    f"{repository}:",
                ),
            )
        return {(row["host"], row["handler"], row["id"]) for row in rows}

    def image(self, host: str, handler: str, id_: str) -> StoredImage:
        row = self._database.execute(
            "SELECT * FROM images JOIN manifests ON manifest = digest "
            "WHERE host = ? AND handler = ? AND id = ?",
            (host, handler, id_),
        ).fetchone()
        (layers,) = self._database.execute(
            "SELECT coalesce(sum(bytes), 0) FROM layers WHERE diff_id IN "
            "(SELECT diff_id FROM manifest_layers WHERE manifest = ? AND kept)",
            (row["manifest"],),
        ).fetchone()
        names = self._database.column(
            "SELECT name FROM names WHERE host = ? AND handler = ? AND id = ? ORDER BY name",
            (host, handler, id_),
        )
        return StoredImage(
            id=id_,
            handler=handler,
            host=host,
            manifest=row["manifest"],
            tags=tuple(name for name in names if "@" not in name),
            digests=tuple(name for name in names if "@" in name),
            architecture=row["architecture"],
            os_version=row["os_version"],
            size=row["documents"] + layers,
            pinned=bool(row["pinned"]),
            pulled_at=row["pulled_at"],
            layers=self.layers(row["manifest"]),
        )

    def layers(self, manifest: str) -> tuple[StoredLayer, ...]:
        rows = self._database.execute(
            "SELECT digest, diff_id, base, kept FROM manifest_layers WHERE manifest = ? "
            "ORDER BY position",
            (manifest,),
        )
        return tuple(
            StoredLayer(row["digest"], row["diff_id"], bool(row["base"]), bool(row["kept"]))
            for row in rows
        )


def _is_hexadecimal(text: str) -> bool:
    return bool(text) and set(text) <= set("0123456789abcdef")
