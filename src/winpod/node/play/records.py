"""What is to run and what became of it, on disk: written before it is acted on.

Every object is one row, whole. What was applied is kept beside what it became, so that applying it
again is seen to change nothing.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from winpod.node.play.objects import Document, Key

_SCHEMA = """
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
);
"""
_MOST_EVENTS = 2000


@dataclass(frozen=True, slots=True)
class Kept:
    """`applied` is None for what no file asked for, such as the pods of a Deployment."""

    document: Document
    applied: Document | None = None


def _make_private(path: Path) -> None:
    """Secrets are in it, whole: it is for its owner, and so is what SQLite keeps beside it."""
    path.touch(0o600)
    for suffix in ("", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            path.with_name(f"{path.name}{suffix}").chmod(0o600)


class Records:
    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        _make_private(path)
        self._database = sqlite3.connect(path, isolation_level=None)
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = NORMAL")
        self._database.executescript(_SCHEMA)
        self._kept: dict[Key, Kept] = {}
        rows = self._database.execute(
            "SELECT kind, namespace, name, document, applied FROM objects"
        )
        for kind, namespace, name, document, applied in rows:
            self._kept[Key(kind, namespace, name)] = Kept(
                json.loads(document), json.loads(applied) if applied else None
            )

    @contextmanager
    def together(self) -> Iterator[None]:
        """All that is written within is, or nothing of it. Nobody else may write meanwhile."""
        before = dict(self._kept)
        self._database.execute("BEGIN")
        try:
            yield
        except BaseException:
            self._database.execute("ROLLBACK")
            self._kept = before
            raise
        self._database.execute("COMMIT")

    def close(self) -> None:
        self._database.close()

    def get(self, key: Key) -> Kept | None:
        return self._kept.get(key)

    def document(self, key: Key) -> Document | None:
        kept = self._kept.get(key)
        return kept.document if kept else None

    def of_kind(self, kind: str) -> list[Document]:
        return [kept.document for key, kept in self._kept.items() if key.kind == kind]

    def applied(self) -> list[Key]:
        return [key for key, kept in self._kept.items() if kept.applied is not None]

    def keys(self) -> list[Key]:
        return list(self._kept)

    def uids(self) -> set[str]:
        """Of everything but pods, which own nothing."""
        return {
            str(kept.document["metadata"].get("uid"))
            for key, kept in self._kept.items()
            if key.kind != "Pod"
        }

    def put(self, key: Key, kept: Kept) -> None:
        self._kept[key] = kept
        applied = json.dumps(kept.applied) if kept.applied is not None else None
        self._database.execute(
            "INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?, ?)",
            (key.kind, key.namespace, key.name, json.dumps(kept.document), applied),
        )

    def remove(self, key: Key) -> None:
        self._kept.pop(key, None)
        self._database.execute(
            "DELETE FROM objects WHERE (kind, namespace, name) = (?, ?, ?)",
            (key.kind, key.namespace, key.name),
        )

    def choices(self) -> dict[str, Document]:
        """Where pods were placed, and why, by their uid."""
        rows = self._database.execute("SELECT uid, document FROM choices")
        return {uid: json.loads(text) for uid, text in rows}

    def put_choice(self, uid: str, choice: Document) -> None:
        self._database.execute(
            "INSERT OR REPLACE INTO choices VALUES (?, ?)", (uid, json.dumps(choice))
        )

    def remove_choice(self, uid: str) -> None:
        self._database.execute("DELETE FROM choices WHERE uid = ?", (uid,))

    def setting(self, name: str) -> list[str]:
        row = self._database.execute(
            "SELECT value FROM settings WHERE name = ?", (name,)
        ).fetchone()
        return list(json.loads(row[0])) if row else []

    def set(self, name: str, values: list[str]) -> None:
        self._database.execute(
            "INSERT OR REPLACE INTO settings VALUES (?, ?)", (name, json.dumps(values))
        )

    def add_event(self, about: str, event: Document) -> None:
        """One that was told before, word for word, is counted and not repeated."""
        rows = self._database.execute(
            "SELECT number, document FROM events WHERE about = ? ORDER BY number DESC LIMIT 20",
            (about,),
        )
        for number, text in rows:
            before = json.loads(text)
            same = ("type", "reason", "message", "container")
            if all(before.get(field) == event.get(field) for field in same):
                event = {**event, "first": before["first"], "count": before["count"] + 1}
                self._database.execute("DELETE FROM events WHERE number = ?", (number,))
                break
        made = self._database.execute(
            "INSERT INTO events (about, document) VALUES (?, ?)", (about, json.dumps(event))
        )
        oldest = (made.lastrowid or 0) - _MOST_EVENTS
        self._database.execute("DELETE FROM events WHERE number <= ?", (oldest,))

    def events(self) -> Iterator[Document]:
        """The oldest first."""
        for (text,) in self._database.execute("SELECT document FROM events ORDER BY number"):
            yield json.loads(text)

    def clear(self) -> None:
        """Of what nobody needs any more when nothing is left."""
        self._database.execute("DELETE FROM events")
        self._database.execute("DELETE FROM settings")
