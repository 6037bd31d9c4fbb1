"""What has happened, for people: one line for each thing, counted when it happens again."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from winpod.node.play.objects import Document, Key
from winpod.node.play.records import Records
from winpod.node.sources import Kind


class Events:
    def __init__(self, records: Records) -> None:
        self._records = records

    def tell(self, key: Key, kind: Kind, reason: str, message: str, container: str = "") -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
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
        """The oldest first."""
        return self._records.events()
