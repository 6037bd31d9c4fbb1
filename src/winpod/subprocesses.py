"""Running programs with input, output and a time limit, and finding processes of earlier runs.

stdin, stdout and stderr of `run` are memfds, and only the exit of the program is awaited: one event
instead of five with pipes, and a grandchild that keeps a pipe open cannot delay it.
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
from typing import IO


@dataclass(frozen=True)
class ProcessResult:
    code: int
    output: bytes
    errors: bytes

    @property
    def error_text(self) -> str:
        return self.errors.decode(errors="replace").strip()


async def run(
    command: Sequence[str],
    *,
    stdin: bytes = b"",
    env: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
    is_interactive: bool = False,
    show_errors: bool = False,
) -> ProcessResult:
    """Run a program. Kill it with its children if cancelled, as by `asyncio.timeout`.

    An interactive program stays in the process group, so that it can prompt on the terminal; its
    children are not killed. With `show_errors`, stderr is not captured. Raises OSError if the
    program cannot be started.
    """
    with _memfd(stdin) as input_, _memfd() as output, _memfd() as errors:
        process = subprocess.Popen(  # noqa: ASYNC220, S603 - returns once it is started
            command,
            stdin=input_,
            stdout=output,
            stderr=None if show_errors else errors,
            env=env,
            process_group=None if is_interactive else 0,
            pass_fds=pass_fds,
        )
        try:
            await wait_process_exit(process.pid)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                (os.kill if is_interactive else os.killpg)(process.pid, signal.SIGKILL)
            raise
        finally:
            code = process.wait()
        return ProcessResult(code, _content(output), _content(errors))


def run_blocking(command: Sequence[str]) -> ProcessResult:
    """Run a program from a thread or a command. Raises OSError if it cannot be started."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)  # noqa: S603
    return ProcessResult(done.returncode, done.stdout, done.stderr)


def _memfd(content: bytes = b"") -> IO[bytes]:
    file = os.fdopen(os.memfd_create("winpod", os.MFD_CLOEXEC), "r+b", buffering=0)
    file.write(content)
    file.seek(0)
    return file


def _content(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()


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
