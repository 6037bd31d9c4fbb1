"""SQLite store of objects, bindings, settings and events; written before any action.

Each object is one row. The applied manifest is kept next to the resulting object, so that applying
it again is recognized as unchanged. Repeated events are counted, not duplicated.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from winpod.clock import format_timestamp, utc_now
from winpod.kubelet.interfaces import EventType
from winpod.play.apiserver.database import open_database
from winpod.play.apiserver.objects import Document, ObjectKey

_MAX_EVENTS = 2000


@dataclass(frozen=True, slots=True)
class StoredObject:
    """`applied` is None for objects that no manifest defines, such as the pods of a Deployment."""

    document: Document
    applied: Document | None = None


class ObjectStore:
    def __init__(self, path: Path) -> None:
        self._database = open_database(path)
        self._objects: dict[ObjectKey, StoredObject] = {}
        rows = self._database.execute(
            "SELECT kind, namespace, name, document, applied FROM objects"
        )
        for kind, namespace, name, document, applied in rows:
            self._objects[ObjectKey(kind, namespace, name)] = StoredObject(
                json.loads(document), json.loads(applied) if applied else None
            )

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Write everything in the block or nothing. There must be no concurrent writer."""
        before = dict(self._objects)
        try:
            with self._database.write_transaction():
                yield
        except BaseException:
            self._objects = before
            raise

    def close(self) -> None:
        self._database.close()

    def get(self, key: ObjectKey) -> StoredObject | None:
        return self._objects.get(key)

    def document(self, key: ObjectKey) -> Document | None:
        stored = self._objects.get(key)
        return stored.document if stored else None

    def list_kind(self, kind: str) -> list[Document]:
        return [stored.document for key, stored in self._objects.items() if key.kind == kind]

    def applied(self) -> list[ObjectKey]:
        return [key for key, stored in self._objects.items() if stored.applied is not None]

    def keys(self) -> list[ObjectKey]:
        return list(self._objects)

    def uids(self) -> set[str]:
        """Return the UIDs of all objects except pods, which own nothing."""
        return {
            str(stored.document["metadata"].get("uid"))
            for key, stored in self._objects.items()
            if key.kind != "Pod"
        }

    def put(self, key: ObjectKey, stored: StoredObject) -> None:
        self._objects[key] = stored
        applied = json.dumps(stored.applied) if stored.applied is not None else None
        self._database.execute(
            "INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?, ?)",
            (key.kind, key.namespace, key.name, json.dumps(stored.document), applied),
        )

    def remove(self, key: ObjectKey) -> None:
        self._objects.pop(key, None)
        self._database.execute(
            "DELETE FROM objects WHERE (kind, namespace, name) = (?, ?, ?)",
            (key.kind, key.namespace, key.name),
        )

    def bindings(self) -> dict[str, Document]:
        """Return the bindings of pods, by UID."""
        rows = self._database.execute("SELECT uid, document FROM choices")
        return {uid: json.loads(text) for uid, text in rows}

    def put_binding(self, uid: str, binding: Document) -> None:
        self._database.execute(
            "INSERT OR REPLACE INTO choices VALUES (?, ?)", (uid, json.dumps(binding))
        )

    def remove_binding(self, uid: str) -> None:
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
        """Add an event; an identical earlier one is replaced and counted."""
        rows = self._database.execute(
            "SELECT number, document FROM events WHERE about = ? ORDER BY number DESC LIMIT 20",
            (about,),
        )
        for number, text in rows:
            previous = json.loads(text)
            compared = ("type", "reason", "message", "container")
            if all(previous.get(field) == event.get(field) for field in compared):
                event = {**event, "first": previous["first"], "count": previous["count"] + 1}
                self._database.execute("DELETE FROM events WHERE number = ?", (number,))
                break
        inserted = self._database.execute(
            "INSERT INTO events (about, document) VALUES (?, ?)", (about, json.dumps(event))
        )
        oldest = (inserted.lastrowid or 0) - _MAX_EVENTS
        self._database.execute("DELETE FROM events WHERE number <= ?", (oldest,))

    def events(self) -> Iterator[Document]:
        """Yield the events, oldest first."""
        for (text,) in self._database.execute("SELECT document FROM events ORDER BY number"):
            yield json.loads(text)

    def clear(self) -> None:
        """Delete events and settings once no objects are left."""
        self._database.execute("DELETE FROM events")
        self._database.execute("DELETE FROM settings")


class EventStore:
    def __init__(self, records: ObjectStore) -> None:
        self._records = records

    def record(
        self, key: ObjectKey, kind: EventType, reason: str, message: str, container: str = ""
    ) -> None:
        now = format_timestamp(utc_now())
        event = {
            "kind": key.kind,
            "namespace": key.namespace,
            "name": key.name,
            "type": kind,
            "reason": reason,
            "message": message,
            "container": container,
            "first": now,
            "last": now,
            "count": 1,
        }
        self._records.add_event(f"{key.namespace}/{key}", event)

    def all(self) -> Iterator[Document]:
        """Yield the events, oldest first."""
        return self._records.events()
