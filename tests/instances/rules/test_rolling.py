"""Whose turn it is: four instances however they stand, whatever changes elsewhere, every limit."""

from itertools import product

import pytest

from winpod.instances.rules.rolling import Elsewhere, Stand, Turn, turns

NAMES = ("a", "b", "c", "d")
BUSY = (Stand.CHANGES, Stand.FAILED)
SAID = ("Machine m leaves", "Machine n is not a ready node yet", "MachineSet o has to make another")
KNOWN = [Elsewhere(SAID[:count]) for count in range(4)]
UNKNOWN = Elsewhere(unknown="the Machines are not known")
NOWHERE = Elsewhere()
EVERYTHING = [
    (dict(zip(NAMES, stands, strict=True)), elsewhere)
    for stands in product(Stand, repeat=4)
    for elsewhere in (*KNOWN, UNKNOWN)
]
LIMITS = pytest.mark.parametrize("limit", [1, 2, 3, 4])


def those(stands: dict[str, Stand], *wanted: Stand) -> list[str]:
    return [name for name in NAMES if stands[name] in wanted]


@LIMITS
def test_no_more_change_at_once_than_were_allowed_or_had_begun(limit: int) -> None:
    for stands, elsewhere in EVERYTHING:
        found = turns(stands.items(), elsewhere, limit)
        granted = {name for name, turn in found.items() if turn.is_granted}
        busy = those(stands, *BUSY)
        others = len(elsewhere.changes)
        assert len(granted) + others <= max(limit, len(busy) + others), (stands, elsewhere)


@LIMITS
def test_whoever_has_begun_goes_on_whatever_changes_elsewhere(limit: int) -> None:
    for stands, elsewhere in EVERYTHING:
        found = turns(stands.items(), elsewhere, limit)
        assert all(found[name] == Turn(True) for name in those(stands, *BUSY)), (stands, elsewhere)


@LIMITS
def test_nobody_begins_while_one_has_failed_or_nobody_knows_what_changes(limit: int) -> None:
    for stands, elsewhere in EVERYTHING:
        has_failed = bool(those(stands, Stand.FAILED))
        if not has_failed and not elsewhere.unknown:
            continue
        found = turns(stands.items(), elsewhere, limit)
        for name in those(stands, Stand.WANTS):
            assert not found[name].is_granted, (stands, elsewhere)
            assert ("failed" if has_failed else elsewhere.unknown) in found[name].why, stands


@LIMITS
def test_whoever_can_begin_does_and_who_waits_is_told_for_whom(limit: int) -> None:
    for stands, elsewhere in EVERYTHING:
        found = turns(stands.items(), elsewhere, limit)
        assert set(found) == {name for name in NAMES if stands[name] is not Stand.RESTS}
        if those(stands, Stand.FAILED) or elsewhere.unknown:
            continue
        changing = len(those(stands, Stand.CHANGES)) + len(elsewhere.changes)
        waiting = those(stands, Stand.WANTS)
        began = [name for name in waiting if found[name].is_granted]
        assert began == waiting[: max(0, limit - changing)], (stands, elsewhere)
        for name in waiting:
            assert found[name].is_granted or found[name].why, (stands, elsewhere)


C, F, W, R = Stand.CHANGES, Stand.FAILED, Stand.WANTS, Stand.RESTS
FAILED = "b failed while it changed, and nobody else begins until it is well"


@pytest.mark.parametrize(
    ("stands", "elsewhere", "limit", "why"),
    [
        ((R, R, R), NOWHERE, 1, ""),
        ((C, R, R), NOWHERE, 1, "one changes at a time, and now a does"),
        ((C, R, R), NOWHERE, 2, ""),
        ((C, C, R), NOWHERE, 2, "2 change at a time, and now a does, b does"),
        ((W, R, R), NOWHERE, 1, "one changes at a time, and now a does"),
        ((R, F, R), NOWHERE, 2, FAILED),
        ((R, R, R), KNOWN[1], 1, f"one changes at a time, and now {SAID[0]}"),
        ((R, R, R), KNOWN[1], 2, ""),
        ((C, R, R), KNOWN[1], 2, f"2 change at a time, and now a does, {SAID[0]}"),
        ((C, R, R), KNOWN[1], 3, ""),
        ((R, R, R), KNOWN[2], 2, f"2 change at a time, and now {SAID[0]}, {SAID[1]}"),
        ((C, C, R), KNOWN[3], 1, f"one changes at a time, and now a does, b does, {SAID[0]} and 2"),
        ((R, F, R), KNOWN[1], 9, FAILED),
        ((R, R, R), UNKNOWN, 9, UNKNOWN.unknown),
        ((R, F, R), UNKNOWN, 9, FAILED),
    ],
)
def test_the_last_of_four_waits_for_all_that_changes_and_is_told(
    stands: tuple[Stand, ...], elsewhere: Elsewhere, limit: int, why: str
) -> None:
    turn = turns(zip(NAMES, (*stands, Stand.WANTS), strict=True), elsewhere, limit)["d"]
    assert turn.is_granted == (not why)
    assert turn.why.startswith(why)


def test_taking_turns_ends_with_everybody_changed() -> None:
    stands = dict.fromkeys(NAMES, Stand.WANTS)
    changed = []
    while any(stand is not Stand.RESTS for stand in stands.values()):
        found = turns(stands.items(), NOWHERE, 1)
        (name,) = [name for name, turn in found.items() if turn.is_granted]
        stands[name] = Stand.RESTS
        changed.append(name)
    assert changed == list(NAMES)
