"""Starting winpod as a background process that outlives its caller."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

from winpod.compute.cgroups import in_own_cgroup
from winpod.errors import Unavailable
from winpod.images.errors import DiskFull

START_SECONDS = 180
_LOG_LIMIT = 1024 * 1024
_MIN_FREE_BYTES = 1024 * 1024
_Client = TypeVar("_Client")


async def start_daemon(
    arguments: Sequence[str], log: Path, connect: Callable[[int], Awaitable[_Client | None]]
) -> _Client:
    """Start `winpod` with these arguments and wait until `connect` reaches the new process.

    If it fails to start, its last error message is raised.
    """
    process, offset = _start(arguments, log)
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
    raise Unavailable(_last_error(log, offset) or f"The process did not start. See {log}.")


def _start(arguments: Sequence[str], log: Path) -> tuple[subprocess.Popen[bytes], int]:
    """Start the process. Also returns the offset of its output in the log."""
    if log.exists() and log.stat().st_size > _LOG_LIMIT:
        log.unlink()
    with log.open("ab") as output:
        offset = output.tell()
        process = subprocess.Popen(  # noqa: S603 - outlives this process
            in_own_cgroup([sys.executable, "-m", "winpod", *arguments]),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd="/",
        )
    return process, offset


def _last_error(log: Path, offset: int) -> str:
    with log.open("rb") as file:
        file.seek(offset)
        lines = file.read().decode(errors="replace").splitlines()
    errors = [line.removeprefix("winpod: ") for line in lines if line.startswith("winpod: ")]
    return errors[-1] if errors else ""
