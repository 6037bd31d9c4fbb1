"""Starting winpod as a background process that outlives its caller."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

from winpod.compute.cgroups import in_own_cgroup
from winpod.errors import ERROR_FILE_VARIABLE, Unavailable
from winpod.images.errors import DiskFull

START_SECONDS = 180
_LOG_LIMIT = 1024 * 1024
_MIN_FREE_BYTES = 1024 * 1024
_Client = TypeVar("_Client")


async def start_daemon(
    arguments: Sequence[str], log: Path, connect: Callable[[int], Awaitable[_Client | None]]
) -> _Client:
    """Start `winpod` with these arguments and wait until `connect` reaches the new process.

    If it fails to start, its error is raised.
    """
    process = _start(arguments, log)
    try:
        async with asyncio.timeout(START_SECONDS):
            while process.poll() is None:
                if client := await connect(process.pid):
                    return client
                await asyncio.sleep(0.02)
    except TimeoutError:
        process.terminate()
    if shutil.disk_usage(log.parent).free < _MIN_FREE_BYTES:
        raise DiskFull(
            f"The disk of {log.parent} is full; the process cannot start.",
            "Free disk space, or choose another --root.",
        )
    raise _reported_error(log) or Unavailable(f"The process did not start. See {log}.")


def _start(arguments: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    if log.exists() and log.stat().st_size > _LOG_LIMIT:
        log.unlink()
    _error_file(log).unlink(missing_ok=True)
    with log.open("ab") as output:
        return subprocess.Popen(  # noqa: S603 - outlives this process
            in_own_cgroup([sys.executable, "-m", "winpod", *arguments]),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd="/",
            env={**os.environ, ERROR_FILE_VARIABLE: str(_error_file(log))},
        )


def _error_file(log: Path) -> Path:
    return log.with_suffix(".error.json")


def _reported_error(log: Path) -> Unavailable | None:
    """Return the error that the process wrote before it exited."""
    try:
        return Unavailable(**json.loads(_error_file(log).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None
