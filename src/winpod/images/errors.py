"""Errors of images, registries, the store and the Wine base."""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path

from winpod.errors import InvalidInput, NotFound, PermissionDenied, Unavailable, WinpodError
from winpod.windows.handlers import PROCESS_HANDLER


class ImageNotFound(NotFound):
    """The registry or layout does not have the image, or a part of it."""


class NotCachedOffline(Unavailable):
    """The image is not cached, and registries are not contacted in offline mode."""


class RegistryAccessDenied(PermissionDenied):
    """The registry rejected the credentials."""


class RegistryUnavailable(Unavailable):
    """The registry did not answer in time, or is throttling requests."""


class CorruptContent(WinpodError):
    """Content does not match its digest, size or format."""

    code = "DATA_LOSS"


class NoMatchingManifest(NotFound):
    """The image has no manifest that this handler can run."""


class ImageNotPulled(NotFound):
    """The image, or its variant for this handler, is not in the store."""


class PullStalled(Unavailable):
    """A download made no or too little progress for the allowed time."""


class DiskFull(WinpodError):
    """The disk is full."""

    code = "RESOURCE_EXHAUSTED"


class StoreUnavailable(WinpodError):
    """The store has another version, is damaged, or is not writable."""

    code = "FAILED_PRECONDITION"


class LimitExceeded(WinpodError):
    """Content exceeds a size or entry limit."""

    code = "RESOURCE_EXHAUSTED"


class ToolMissing(WinpodError):
    """A required host program is not installed."""

    code = "FAILED_PRECONDITION"


class MirrorUnavailable(Unavailable):
    """Debian packages could not be downloaded or verified."""


class BaseBuildFailed(WinpodError):
    """A step of a base build failed."""

    code = "INTERNAL"


class BaseInUse(WinpodError):
    code = "FAILED_PRECONDITION"


class UnsupportedProgram(InvalidInput):
    """The base cannot run a program."""


def not_pulled_error(text: str, handler: str | None) -> ImageNotPulled:
    name = handler or PROCESS_HANDLER.name
    return ImageNotPulled(
        f'failed to resolve image "{text}": not found for handler {name}.',
        f"Pull it: winpod pull --handler {name} {text}",
    )


def disk_full_error(root: Path) -> DiskFull:
    return DiskFull(
        f"No space left on the disk of {root}.",
        "Remove images (winpod rmi), or use a larger disk.",
    )


def store_error(root: Path, error: OSError) -> WinpodError:
    """Convert an OSError of the store's filesystem."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return disk_full_error(root)
    return StoreUnavailable(
        f"The store {root} cannot be used: {error.strerror}"
        + (f" ({error.filename})." if error.filename else "."),
        "Run as the user that owns it, or use another root.",
    )


def database_error(root: Path, error: sqlite3.Error) -> WinpodError:
    kind = getattr(error, "sqlite_errorname", "")
    if kind == "SQLITE_FULL" or (kind.startswith("SQLITE_IOERR") and _is_full(root)):
        return disk_full_error(root)
    damaged = kind.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB"))
    return StoreUnavailable(
        f"The store's {root / 'state.db'} cannot be used: {error}.",
        f"It is damaged: remove {root} and pull again." if damaged else "",
    )


def _is_full(root: Path) -> bool:
    disk = os.statvfs(root)
    return disk.f_bavail * disk.f_frsize < 1 << 20
