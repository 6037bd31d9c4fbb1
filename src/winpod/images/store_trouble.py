"""What goes wrong with a store, as sentences."""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path

from winpod.images.errors import NoSpace, NotPulled, StoreUnusable
from winpod.windows.errors import WinpodError
from winpod.windows.handlers import PROCESS


def not_pulled(text: str, handler: str | None) -> NotPulled:
    name = handler or PROCESS.name
    return NotPulled(
        f'failed to resolve image "{text}": not found for the handler {name}.',
        f"Pull it: winpod pull --handler {name} {text}",
    )


def disk_full(root: Path) -> NoSpace:
    return NoSpace(
        f"No space is left on the disk of {root}.",
        "Remove images (winpod rmi), or give it a larger disk.",
    )


def trouble(root: Path, error: OSError) -> WinpodError:
    """What the disk refused, as a sentence."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return disk_full(root)
    return StoreUnusable(
        f"The store {root} cannot be used: {error.strerror}"
        + (f" ({error.filename})." if error.filename else "."),
        "Run as the user that owns it, or give another root.",
    )


def database_trouble(root: Path, error: sqlite3.Error) -> WinpodError:
    kind = getattr(error, "sqlite_errorname", "")
    if kind == "SQLITE_FULL" or (kind.startswith("SQLITE_IOERR") and _is_full(root)):
        return disk_full(root)
    damaged = kind.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB"))
    return StoreUnusable(
        f"The store's {root / 'state.db'} cannot be used: {error}.",
        f"It is damaged: remove {root} and pull again." if damaged else "",
    )


def _is_full(root: Path) -> bool:
    disk = os.statvfs(root)
    return disk.f_bavail * disk.f_frsize < 1 << 20
