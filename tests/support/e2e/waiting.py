"""Polling for conditions; a timeout reports the last observed value."""

import time
from collections.abc import Callable
from typing import TypeVar

_PAUSE = 0.1
_T = TypeVar("_T")


def eventually(
    look: Callable[[], _T], condition: Callable[[_T], object] = bool, *, within: float = 300
) -> _T:
    """Poll until the condition holds and return the observed value; slow polls are spaced out."""
    deadline = time.monotonic() + within
    while True:
        began = time.monotonic()
        seen = look()
        if condition(seen):
            return seen
        assert began < deadline, f"condition did not hold within {within} s: {seen}"
        time.sleep(max(_PAUSE, time.monotonic() - began))
