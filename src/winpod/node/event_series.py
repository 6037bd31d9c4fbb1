"""Which events are told, and which are counted into one that was told: pure decisions.

As clients of the API server do it: what happens again is counted in the event that told it first,
more than ten like it become one that stands for all, and one object has so many events and then
one in five minutes; or so many of each reason, where much is told of one object.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TypeVar

SIMILAR_LIMIT = 10
SIMILAR_WINDOW = timedelta(minutes=10)
BURST = 25
REFILL = timedelta(minutes=5)
_REMEMBERED = 4096
_K = TypeVar("_K")
_V = TypeVar("_V")


@dataclass(frozen=True, slots=True)
class Subject:
    """What an event is about, in the API's words."""

    kind: str
    namespace: str
    name: str
    uid: str
    version: str = ""
    field: str = ""
    api_version: str = "v1"


@dataclass(frozen=True, slots=True)
class Event:
    subject: Subject
    kind: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Telling:
    """An event as it is told: under which name, how often it has happened, since when."""

    event: Event
    name: str
    count: int
    first: datetime
    last: datetime


@dataclass(slots=True)
class _Similar:
    messages: set[str] = field(default_factory=set)
    last: datetime | None = None


@dataclass(slots=True)
class _Allowance:
    left: float
    since: datetime


def by_object(event: Event) -> Hashable:
    return replace(event.subject, version="", field="")


def by_reason(event: Event) -> Hashable:
    return by_object(event), event.reason


class EventSeries:
    """Forgets the oldest when there is too much to remember.

    `limited_by` says which events are held back together.
    """

    def __init__(self, limited_by: Callable[[Event], Hashable] = by_object) -> None:
        self._limited_by = limited_by
        self._told: dict[Event, Telling] = {}
        self._similar: dict[Event, _Similar] = {}
        self._allowances: dict[Hashable, _Allowance] = {}

    def take(self, event: Event, now: datetime) -> Telling | None:
        """How to tell it; None where there have been too many."""
        event = self._combined(event, now)
        known = self._told.pop(_without_version(event), None)
        if known:
            telling = replace(known, event=event, count=known.count + 1, last=now)
        else:
            telling = Telling(event, event_name(event.subject.name, now), 1, now, now)
        self._told[_without_version(event)] = telling
        _keep_newest(self._told)
        return telling if self._is_allowed(self._limited_by(event), now) else None

    def _combined(self, event: Event, now: datetime) -> Event:
        alike = replace(_without_version(event), message="")
        similar = self._similar.pop(alike, None) or _Similar()
        if similar.last and now - similar.last > SIMILAR_WINDOW:
            similar = _Similar()
        similar.messages.add(event.message)
        similar.last = now
        self._similar[alike] = similar
        _keep_newest(self._similar)
        if len(similar.messages) < SIMILAR_LIMIT:
            return event
        return replace(event, message=f"(combined from similar events): {event.message}")

    def _is_allowed(self, limited: Hashable, now: datetime) -> bool:
        known = self._allowances.pop(limited, None) or _Allowance(BURST, now)
        passed = max(now - known.since, timedelta())
        known.left = min(known.left + passed / REFILL, BURST)
        known.since = now
        is_allowed = known.left >= 1
        known.left -= is_allowed
        self._allowances[limited] = known
        _keep_newest(self._allowances)
        return is_allowed


def event_name(subject: str, now: datetime) -> str:
    """Of the subject's name and the time, as clients name them."""
    nanoseconds = int(now.timestamp() * 1_000_000) * 1000
    return f"{subject}.{nanoseconds:x}"


def _without_version(event: Event) -> Event:
    """A series goes on when its object changes; one that stands for many has no message."""
    message = event.message
    if message.startswith("(combined from similar events)"):
        message = ""
    return replace(event, subject=replace(event.subject, version=""), message=message)


def _keep_newest(table: dict[_K, _V]) -> None:
    if len(table) > _REMEMBERED:
        del table[next(iter(table))]
