"""Whose turn it is: every combination of four instances, and every limit."""

from itertools import product

import pytest

from winpod.instances.rules.rolling import Stand, turns

NAMES = ("a", "b", "c", "d")
EVERYTHING = [dict(zip(NAMES, stands, strict=True)) for stands in product(Stand, repeat=4)]


@pytest.mark.parametrize("limit", [1, 2, 3, 4])
def test_no_more_change_at_once_than_were_allowed_or_had_begun(limit: int) -> None:
    for stands in EVERYTHING:
        granted = [name for name, turn in turns(stands.items(), limit).items() if turn.is_granted]
        busy = [name for name in NAMES if stands[name] in (Stand.CHANGES, Stand.FAILED)]
        assert len(granted) <= max(limit, len(busy)), stands
        assert set(busy) <= set(granted), stands


@pytest.mark.parametrize("limit", [1, 2, 3, 4])
def test_nobody_begins_while_one_has_failed(limit: int) -> None:
    for stands in EVERYTHING:
        if Stand.FAILED not in stands.values():
            continue
        for name, turn in turns(stands.items(), limit).items():
            if stands[name] is Stand.WANTS:
                assert not turn.is_granted, stands
                assert "failed" in turn.why, stands


@pytest.mark.parametrize("limit", [1, 2, 3, 4])
def test_whoever_can_begin_does_and_who_waits_is_told_for_whom(limit: int) -> None:
    for stands in EVERYTHING:
        found = turns(stands.items(), limit)
        assert set(found) == {name for name in NAMES if stands[name] is not Stand.RESTS}
        if Stand.FAILED in stands.values():
            continue
        changing = sum(stand is Stand.CHANGES for stand in stands.values())
        waiting = [name for name in NAMES if stands[name] is Stand.WANTS]
        began = [name for name in waiting if found[name].is_granted]
        assert began == waiting[: max(0, limit - changing)], stands
        for name in waiting:
            assert found[name].is_granted or found[name].why, stands


def test_taking_turns_ends_with_everybody_changed() -> None:
    stands = dict.fromkeys(NAMES, Stand.WANTS)
    changed = []
    while any(stand is not Stand.RESTS for stand in stands.values()):
        (name,) = [n for n, turn in turns(stands.items(), 1).items() if turn.is_granted]
        stands[name] = Stand.RESTS
        changed.append(name)
    assert changed == list(NAMES)
