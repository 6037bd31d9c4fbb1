"""Parallel execution for several instances, with a limit; failures do not affect the others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from winpod.errors import WinpodError

T = TypeVar("T")
R = TypeVar("R")
DEFAULT_PARALLELISM = 32


@dataclass(frozen=True, slots=True)
class InstanceResult(Generic[R]):
    """Result or error of one instance."""

    name: str
    result: R | None = None
    failure: WinpodError | None = None


async def run_parallel(
    items: Sequence[T],
    name_of: Callable[[T], str],
    work: Callable[[T], Awaitable[R]],
    at_once: int = DEFAULT_PARALLELISM,
) -> list[InstanceResult[R]]:
    """Run for all items; return the results in order once all have finished."""
    slots = asyncio.Semaphore(at_once)

    async def run_one(item: T) -> InstanceResult[R]:
        async with slots:
            try:
                return InstanceResult(name_of(item), await work(item))
            except WinpodError as error:
                return InstanceResult(name_of(item), failure=error)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(run_one(item)) for item in items]
    return [task.result() for task in tasks]
