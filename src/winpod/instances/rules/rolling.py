"""Which instances may change now, of those that are nodes already: pure.

At most so many change at a time. Who has begun goes on, also when it failed, and while one has
failed nobody else begins.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Stand(StrEnum):
    RESTS = "rests"
    WANTS = "wants to change"
    CHANGES = "changes"
    FAILED = "failed while it changed"


@dataclass(frozen=True, slots=True)
class Turn:
    """`why` says what is waited for, where it has to wait."""

    is_granted: bool
    why: str = ""


def turns(stands: Iterable[tuple[str, Stand]], limit: int) -> dict[str, Turn]:
    """For each that changes or wants to; those who wait get their turns by name."""
    sorted_stands = sorted(stands)
    failed = [name for name, stand in sorted_stands if stand is Stand.FAILED]
    busy = [name for name, stand in sorted_stands if stand in (Stand.CHANGES, Stand.FAILED)]
    waiting = [name for name, stand in sorted_stands if stand is Stand.WANTS]
    found = {name: Turn(True) for name in busy}
    room = 0 if failed else max(0, limit - len(busy))
    found |= {name: Turn(True) for name in waiting[:room]}
    why = _why(failed, [*busy, *waiting[:room]], limit)
    return found | {name: Turn(False, why) for name in waiting[room:]}


def _why(failed: list[str], busy: list[str], limit: int) -> str:
    if failed:
        return f"{_listed(failed)} failed while it changed, and nobody else begins until it is well"
    at_once = "one changes" if limit == 1 else f"{limit} change"
    return f"{at_once} at a time, and now {_listed(busy)} does"


def _listed(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
