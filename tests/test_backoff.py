from datetime import timedelta

from tests.support.runtime_pods import NOW
from winpod.concurrency import Backoff, BackoffPolicy, BackoffState
from winpod.quantities import format_duration


def test_backoff_doubles_to_five_minutes() -> None:
    policy, state, now = BackoffPolicy(), None, NOW
    waits = []
    for _ in range(8):
        waits.append((policy.ready_at(state, now) - now).total_seconds())
        now = policy.ready_at(state, now)
        state = policy.next(state, now, now)
    assert waits == [0, 10, 20, 40, 80, 160, 300, 300]


def test_backoff_is_reset_after_ten_minutes() -> None:
    state = BackoffState(timedelta(minutes=5), NOW)
    late = NOW + timedelta(minutes=10, seconds=1)
    assert BackoffPolicy().ready_at(state, late) == late
    assert BackoffPolicy().next(state, late, late).wait == timedelta(seconds=10)
    early = NOW + timedelta(minutes=9)
    assert BackoffPolicy().ready_at(state, early) == early + timedelta(minutes=5)


def test_backoff_is_formatted_as_kubernetes_does() -> None:
    shown = [format_duration(timedelta(seconds=seconds)) for seconds in (10, 80, 300)]
    assert shown == ["10s", "1m20s", "5m0s"]


def test_backoff_of_a_retry_loop_doubles_to_its_maximum_until_reset() -> None:
    backoff = Backoff(0.5, 3.0)
    assert [backoff.next() for _ in range(5)] == [0.5, 1, 2, 3, 3]
    backoff.reset()
    assert backoff.next() == 0.5
