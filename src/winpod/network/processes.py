"""Run a program to its end: input in, output out, a time limit, no child left behind.

Input and output are files in memory, and the end of the program is the only thing waited for: one
event instead of the five of pipes, and no child of a child that holds a pipe open can delay it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO


@dataclass(frozen=True)
class Finished:
    code: int
    output: bytes
    errors: bytes


@dataclass(frozen=True)
class Running:
    process: subprocess.Popen[bytes]
    output: IO[bytes]
    errors: IO[bytes]


def start(
    command: Sequence[str],
    *,
    given: bytes,
    environment: Mapping[str, str],
    inherited: Sequence[int] = (),
) -> Running:
    """In a process group of its own, so that it ends with all its children or with none."""
    output, errors = _memory(), _memory()
    with _memory() as input_:
        input_.write(given)
        input_.seek(0)
        process = subprocess.Popen(  # noqa: S603 - a plugin, or a tool of ours
            command,
            stdin=input_,
            stdout=output,
            stderr=errors,
            env=environment,
            process_group=0,
            pass_fds=inherited,
        )
    return Running(process, output, errors)


async def finish(running: Running, time_limit: float) -> Finished:
    """Raises TimeoutError. Ended early, it takes all its children along."""
    process = running.process
    with running.output, running.errors:
        try:
            async with asyncio.timeout(time_limit):
                await _ended(process.pid)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
        finally:
            code = process.wait()
        return Finished(code, _content(running.output), _content(running.errors))


async def _ended(pid: int) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    descriptor = os.pidfd_open(pid)
    try:
        loop.add_reader(descriptor, ended.set)
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def _memory() -> IO[bytes]:
    return os.fdopen(os.memfd_create("winpod", os.MFD_CLOEXEC), "r+b", buffering=0)


def _content(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()
