"""Event recorder: sends events to the API server in order, in the background.

Events are queued while the server is unreachable; the oldest are dropped if there are too many.
Events are correlated as client-go does: repeated ones increase a count, more than ten similar ones
are combined, and events are rate limited by object, or by object and reason.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TypeVar

from winpod.clock import Clock, truncate_to_seconds, utc_now
from winpod.concurrency import Backoff
from winpod.errors import Unavailable, WinpodError
from winpod.k8s.client import ApiClient, ApiError
from winpod.k8s.models import core_v1 as v1
from winpod.k8s.models.meta_v1 import ObjectMeta

SIMILAR_LIMIT = 10
SIMILAR_WINDOW = timedelta(minutes=10)
BURST = 25
REFILL = timedelta(minutes=5)
_MAX_ENTRIES = 4096
_K = TypeVar("_K")
_V = TypeVar("_V")


@dataclass(frozen=True, slots=True)
class ObjectReference:
    """The object that an event is about."""

    kind: str
    namespace: str
    name: str
    uid: str
    version: str = ""
    field: str = ""
    api_version: str = "v1"


@dataclass(frozen=True, slots=True)
class Event:
    subject: ObjectReference
    kind: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class RecordedEvent:
    """A correlated event: its name, count, and first and last time."""

    event: Event
    name: str
    count: int
    first: datetime
    last: datetime


@dataclass(slots=True)
class _SimilarEvents:
    messages: set[str] = field(default_factory=set)
    last: datetime | None = None


@dataclass(slots=True)
class _TokenBucket:
    left: float
    since: datetime


def by_object(event: Event) -> Hashable:
    return replace(event.subject, version="", field="")


def by_reason(event: Event) -> Hashable:
    return by_object(event), event.reason


class EventCorrelator:
    """Correlates events; the oldest state is dropped beyond a limit.

    `limited_by` returns the key by which events are rate limited.
    """

    def __init__(self, limited_by: Callable[[Event], Hashable] = by_object) -> None:
        self._limited_by = limited_by
        self._recorded: dict[Event, RecordedEvent] = {}
        self._similar: dict[Event, _SimilarEvents] = {}
        self._buckets: dict[Hashable, _TokenBucket] = {}

    def correlate(self, event: Event, now: datetime) -> RecordedEvent | None:
        """Return the event to send, or None if it is rate limited."""
        event = self._aggregate(event, now)
        previous = self._recorded.pop(_without_version(event), None)
        if previous:
            recorded = replace(previous, event=event, count=previous.count + 1, last=now)
        else:
            recorded = RecordedEvent(event, event_name(event.subject.name, now), 1, now, now)
        self._recorded[_without_version(event)] = recorded
        _drop_oldest(self._recorded)
        return recorded if self._is_allowed(self._limited_by(event), now) else None

    def _aggregate(self, event: Event, now: datetime) -> Event:
        key = replace(_without_version(event), message="")
        similar = self._similar.pop(key, None) or _SimilarEvents()
        if similar.last and now - similar.last > SIMILAR_WINDOW:
            similar = _SimilarEvents()
        similar.messages.add(event.message)
        similar.last = now
        self._similar[key] = similar
        _drop_oldest(self._similar)
        if len(similar.messages) < SIMILAR_LIMIT:
            return event
        return replace(event, message=f"(combined from similar events): {event.message}")

    def _is_allowed(self, key: Hashable, now: datetime) -> bool:
        bucket = self._buckets.pop(key, None) or _TokenBucket(BURST, now)
        elapsed = max(now - bucket.since, timedelta())
        bucket.left = min(bucket.left + elapsed / REFILL, BURST)
        bucket.since = now
        is_allowed = bucket.left >= 1
        bucket.left -= is_allowed
        self._buckets[key] = bucket
        _drop_oldest(self._buckets)
        return is_allowed


def event_name(subject: str, now: datetime) -> str:
    """Return an event name of subject and time, as clients do."""
    nanoseconds = int(now.timestamp() * 1_000_000) * 1000
    return f"{subject}.{nanoseconds:x}"


def _without_version(event: Event) -> Event:
    """Return the key of a series: without object version, and without message if combined."""
    message = event.message
    if message.startswith("(combined from similar events)"):
        message = ""
    return replace(event, subject=replace(event.subject, version=""), message=message)


def _drop_oldest(table: dict[_K, _V]) -> None:
    if len(table) > _MAX_ENTRIES:
        del table[next(iter(table))]


_FIRST_WAIT, _MAX_WAIT = 0.5, 15.0
_MAX_QUEUED = 1000
_log = logging.getLogger(__name__)


class EventRecorder:
    """Records events of a component; `instance` identifies the reporter."""

    def __init__(
        self,
        api: ApiClient,
        component: str,
        instance: str,
        clock: Clock = utc_now,
        series: EventCorrelator | None = None,
    ) -> None:
        self._api = api
        self._component = component
        self._instance = instance
        self._clock = clock
        self._series = series or EventCorrelator()
        self._queue: deque[RecordedEvent] = deque(maxlen=_MAX_QUEUED)
        self._has_events = asyncio.Event()

    def record(self, event: Event) -> None:
        if recorded := self._series.correlate(event, self._clock()):
            self._queue.append(recorded)
            self._has_events.set()

    async def run(self) -> None:
        backoff = Backoff(_FIRST_WAIT, _MAX_WAIT)
        while True:
            await self._has_events.wait()
            while self._queue:
                recorded = self._queue[0]
                try:
                    async with self._api.event_turns:
                        await self._send(recorded)
                    backoff.reset()
                except Unavailable:
                    if await self._api.wait_before_retry(backoff.next()):
                        backoff.reset()
                    continue
                except WinpodError as error:
                    _log.info("Failed to send event %s: %s", recorded.event.reason, error)
                if self._queue and self._queue[0] is recorded:
                    self._queue.popleft()
            self._has_events.clear()

    async def _send(self, recorded: RecordedEvent) -> None:
        namespace = recorded.event.subject.namespace or "default"
        path = f"/api/v1/namespaces/{namespace}/events"
        if recorded.count > 1:
            patch = {
                "count": recorded.count,
                "lastTimestamp": truncate_to_seconds(recorded.last),
                "message": recorded.event.message,
            }
            try:
                await self._api.patch(v1.Event, f"{path}/{recorded.name}", patch)
            except ApiError as error:
                if not error.is_not_found:
                    raise
            else:
                return
        await self._api.create(path, self._to_event(recorded, namespace))

    def _to_event(self, recorded: RecordedEvent, namespace: str) -> v1.Event:
        event, subject = recorded.event, recorded.event.subject
        return v1.Event(
            metadata=ObjectMeta(name=recorded.name, namespace=namespace),
            involvedObject=v1.ObjectReference(
                apiVersion=subject.api_version,
                kind=subject.kind,
                namespace=subject.namespace or None,
                name=subject.name,
                uid=subject.uid,
                resourceVersion=subject.version or None,
                fieldPath=subject.field or None,
            ),
            type=event.kind,
            reason=event.reason,
            message=event.message,
            count=recorded.count,
            firstTimestamp=truncate_to_seconds(recorded.first),
            lastTimestamp=truncate_to_seconds(recorded.last),
            source=v1.EventSource(component=self._component, host=self._instance),
            reportingComponent=self._component,
            reportingInstance=self._instance,
        )
