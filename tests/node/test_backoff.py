from datetime import timedelta

from tests.node.seen_pods import NOW
from winpod.node.backoff import Backoff, Pace, show_wait


def test_waits_double_to_five_minutes() -> None:
    pace, known, now = Pace(), None, NOW
    waits = []
    for _ in range(8):
        waits.append((pace.ready_at(known, now) - now).total_seconds())
        now = pace.ready_at(known, now)
        known = pace.next(known, now, now)
    assert waits == [0, 10, 20, 40, 80, 160, 300, 300]


def test_what_ran_for_ten_minutes_starts_over() -> None:
    known = Backoff(timedelta(minutes=5), NOW)
    late = NOW + timedelta(minutes=10, seconds=1)
    assert Pace().ready_at(known, late) == late
    assert Pace().next(known, late, late).wait == timedelta(seconds=10)
    early = NOW + timedelta(minutes=9)
    assert Pace().ready_at(known, early) == early + timedelta(minutes=5)


def test_waits_are_written_as_kubernetes_writes_them() -> None:
    shown = [show_wait(timedelta(seconds=seconds)) for seconds in (10, 80, 300)]
    assert shown == ["10s", "1m20s", "5m0s"]
