"""The same for several instances: so many at once, and none stops another."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from winpod.windows.errors import WinpodError

T = TypeVar("T")
R = TypeVar("R")
AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class Outcome(Generic[R]):
    """Of one instance: what came of it, or why nothing did."""

    name: str
    result: R | None = None
    failure: WinpodError | None = None


async def for_each(
    them: Sequence[T],
    name_of: Callable[[T], str],
    work: Callable[[T], Awaitable[R]],
    at_once: int = AT_ONCE,
) -> list[Outcome[R]]:
    """In the order they were given, once all are through."""
    slots = asyncio.Semaphore(at_once)

    async def one(it: T) -> Outcome[R]:
        async with slots:
            try:
                return Outcome(name_of(it), await work(it))
            except WinpodError as error:
                return Outcome(name_of(it), failure=error)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(it)) for it in them]
    return [task.result() for task in tasks]
