"""The current time, and timestamps as in the Kubernetes API."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

Clock = Callable[[], datetime]


def utc_now() -> datetime:
    return datetime.now(UTC)


def truncate_to_seconds(time: datetime) -> datetime:
    """Truncate to seconds, the resolution of Kubernetes timestamps."""
    return time.replace(microsecond=0)


def format_timestamp(time: datetime) -> str:
    """Format as RFC 3339 in UTC, to the second."""
    return f"{time.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
