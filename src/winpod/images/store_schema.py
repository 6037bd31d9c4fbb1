"""The store's database: its tables, and how one of an older version becomes one of this version.

`user_version` counts the steps that were taken. A step that has been released is never edited; a
change is a new step. Each is one transaction, so a store is always of exactly one version.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from winpod.images.errors import StoreUnusable

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

STEPS = (_IMAGES, _PINS_AND_HOLDS)
VERSION = len(STEPS)


def open_database(path: Path) -> sqlite3.Connection:
    """The database, made or brought to this version. The caller keeps others from opening it."""
    database = sqlite3.connect(
        path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
    )
    try:
        database.row_factory = sqlite3.Row
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA foreign_keys = ON")
        found = int(database.execute("PRAGMA user_version").fetchone()[0])
        if found > VERSION:
            raise StoreUnusable(
                f"{path} is of version {found}, and this winpod knows versions up to {VERSION}.",
                "A newer winpod made it: use that one, or another root.",
            )
        for number in range(found, VERSION):
            _take_step(database, number)
    except BaseException:
        database.close()
        raise
    return database


def _take_step(database: sqlite3.Connection, number: int) -> None:
    database.execute("BEGIN IMMEDIATE")
    try:
        for statement in STEPS[number].split(";"):
            database.execute(statement)
        database.execute(f"PRAGMA user_version = {number + 1}")
    except BaseException:
        database.execute("ROLLBACK")
        raise
    database.execute("COMMIT")
