import pytest

from winpod.cri.streaming import TooManyRequests
from winpod.cri.streaming.api import PortForwardRequest
from winpod.cri.streaming.server import MAX_PENDING, TIME_TO_LIVE, RequestCache

REQUEST = PortForwardRequest("sandbox", ())


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_token_works_once() -> None:
    tokens = RequestCache()
    token = tokens.issue(REQUEST)
    assert tokens.redeem(token) is REQUEST
    assert tokens.redeem(token) is None


def test_token_expires_after_a_minute() -> None:
    clock = Clock()
    tokens = RequestCache(clock)
    early, late = tokens.issue(REQUEST), tokens.issue(REQUEST)
    clock.now += TIME_TO_LIVE - 1
    assert tokens.redeem(early) is REQUEST
    clock.now += 1
    assert tokens.redeem(late) is None


def test_pending_requests_are_limited() -> None:
    clock = Clock()
    tokens = RequestCache(clock)
    issued = {tokens.issue(REQUEST) for _ in range(MAX_PENDING)}
    assert len(issued) == MAX_PENDING
    with pytest.raises(TooManyRequests, match="maximum number of in-flight") as failure:
        tokens.issue(REQUEST)
    assert failure.value.code == "RESOURCE_EXHAUSTED"
    clock.now += TIME_TO_LIVE
    assert tokens.issue(REQUEST)


def test_tokens_are_random() -> None:
    assert len(RequestCache().issue(REQUEST)) >= 22  # 128 bits
