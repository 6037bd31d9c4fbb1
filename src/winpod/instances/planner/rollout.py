"""Rollout limit: which of the instances that are nodes already may change now; pure.

At most `limit` instances change at a time; nodes that MachineSets lack count as changing. An
instance that has begun continues, also after a failure. While one has failed, or the number of
changes is unknown, no other instance begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum


class RolloutState(StrEnum):
    IDLE = "rests"
    PENDING = "wants to change"
    UPDATING = "changes"
    FAILED = "failed while it changed"


@dataclass(frozen=True, slots=True)
class RolloutSlot:
    """`why` says what the instance waits for, if it has to wait."""

    is_granted: bool
    why: str = ""


@dataclass(frozen=True, slots=True)
class ExternalChanges:
    """Changes that occupy a slot without being an instance's own, one message each.

    `unknown` is why they cannot be determined, if so.
    """

    changes: Sequence[str] = ()
    unknown: str = ""


def assign_slots(
    states: Iterable[tuple[str, RolloutState]], external: ExternalChanges, limit: int
) -> dict[str, RolloutSlot]:
    """Assign slots to instances that change or need to; waiting ones are served by name."""
    sorted_states = sorted(states)
    failed = [name for name, state in sorted_states if state is RolloutState.FAILED]
    busy = [
        name
        for name, state in sorted_states
        if state in (RolloutState.UPDATING, RolloutState.FAILED)
    ]
    waiting = [name for name, state in sorted_states if state is RolloutState.PENDING]
    free = max(0, limit - len(busy) - len(external.changes))
    if failed or external.unknown:
        free = 0
    granted = [*busy, *waiting[:free]]
    why = _why(failed, granted, external, limit)
    slots = {name: RolloutSlot(True) for name in granted}
    return slots | {name: RolloutSlot(False, why) for name in waiting[free:]}


def _why(failed: list[str], busy: list[str], external: ExternalChanges, limit: int) -> str:
    if failed:
        return f"the update of {_listed(failed)} failed; no other starts until it is resolved"
    if external.unknown:
        return external.unknown
    allowed = "one update" if limit == 1 else f"{limit} updates"
    return f"{allowed} at a time; in progress: {_listed([*busy, *external.changes])}"


def _listed(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
