"""Event correlation: repeated events are counted, floods are rate limited."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from winpod.k8s.event_recorder import (
    BURST,
    REFILL,
    Event,
    EventCorrelator,
    ObjectReference,
    by_reason,
)

NOW = datetime(2024, 5, 1, 12, tzinfo=UTC)
POD = ObjectReference("Pod", "shop", "web", "uid-1", "7")
BACK_OFF = Event(POD, "Warning", "BackOff", "Back-off restarting failed container")


def test_repeated_event_increases_count_of_first() -> None:
    series = EventCorrelator()
    first = series.correlate(BACK_OFF, NOW)
    later = replace(BACK_OFF, subject=replace(POD, version="9"))
    second = series.correlate(later, NOW + timedelta(seconds=5))
    assert first
    assert second
    assert (first.count, second.count) == (1, 2)
    assert first.name == second.name == f"web.{int(NOW.timestamp() * 1e6) * 1000:x}"
    assert (second.first, second.last) == (NOW, NOW + timedelta(seconds=5))


def test_similar_events_are_combined_after_ten_messages() -> None:
    series = EventCorrelator()
    events = [series.correlate(replace(BACK_OFF, message=f"try {n}"), NOW) for n in range(12)]
    recorded = [event for event in events if event]
    assert [event.count for event in recorded] == [1] * 10 + [2, 3]
    assert recorded[-1].event.message == "(combined from similar events): try 11"
    assert len({event.name for event in recorded[9:]}) == 1


def test_events_of_one_object_are_rate_limited_after_burst() -> None:
    series = EventCorrelator()
    recorded = [series.correlate(BACK_OFF, NOW) for _ in range(BURST + 5)]
    assert sum(event is not None for event in recorded) == BURST
    other = replace(BACK_OFF, subject=replace(POD, name="db", uid="uid-2"))
    assert series.correlate(other, NOW)
    after = series.correlate(BACK_OFF, NOW + REFILL)
    assert after
    assert after.count == BURST + 6
    assert series.correlate(BACK_OFF, NOW + REFILL) is None


def test_rate_limit_by_reason_does_not_affect_other_reasons() -> None:
    series = EventCorrelator(limited_by=by_reason)
    recorded = [series.correlate(BACK_OFF, NOW) for _ in range(BURST + 5)]
    assert sum(event is not None for event in recorded) == BURST
    assert series.correlate(replace(BACK_OFF, reason="Killing"), NOW)
    assert series.correlate(replace(BACK_OFF, subject=replace(POD, version="9")), NOW) is None


def test_clock_set_back_does_not_suppress_events() -> None:
    series = EventCorrelator()
    assert series.correlate(BACK_OFF, NOW)
    assert series.correlate(BACK_OFF, NOW - timedelta(days=1))
