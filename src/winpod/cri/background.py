"""A process of ours in the background: started by whoever needs it, and outliving them."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

from winpod.images.errors import NoSpace
from winpod.windows.errors import Unavailable

START_SECONDS = 60
_LOG_LIMIT = 1024 * 1024
_LITTLE = 1024 * 1024
_Found = TypeVar("_Found")


async def start_in_background(
    arguments: Sequence[str], log: Path, answering: Callable[[int], Awaitable[_Found | None]]
) -> _Found:
    """Start `winpod` with these arguments, and wait until the process with that id answers.

    Where it does not come up, the sentence that it ended with is raised.
    """
    process, before = _start(arguments, log)
    try:
        async with asyncio.timeout(START_SECONDS):
            while process.poll() is None:
                if found := await answering(process.pid):
                    return found
                await asyncio.sleep(0.02)
    except TimeoutError:
        process.terminate()
    if shutil.disk_usage(log.parent).free < _LITTLE:
        raise NoSpace(
            f"The disk of {log.parent} is full, and nothing can start there.",
            "Free some of it, or choose another place with --root.",
        )
    raise Unavailable(_last_words(log, before) or f"The process did not start. See {log}.")


def _start(arguments: Sequence[str], log: Path) -> tuple[subprocess.Popen[bytes], int]:
    """The process, and where what it says begins in the log."""
    if log.exists() and log.stat().st_size > _LOG_LIMIT:
        log.unlink()
    with log.open("ab") as output:
        before = output.tell()
        process = subprocess.Popen(  # noqa: S603 - it is to outlive this process
            [sys.executable, "-m", "winpod", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd="/",
        )
    return process, before


def _last_words(log: Path, before: int) -> str:
    with log.open("rb") as file:
        file.seek(before)
        lines = file.read().decode(errors="replace").splitlines()
    said = [line.removeprefix("winpod: ") for line in lines if line.startswith("winpod: ")]
    return said[-1] if said else ""
