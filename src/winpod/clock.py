"""Time helpers."""

from __future__ import annotations

from datetime import UTC, datetime


def utc_now() -> datetime:
    return datetime.now(UTC)


def truncate_to_seconds(time: datetime) -> datetime:
    """Truncate to seconds, the resolution of Kubernetes timestamps."""
    return time.replace(microsecond=0)
