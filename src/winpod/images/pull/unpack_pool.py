"""Pool of worker processes that unpack layers, started on demand and reused.

Unpacking runs in separate processes because it would block the event loop, and because layers are
untrusted content. A worker that fails is not reused.
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

from winpod.concurrency import run_to_completion
from winpod.errors import WinpodError
from winpod.files import TreeUsage
from winpod.images.pull.unpack_worker import UnpackJob

_COMMAND = (sys.executable, "-P", "-m", "winpod.images.pull.unpack_worker")
_MAX_ANSWER_SIZE = 1 << 20


class DownloadPosition:
    """The number of bytes of a blob that are in its file, with a wait for more."""

    def __init__(self, available: int = 0) -> None:
        self.available = available
        self._changed = asyncio.Event()

    def set(self, available: int) -> None:
        self.available = available
        self._changed.set()

    async def wait_beyond(self, seen: int) -> int:
        """Wait until more than `seen` bytes are available, and return how many."""
        while self.available <= seen:
            self._changed.clear()
            await self._changed.wait()
        return self.available


@dataclass(frozen=True, slots=True)
class _Worker:
    process: asyncio.subprocess.Process
    jobs: asyncio.StreamWriter
    answers: asyncio.StreamReader

    async def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await run_to_completion(self.process.wait())


class UnpackPool:
    """Async context manager. The workers inherit the file descriptor `inherited`, a lock."""

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
            await self._idle.pop().stop()

    def warm_up(self, layers: int) -> None:
        """Start workers for these layers in the background, before the first one arrives."""
        for _ in range(len(self._idle) + len(self._starting), min(layers, self._count)):
            task = asyncio.create_task(self._add_idle())
            self._starting.add(task)
            task.add_done_callback(self._starting.discard)

    async def _add_idle(self) -> None:
        with contextlib.suppress(WinpodError):  # unpack() starts one itself and raises
            self._idle.append(await self._start())

    async def unpack(self, job: UnpackJob, position: DownloadPosition) -> tuple[str, TreeUsage]:
        """Unpack a layer while it arrives; return its diff id and disk usage."""
        await position.wait_beyond(0)
        async with self._slots, self._worker() as worker:
            answer = await _send_job(worker, job, position)
            if "error" in answer:
                raise _error(answer)
            return str(answer["diff_id"]), TreeUsage(answer["bytes"], answer["inodes"])

    @asynccontextmanager
    async def _worker(self) -> AsyncIterator[_Worker]:
        if self._starting and not self._idle:
            await asyncio.wait(self._starting, return_when=asyncio.FIRST_COMPLETED)
        worker = self._idle.pop() if self._idle else await self._start()
        try:
            yield worker
        except BaseException:
            await worker.stop()
            raise
        self._idle.append(worker)

    async def _start(self) -> _Worker:
        try:
            process = await asyncio.create_subprocess_exec(
                *_COMMAND,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                pass_fds=(self._inherited,),
                limit=_MAX_ANSWER_SIZE,
            )
        except OSError as error:
            raise WinpodError(
                f"Failed to start a process to unpack layers: {error.strerror}.",
                "Check the process and memory limits.",
            ) from None
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("the unpack worker was started without pipes")
        return _Worker(process, process.stdin, process.stdout)


async def _send_job(worker: _Worker, job: UnpackJob, position: DownloadPosition) -> dict[str, Any]:
    worker.jobs.write(json.dumps(asdict(job)).encode() + b"\n")
    feeding = asyncio.create_task(_feed(worker.jobs, job.size, position))
    try:
        line = await worker.answers.readline()
    finally:
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)
    if not line:
        raise WinpodError(
            f"The process that unpacked {job.digest} ended without a result "
            f"(status {await worker.process.wait()}).",
            "It may have been killed because memory ran out; try again.",
        )
    answer: dict[str, Any] = json.loads(line)
    return answer


async def _feed(pipe: asyncio.StreamWriter, size: int, position: DownloadPosition) -> None:
    seen = 0
    with contextlib.suppress(ConnectionError):
        while seen < size:
            seen = await position.wait_beyond(seen)
            pipe.write(b"%d\n" % seen)
            await pipe.drain()


def _error(answer: dict[str, Any]) -> WinpodError:
    kinds = {kind.__name__: kind for kind in _subclasses(WinpodError)}
    kind = kinds.get(str(answer["error"]), WinpodError)
    return kind(str(answer["message"]), str(answer["hint"]))


def _subclasses(kind: type[WinpodError]) -> list[type[WinpodError]]:
    return [kind, *(sub for child in kind.__subclasses__() for sub in _subclasses(child))]
