"""What people call what is played, read without starting anything: for targets and completion."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from winpod.cri.config import read_config
from winpod.windows.errors import PermissionDenied, WinpodError

_NO_PODS = (
    "Namespace",
    "RuntimeClass",
    "Node",
    "ConfigMap",
    "Secret",
    "ServiceAccount",
    "PersistentVolume",
    "PersistentVolumeClaim",
)


def has_pods(root: Path) -> bool:
    """Whether something is played that runs pods, or is about to; where that is another user's,
    whether somebody plays."""
    try:
        return any(kind not in _NO_PODS for kind, _, _ in read_names(root))
    except PermissionDenied:
        return (root / "play/play.sock").exists()


def read_names(root: Path) -> list[tuple[str, str, str]]:
    """Kind, namespace and name of every object."""
    file = root / "play/records.db"
    if not file.exists():
        return []
    if not os.access(file, os.R_OK):
        raise PermissionDenied(f"What is played in {root} is another user's.", "Use sudo.")
    try:
        database = sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=5)
        try:
            return list(database.execute("SELECT kind, namespace, name FROM objects"))
        finally:
            database.close()
    except sqlite3.Error:
        return []


def owner_named(text: str) -> str:
    """`Deployment/web` for `deploy/web`; nothing for what names no kind."""
    word, slash, name = text.partition("/")
    if not slash:
        return ""
    from winpod.node.play.objects import kind_of_word

    kind = kind_of_word(word)
    return f"{kind.name}/{name}" if kind else ""


def complete_names(incomplete: str) -> list[str]:
    """Pods by their names, and what made them by kind and name."""
    try:
        names = read_names(read_config().root)
    except WinpodError:
        return []
    found = []
    for kind, _, name in names:
        if kind == "Pod":
            found.append(name)
        elif kind not in _NO_PODS:
            found.append(f"{kind.lower()}/{name}")
    return sorted(name for name in found if name.startswith(incomplete))
