"""Rollout queue without an operator, and parallel execution."""

from __future__ import annotations

import asyncio

import pytest

from winpod.errors import NotFound
from winpod.instances.standalone.parallel import run_parallel
from winpod.instances.standalone.runner import RolloutHalted, RolloutQueue


async def test_queue_limits_updates_and_halts_after_a_failure() -> None:
    queue = RolloutQueue(2)
    await queue.acquire("a")
    await queue.acquire("b")
    third = asyncio.create_task(queue.acquire("c"))
    fourth = asyncio.create_task(queue.acquire("d"))
    await asyncio.sleep(0)
    assert not third.done()
    queue.release("a", has_failed=False)
    await third
    queue.release("b", has_failed=True)
    with pytest.raises(RolloutHalted, match="d: not updated, because the update of b failed"):
        await fourth


async def test_failure_does_not_affect_others_and_parallelism_is_limited() -> None:
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

    outcomes = await run_parallel(range(8), str, work, at_once=3)
    assert [outcome.result for outcome in outcomes] == [0, 1, 4, None, 16, 25, 36, 49]
    assert str(outcomes[3].failure) == "three is not there."
    assert most == 3
