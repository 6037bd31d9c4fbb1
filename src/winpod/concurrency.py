"""Keyed locks, expiring caches, backoff, supervised and uncancellable tasks, own threads."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

_K = TypeVar("_K", bound=Hashable)
_T = TypeVar("_T")


def run_in_own_thread(work: Callable[[], _T]) -> _T:
    """Run the work in a new thread and return its result.

    For work that changes the thread itself, such as entering a namespace: a thread cannot leave one
    again, so it must end afterwards.
    """
    result: list[_T] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            result.append(work())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return result[0]


class KeyedLock(Generic[_T]):
    """Per-key locks or semaphores, made by `factory` and dropped when they are no longer used."""

    def __init__(self, factory: Callable[[], _T]) -> None:
        self._factory = factory
        self._locks: WeakValueDictionary[str, _T] = WeakValueDictionary()

    def lock(self, key: str) -> _T:
        return self._locks.setdefault(key, self._factory())


class TtlCache(Generic[_K, _T]):
    """Cache whose entries expire individually. It is emptied when it is full."""

    _MAX_ENTRIES = 4096

    def __init__(self) -> None:
        self._entries: dict[_K, tuple[_T, float]] = {}

    def __contains__(self, key: _K) -> bool:
        return key in self._entries and self._entries[key][1] > time.monotonic()

    def __getitem__(self, key: _K) -> _T:
        return self._entries[key][0]

    def put(self, key: _K, value: _T, seconds: float) -> None:
        if len(self._entries) >= self._MAX_ENTRIES:
            self.remove_expired()
        if len(self._entries) >= self._MAX_ENTRIES:
            self._entries.clear()
        self._entries[key] = (value, time.monotonic() + seconds)

    def remove_expired(self) -> None:
        now = time.monotonic()
        self._entries = {key: entry for key, entry in self._entries.items() if entry[1] > now}


def exponential_delay(attempt: int, initial: float, maximum: float) -> float:
    """Return the wait after failed attempt `attempt`, from 0: doubled each time to the maximum."""
    return min(initial * 2.0 ** min(attempt, 64), maximum)


class Backoff:
    """Exponential backoff of one retry loop, in seconds."""

    def __init__(self, initial: float, maximum: float) -> None:
        self._initial = initial
        self._maximum = maximum
        self._attempt = 0

    def next(self) -> float:
        """Return the wait after a failure."""
        delay = exponential_delay(self._attempt, self._initial, self._maximum)
        self._attempt += 1
        return delay

    def reset(self) -> None:
        self._attempt = 0


@dataclass(frozen=True, slots=True)
class BackoffState:
    """Backoff of a failing container: the wait after its next failure, and when it was set."""

    wait: timedelta
    since: datetime


@dataclass(frozen=True, slots=True)
class BackoffPolicy:
    """Restart backoff of the kubelet.

    The first restart is immediate; then the wait is ten seconds, doubled each time up to five
    minutes, counted from the exit. It is reset after running for twice the maximum wait.
    """

    initial: timedelta = timedelta(seconds=10)
    maximum: timedelta = timedelta(minutes=5)

    def ready_at(self, state: BackoffState | None, ended: datetime) -> datetime:
        """Return when a container that exited at `ended` may be restarted."""
        if state is None or self._is_reset(state, ended):
            return ended
        return ended + state.wait

    def next(self, state: BackoffState | None, ended: datetime, now: datetime) -> BackoffState:
        """Return the state to keep after a restart."""
        if state is None or self._is_reset(state, ended):
            return BackoffState(self.initial, now)
        return BackoffState(min(state.wait * 2, self.maximum), now)

    def _is_reset(self, state: BackoffState, ended: datetime) -> bool:
        return ended - state.since > 2 * self.maximum


async def supervise(name: str, work: Callable[[], Awaitable[None]]) -> None:
    """Run `work` forever; log an exception and restart it after a second."""
    while True:
        try:
            await work()
        except Exception:
            logging.getLogger(__name__).exception("%s failed; restarting", name)
        await asyncio.sleep(1.0)


async def run_to_completion(work: Coroutine[Any, Any, _T]) -> _T:
    """Run `work` to its end even if the caller is cancelled, and then raise the cancellation."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait((task,))
        if not task.cancelled():
            task.exception()  # retrieved, because the caller was cancelled
        raise


async def cancel_and_wait(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks and wait for their end. Their results and exceptions are dropped."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def gather_or_cancel(work: list[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Return the results in order; the first failure cancels the others."""
    tasks = [asyncio.create_task(coroutine) for coroutine in work]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        await cancel_and_wait(*tasks)
        raise
