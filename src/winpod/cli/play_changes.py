"""What became of each object, as `play` and `down` tell it."""

from __future__ import annotations

import sys
from typing import Any

from winpod.node.play.objects import Document, Key

_NAMES = ("kind", "namespace", "name", "change")


def list_changes(told: Document) -> list[dict[str, Any]]:
    return [dict(zip(_NAMES, parts, strict=True)) for parts in told["changes"]]


def print_changes(told: Document) -> None:
    """In kubectl's words."""
    for note in told.get("notes", ()):
        print(f"note: {note}")
    for *parts, what in told["changes"]:
        print(f"{Key(*parts)} {what}")
    sys.stdout.flush()
