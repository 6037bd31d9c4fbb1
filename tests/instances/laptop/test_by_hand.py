"""Turns without an operator, and several instances at once."""

from __future__ import annotations

import asyncio

import pytest

from winpod.instances.laptop.by_hand import Held, Queue
from winpod.instances.laptop.several import for_each
from winpod.windows.errors import NotFound


async def test_so_many_change_at_a_time_and_none_begins_after_a_failure() -> None:
    queue = Queue(2)
    await queue.enter("a")
    await queue.enter("b")
    third = asyncio.create_task(queue.enter("c"))
    fourth = asyncio.create_task(queue.enter("d"))
    await asyncio.sleep(0)
    assert not third.done()
    queue.leave("a", has_failed=False)
    await third
    queue.leave("b", has_failed=True)
    with pytest.raises(Held, match="d: it stays as it is, since the change of b failed"):
        await fourth


async def test_a_bad_one_stops_no_other_and_no_more_than_so_many_work() -> None:
    working, most = 0, 0

    async def work(number: int) -> int:
        nonlocal working, most
        working += 1
        most = max(most, working)
        await asyncio.sleep(0)
        working -= 1
        if number == 3:
            raise NotFound("three is not there.")
        return number * number

    outcomes = await for_each(range(8), str, work, at_once=3)
    assert [outcome.result for outcome in outcomes] == [0, 1, 4, None, 16, 25, 36, 49]
    assert str(outcomes[3].failure) == "three is not there."
    assert most == 3
