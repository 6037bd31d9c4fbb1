"""A thread of its own for work that changes the thread itself, such as entering a namespace.

A thread that has entered one stays there, so it ends with what it did.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")


def in_own_thread(act: Callable[[], _T]) -> _T:
    """What the work returns, or raises."""
    result: list[_T] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            result.append(act())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return result[0]
