"""Rollout slots for four instances in every state, with every external change and limit."""

from itertools import product

import pytest

from winpod.instances.planner.rollout import (
    ExternalChanges,
    RolloutSlot,
    RolloutState,
    assign_slots,
)

NAMES = ("a", "b", "c", "d")
BUSY = (RolloutState.UPDATING, RolloutState.FAILED)
MESSAGES = (
    "Machine m is being deleted",
    "Machine n is not a ready node yet",
    "MachineSet o has to create a Machine",
)
KNOWN = [ExternalChanges(MESSAGES[:count]) for count in range(4)]
UNKNOWN = ExternalChanges(unknown="the Machines are not known")
NO_CHANGES = ExternalChanges()
CASES = [
    (dict(zip(NAMES, states, strict=True)), external)
    for states in product(RolloutState, repeat=4)
    for external in (*KNOWN, UNKNOWN)
]
LIMITS = pytest.mark.parametrize("limit", [1, 2, 3, 4])


def in_state(states: dict[str, RolloutState], *selected: RolloutState) -> list[str]:
    return [name for name in NAMES if states[name] in selected]


@LIMITS
def test_limit_is_never_exceeded_by_new_updates(limit: int) -> None:
    for states, external in CASES:
        slots = assign_slots(states.items(), external, limit)
        granted = {name for name, slot in slots.items() if slot.is_granted}
        busy = in_state(states, *BUSY)
        others = len(external.changes)
        assert len(granted) + others <= max(limit, len(busy) + others), (states, external)


@LIMITS
def test_started_updates_always_continue(limit: int) -> None:
    for states, external in CASES:
        slots = assign_slots(states.items(), external, limit)
        assert all(slots[name] == RolloutSlot(True) for name in in_state(states, *BUSY)), (
            states,
            external,
        )


@LIMITS
def test_no_update_starts_after_a_failure_or_with_unknown_changes(limit: int) -> None:
    for states, external in CASES:
        has_failed = bool(in_state(states, RolloutState.FAILED))
        if not has_failed and not external.unknown:
            continue
        slots = assign_slots(states.items(), external, limit)
        for name in in_state(states, RolloutState.PENDING):
            assert not slots[name].is_granted, (states, external)
            assert ("failed" if has_failed else external.unknown) in slots[name].why, states


@LIMITS
def test_free_slots_are_used_and_waiting_instances_have_a_reason(limit: int) -> None:
    for states, external in CASES:
        slots = assign_slots(states.items(), external, limit)
        assert set(slots) == {name for name in NAMES if states[name] is not RolloutState.IDLE}
        if in_state(states, RolloutState.FAILED) or external.unknown:
            continue
        changing = len(in_state(states, RolloutState.UPDATING)) + len(external.changes)
        waiting = in_state(states, RolloutState.PENDING)
        began = [name for name in waiting if slots[name].is_granted]
        assert began == waiting[: max(0, limit - changing)], (states, external)
        for name in waiting:
            assert slots[name].is_granted or slots[name].why, (states, external)


C, F, W, R = RolloutState.UPDATING, RolloutState.FAILED, RolloutState.PENDING, RolloutState.IDLE
FAILED = "the update of b failed; no other starts until it is resolved"


@pytest.mark.parametrize(
    ("states", "external", "limit", "why"),
    [
        ((R, R, R), NO_CHANGES, 1, ""),
        ((C, R, R), NO_CHANGES, 1, "one update at a time; in progress: a"),
        ((C, R, R), NO_CHANGES, 2, ""),
        ((C, C, R), NO_CHANGES, 2, "2 updates at a time; in progress: a, b"),
        ((W, R, R), NO_CHANGES, 1, "one update at a time; in progress: a"),
        ((R, F, R), NO_CHANGES, 2, FAILED),
        ((R, R, R), KNOWN[1], 1, f"one update at a time; in progress: {MESSAGES[0]}"),
        ((R, R, R), KNOWN[1], 2, ""),
        ((C, R, R), KNOWN[1], 2, f"2 updates at a time; in progress: a, {MESSAGES[0]}"),
        ((C, R, R), KNOWN[1], 3, ""),
        ((R, R, R), KNOWN[2], 2, f"2 updates at a time; in progress: {MESSAGES[0]}, {MESSAGES[1]}"),
        ((C, C, R), KNOWN[3], 1, f"one update at a time; in progress: a, b, {MESSAGES[0]} and 2"),
        ((R, F, R), KNOWN[1], 9, FAILED),
        ((R, R, R), UNKNOWN, 9, UNKNOWN.unknown),
        ((R, F, R), UNKNOWN, 9, FAILED),
    ],
)
def test_waiting_instance_lists_updates_in_progress(
    states: tuple[RolloutState, ...], external: ExternalChanges, limit: int, why: str
) -> None:
    slot = assign_slots(zip(NAMES, (*states, RolloutState.PENDING), strict=True), external, limit)[
        "d"
    ]
    assert slot.is_granted == (not why)
    assert slot.why.startswith(why)


def test_rollout_finishes_for_all_instances() -> None:
    states = dict.fromkeys(NAMES, RolloutState.PENDING)
    changed = []
    while any(stand is not RolloutState.IDLE for stand in states.values()):
        slots = assign_slots(states.items(), NO_CHANGES, 1)
        (name,) = [name for name, slot in slots.items() if slot.is_granted]
        states[name] = RolloutState.IDLE
        changed.append(name)
    assert changed == list(NAMES)
