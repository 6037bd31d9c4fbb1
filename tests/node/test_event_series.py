"""Events that repeat are counted, those that flood are held back."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from winpod.node.event_series import BURST, REFILL, Event, EventSeries, Subject, by_reason

NOW = datetime(2024, 5, 1, 12, tzinfo=UTC)
POD = Subject("Pod", "shop", "web", "uid-1", "7")
BACK_OFF = Event(POD, "Warning", "BackOff", "Back-off restarting failed container")


def test_the_same_again_is_counted_under_the_same_name() -> None:
    series = EventSeries()
    first = series.take(BACK_OFF, NOW)
    later = replace(BACK_OFF, subject=replace(POD, version="9"))
    second = series.take(later, NOW + timedelta(seconds=5))
    assert first
    assert second
    assert (first.count, second.count) == (1, 2)
    assert first.name == second.name == f"web.{int(NOW.timestamp() * 1e6) * 1000:x}"
    assert (second.first, second.last) == (NOW, NOW + timedelta(seconds=5))


def test_other_messages_are_other_events_until_there_are_ten() -> None:
    series = EventSeries()
    tellings = [series.take(replace(BACK_OFF, message=f"try {n}"), NOW) for n in range(12)]
    told = [telling for telling in tellings if telling]
    assert [telling.count for telling in told] == [1] * 10 + [2, 3]
    assert told[-1].event.message == "(combined from similar events): try 11"
    assert len({telling.name for telling in told[9:]}) == 1


def test_one_object_has_a_burst_of_events_and_then_one_in_a_while() -> None:
    series = EventSeries()
    told = [series.take(BACK_OFF, NOW) for _ in range(BURST + 5)]
    assert sum(telling is not None for telling in told) == BURST
    other = replace(BACK_OFF, subject=replace(POD, name="db", uid="uid-2"))
    assert series.take(other, NOW)
    after = series.take(BACK_OFF, NOW + REFILL)
    assert after
    assert after.count == BURST + 6
    assert series.take(BACK_OFF, NOW + REFILL) is None


def test_where_reasons_are_limited_one_by_one_a_flood_of_one_holds_no_other_back() -> None:
    series = EventSeries(limited_by=by_reason)
    told = [series.take(BACK_OFF, NOW) for _ in range(BURST + 5)]
    assert sum(telling is not None for telling in told) == BURST
    assert series.take(replace(BACK_OFF, reason="Killing"), NOW)
    assert series.take(replace(BACK_OFF, subject=replace(POD, version="9")), NOW) is None


def test_a_clock_that_was_put_back_holds_no_event_back() -> None:
    series = EventSeries()
    assert series.take(BACK_OFF, NOW)
    assert series.take(BACK_OFF, NOW - timedelta(days=1))
