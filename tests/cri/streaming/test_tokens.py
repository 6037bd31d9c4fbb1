import pytest

from winpod.cri.streaming import TooManyRequests
from winpod.cri.streaming.api import PortForwardRequest
from winpod.cri.streaming.tokens import MAX_WAITING, TIME_TO_LIVE, Tokens

REQUEST = PortForwardRequest("sandbox", ())


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_token_works_once() -> None:
    tokens = Tokens()
    token = tokens.issue(REQUEST)
    assert tokens.redeem(token) is REQUEST
    assert tokens.redeem(token) is None


def test_a_token_works_for_a_minute() -> None:
    clock = Clock()
    tokens = Tokens(clock)
    early, late = tokens.issue(REQUEST), tokens.issue(REQUEST)
    clock.now += TIME_TO_LIVE - 1
    assert tokens.redeem(early) is REQUEST
    clock.now += 1
    assert tokens.redeem(late) is None


def test_a_thousand_requests_wait_and_no_more() -> None:
    clock = Clock()
    tokens = Tokens(clock)
    issued = {tokens.issue(REQUEST) for _ in range(MAX_WAITING)}
    assert len(issued) == MAX_WAITING
    with pytest.raises(TooManyRequests, match="maximum number of in-flight") as failure:
        tokens.issue(REQUEST)
    assert failure.value.code == "RESOURCE_EXHAUSTED"
    clock.now += TIME_TO_LIVE
    assert tokens.issue(REQUEST)


def test_a_token_cannot_be_guessed() -> None:
    assert len(Tokens().issue(REQUEST)) >= 22  # 128 bits
