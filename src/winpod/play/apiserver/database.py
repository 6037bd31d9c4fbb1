"""SQLite database of `winpod play`. Light to import: commands read names without the server."""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from pathlib import Path

from winpod.database import Database, open_read_only
from winpod.errors import PermissionDenied

_OBJECTS = """
CREATE TABLE IF NOT EXISTS objects (
    kind TEXT NOT NULL,
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    document TEXT NOT NULL,
    applied TEXT,
    PRIMARY KEY (kind, namespace, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS choices (uid TEXT PRIMARY KEY, document TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS settings (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS events (
    number INTEGER PRIMARY KEY,
    about TEXT NOT NULL,
    document TEXT NOT NULL
)
"""  # may exist already: the first releases did not count migrations


def database_file(root: Path) -> Path:
    return root / "play/records.db"


def open_database(file: Path) -> Database:
    """Open the database, created if missing, for the one process that writes it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    _make_private(file)
    return Database(file, (_OBJECTS,))


def _make_private(path: Path) -> None:
    """Restrict the database and its SQLite side files to the owner; it contains secrets."""
    path.touch(0o600)
    for suffix in ("", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            path.with_name(f"{path.name}{suffix}").chmod(0o600)


def read_names(root: Path) -> list[tuple[str, str, str]]:
    """Return kind, namespace and name of every object, without the server."""
    file = database_file(root)
    if not file.exists():
        return []
    if not os.access(file, os.R_OK):
        raise PermissionDenied(f"The objects in {root} belong to another user.", "Use sudo.")
    try:
        with open_read_only(file) as database:
            return list(database.execute("SELECT kind, namespace, name FROM objects"))
    except sqlite3.Error:
        return []
