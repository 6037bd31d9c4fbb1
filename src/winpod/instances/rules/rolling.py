"""Which instances may change now, of those that are nodes already: pure.

At most so many change at a time, and what MachineSets lack of their nodes changes, too. Who has
begun goes on, also when it failed; while one has failed, or nobody knows what changes, nobody else
begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """What changes without being an instance's turn: a sentence for each.

    `unknown` is why nobody can say it, where nobody can.
    """

    changes: Sequence[str] = ()
    unknown: str = ""


def turns(stands: Iterable[tuple[str, Stand]], elsewhere: Elsewhere, limit: int) -> dict[str, Turn]:
    """For each that changes or wants to; those who wait get their turns by name."""
    sorted_stands = sorted(stands)
    failed = [name for name, stand in sorted_stands if stand is Stand.FAILED]
    busy = [name for name, stand in sorted_stands if stand in (Stand.CHANGES, Stand.FAILED)]
    waiting = [name for name, stand in sorted_stands if stand is Stand.WANTS]
    room = max(0, limit - len(busy) - len(elsewhere.changes))
    if failed or elsewhere.unknown:
        room = 0
    granted = [*busy, *waiting[:room]]
    why = _why(failed, granted, elsewhere, limit)
    found = {name: Turn(True) for name in granted}
    return found | {name: Turn(False, why) for name in waiting[room:]}


def _why(failed: list[str], busy: list[str], elsewhere: Elsewhere, limit: int) -> str:
    if failed:
        return f"{_listed(failed)} failed while it changed, and nobody else begins until it is well"
    if elsewhere.unknown:
        return elsewhere.unknown
    at_once = "one changes" if limit == 1 else f"{limit} change"
    now = [*(f"{name} does" for name in busy), *elsewhere.changes]
    return f"{at_once} at a time, and now {_listed(now)}"


def _listed(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
