"""Requests that wait for their client, each under a token that opens it once.

The token is all that authorises a connection: it cannot be guessed, works once, and not for long.
"""

import secrets
import time
from collections.abc import Callable
from typing import NamedTuple

from winpod.cri.streaming.api import Request
from winpod.windows.errors import WinpodError

TIME_TO_LIVE = 60.0
MAX_WAITING = 1000


class TooManyRequests(WinpodError):
    """More requests wait for their clients than are kept."""

    code = "RESOURCE_EXHAUSTED"


class _Waiting(NamedTuple):
    request: Request
    until: float


class Tokens:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waiting: dict[str, _Waiting] = {}  # in the order they expire

    def issue(self, request: Request) -> str:
        """A token that gives `request` back, once, within its time to live."""
        now = self._clock()
        self._forget_expired(now)
        if len(self._waiting) >= MAX_WAITING:
            raise TooManyRequests(
                "maximum number of in-flight requests exceeded:"
                f" {MAX_WAITING} exec, attach and port-forward requests wait for their clients.",
                f"Connect to their URLs, or try again in {TIME_TO_LIVE:.0f} seconds.",
            )
        token = secrets.token_urlsafe(16)
        self._waiting[token] = _Waiting(request, now + TIME_TO_LIVE)
        return token

    def redeem(self, token: str) -> Request | None:
        """What the token was issued for; None if it was never, was used, or is too old."""
        waiting = self._waiting.pop(token, None)
        if waiting is None or waiting.until <= self._clock():
            return None
        return waiting.request

    def _forget_expired(self, now: float) -> None:
        expired = [token for token, waiting in self._waiting.items() if waiting.until <= now]
        for token in expired:
            del self._waiting[token]
