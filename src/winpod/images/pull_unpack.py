"""The processes that unpack layers: started when first needed, used again, few at a time.

Unpacking is kept out of the caller's process because it would hold up everything else there, and
because a layer is the content least to be trusted. A process that fails is not used again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Self

from winpod.images.pull_worker import Job
from winpod.images.store_size import LayerSize
from winpod.windows.errors import WinpodError

_COMMAND = (sys.executable, "-P", "-m", "winpod.images.pull_worker")
_LONGEST_ANSWER = 1 << 20


class Arrival:
    """How many bytes of a blob are in its file, for whoever waits for more."""

    def __init__(self, available: int = 0) -> None:
        self.available = available
        self._changed = asyncio.Event()

    def set(self, available: int) -> None:
        self.available = available
        self._changed.set()

    async def beyond(self, seen: int) -> int:
        """How many there are, once there are more than were seen."""
        while self.available <= seen:
            self._changed.clear()
            await self._changed.wait()
        return self.available


@dataclass(frozen=True, slots=True)
class _Worker:
    process: asyncio.subprocess.Process
    jobs: asyncio.StreamWriter
    answers: asyncio.StreamReader

    async def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await asyncio.shield(self.process.wait())


class Unpackers:
    """An async context manager. `inherited` stays open in its processes, for as long as they."""

    def __init__(self, inherited: int, count: int | None = None) -> None:
        self._inherited = inherited
        self._count = count or max(2, os.cpu_count() or 1)
        self._slots = asyncio.Semaphore(self._count)
        self._idle: list[_Worker] = []
        self._starting: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await asyncio.gather(*self._starting, return_exceptions=True)
        while self._idle:
            await self._idle.pop().end()

    def warm_up(self, layers: int) -> None:
        """Begin to start as many as these layers can use, to be ready when the first arrives."""
        for _ in range(len(self._idle) + len(self._starting), min(layers, self._count)):
            task = asyncio.create_task(self._add_idle())
            self._starting.add(task)
            task.add_done_callback(self._starting.discard)

    async def _add_idle(self) -> None:
        with contextlib.suppress(WinpodError):  # whoever needs one will be told
            self._idle.append(await self._start())

    async def unpack(self, job: Job, arrival: Arrival) -> tuple[str, LayerSize]:
        """The layer's diff id, and what it takes of the disk."""
        await arrival.beyond(0)
        async with self._slots, self._worker() as worker:
            answer = await _ask(worker, job, arrival)
            if "error" in answer:
                raise _error(answer)
            return str(answer["diff_id"]), LayerSize(answer["bytes"], answer["inodes"])

    @asynccontextmanager
    async def _worker(self) -> AsyncIterator[_Worker]:
        if self._starting and not self._idle:
            await asyncio.wait(self._starting, return_when=asyncio.FIRST_COMPLETED)
        worker = self._idle.pop() if self._idle else await self._start()
        try:
            yield worker
        except BaseException:
            await worker.end()
            raise
        self._idle.append(worker)

    async def _start(self) -> _Worker:
        try:
            process = await asyncio.create_subprocess_exec(
                *_COMMAND,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                pass_fds=(self._inherited,),
                limit=_LONGEST_ANSWER,
            )
        except OSError as error:
            raise WinpodError(
                f"A process to unpack layers cannot be started: {error.strerror}.",
                "Look at the limits of processes and memory.",
            ) from None
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("a process was started without the pipes that it was to have")
        return _Worker(process, process.stdin, process.stdout)


async def _ask(worker: _Worker, job: Job, arrival: Arrival) -> dict[str, Any]:
    worker.jobs.write(json.dumps(asdict(job)).encode() + b"\n")
    feeding = asyncio.create_task(_feed(worker.jobs, job.size, arrival))
    try:
        line = await worker.answers.readline()
    finally:
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)
    if not line:
        raise WinpodError(
            f"The process that unpacked {job.digest} ended without a result "
            f"(status {await worker.process.wait()}).",
            "It may have been killed for want of memory; try again.",
        )
    answer: dict[str, Any] = json.loads(line)
    return answer


async def _feed(pipe: asyncio.StreamWriter, size: int, arrival: Arrival) -> None:
    seen = 0
    with contextlib.suppress(ConnectionError):
        while seen < size:
            seen = await arrival.beyond(seen)
            pipe.write(b"%d\n" % seen)
            await pipe.drain()


def _error(answer: dict[str, Any]) -> WinpodError:
    kinds = {kind.__name__: kind for kind in _subclasses(WinpodError)}
    kind = kinds.get(str(answer["error"]), WinpodError)
    return kind(str(answer["sentence"]), str(answer["advice"]))


def _subclasses(kind: type[WinpodError]) -> list[type[WinpodError]]:
    return [kind, *(below for one in kind.__subclasses__() for below in _subclasses(one))]
