"""How long a container that ended waits before it is started again.

The first restart is at once, then ten seconds, doubled each time up to five minutes, counted from
when it ended. A container that ran for twice the longest wait starts over.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class Backoff:
    """What is remembered of a thing that fails: the wait after its next failure, and since when."""

    wait: timedelta
    since: datetime


@dataclass(frozen=True, slots=True)
class Pace:
    initial: timedelta = timedelta(seconds=10)
    longest: timedelta = timedelta(minutes=5)

    def ready_at(self, known: Backoff | None, ended: datetime) -> datetime:
        """When what ended then may start again."""
        if known is None or self._is_over(known, ended):
            return ended
        return ended + known.wait

    def next(self, known: Backoff | None, ended: datetime, now: datetime) -> Backoff:
        """What to remember when it is started again."""
        if known is None or self._is_over(known, ended):
            return Backoff(self.initial, now)
        return Backoff(min(known.wait * 2, self.longest), now)

    def _is_over(self, known: Backoff, ended: datetime) -> bool:
        return ended - known.since > 2 * self.longest


def show_wait(wait: timedelta) -> str:
    """As Kubernetes writes durations: `10s`, `1m20s`, `5m0s`."""
    minutes, seconds = divmod(round(wait.total_seconds()), 60)
    return f"{minutes}m{seconds}s" if minutes else f"{seconds}s"
