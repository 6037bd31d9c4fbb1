"""Waiting for what comes in its own time; who waits in vain says what was seen last."""

import time
from collections.abc import Callable
from typing import TypeVar

_PAUSE = 0.1
_T = TypeVar("_T")


def eventually(
    look: Callable[[], _T], is_so: Callable[[_T], object] = bool, *, within: float = 300
) -> _T:
    """What was seen when it was so; a look that takes long is not taken often."""
    deadline = time.monotonic() + within
    while True:
        began = time.monotonic()
        seen = look()
        if is_so(seen):
            return seen
        assert began < deadline, f"not so within {within} s: {seen}"
        time.sleep(max(_PAUSE, time.monotonic() - began))
