"""Running programs with input, output and a time limit, and finding processes of earlier runs.

stdin, stdout and stderr are memfds, and only the exit of the program is awaited: one event instead
of five with pipes, and a grandchild that keeps a pipe open cannot delay it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeVar


@dataclass(frozen=True)
class ProcessResult:
    code: int
    output: bytes
    errors: bytes


@dataclass(frozen=True)
class RunningProcess:
    process: subprocess.Popen[bytes]
    output: IO[bytes]
    errors: IO[bytes]


def start_process(
    command: Sequence[str],
    *,
    given: bytes,
    environment: Mapping[str, str],
    inherited: Sequence[int] = (),
) -> RunningProcess:
    """Start a program in its own process group, so that its children can be killed with it."""
    output, errors = _memfd(), _memfd()
    with _memfd() as input_:
        input_.write(given)
        input_.seek(0)
        process = subprocess.Popen(  # noqa: S603 - a CNI plugin or an own tool
            command,
            stdin=input_,
            stdout=output,
            stderr=errors,
            env=environment,
            process_group=0,
            pass_fds=inherited,
        )
    return RunningProcess(process, output, errors)


async def wait_process(running: RunningProcess, time_limit: float) -> ProcessResult:
    """Wait for the program. On timeout or cancellation kill its process group.

    Raises TimeoutError.
    """
    process = running.process
    with running.output, running.errors:
        try:
            async with asyncio.timeout(time_limit):
                await _wait_exit(process.pid)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
        finally:
            code = process.wait()
        return ProcessResult(code, _content(running.output), _content(running.errors))


async def _wait_exit(pid: int) -> None:
    loop = asyncio.get_running_loop()
    exited = asyncio.Event()
    descriptor = os.pidfd_open(pid)
    try:
        loop.add_reader(descriptor, exited.set)
        await exited.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def _memfd() -> IO[bytes]:
    return os.fdopen(os.memfd_create("winpod", os.MFD_CLOEXEC), "r+b", buffering=0)


def _content(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()


_T = TypeVar("_T")


def read_pid(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None


def is_process_of(pid: int | None, folder: Path) -> bool:
    """Whether a recorded PID still belongs to a process started for this folder."""
    try:
        return pid is not None and os.fsencode(folder) in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


async def wait_process_exit(pid: int) -> None:
    """Wait until the process exits."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    loop = asyncio.get_running_loop()
    exited = loop.create_future()
    loop.add_reader(descriptor, _set_done, exited)
    try:
        await exited
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def _set_done(exited: asyncio.Future[None]) -> None:
    if not exited.done():
        exited.set_result(None)


def wait_for_orphans(
    folder: Path, prefixes: Collection[str], seconds: float, unless: Path | None = None
) -> None:
    """Wait until no process has a command line with such a prefix that contains the folder.

    Children of a killed process keep running and could create objects that are not recorded. Stops
    waiting when the file `unless` exists: the process is recorded then.
    """
    deadline = time.monotonic() + seconds
    while any(_is_orphan(folder, line, prefixes) for line in _command_lines()):
        if time.monotonic() > deadline or (unless and unless.exists()):
            return
        time.sleep(0.02)


def _is_orphan(folder: Path, line: list[str], prefixes: Collection[str]) -> bool:
    command_line = f"{Path(line[0]).name} {' '.join(line[1:])} "
    return (
        command_line.startswith(tuple(f"{prefix} " for prefix in prefixes))
        and str(folder) in command_line
    )


def _command_lines() -> list[list[str]]:
    lines = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            lines.append(os.fsdecode(file.read_bytes()).split("\0"))
    return lines
