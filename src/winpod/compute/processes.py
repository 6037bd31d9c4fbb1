"""Processes that outlive this one: known by the numbers they left in files, or by their words."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Collection, Coroutine
from pathlib import Path
from typing import Any, TypeVar

_T = TypeVar("_T")


def read_pid(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None


def is_about(pid: int | None, folder: Path) -> bool:
    """Whether a number that was written down is still the process it was written for."""
    try:
        return pid is not None and os.fsencode(folder) in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


async def until_gone(pid: int) -> None:
    """Until the process has ended; at once if it has."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    loop = asyncio.get_running_loop()
    ended = loop.create_future()
    loop.add_reader(descriptor, _settle, ended)
    try:
        await ended
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def _settle(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)


async def to_its_end(work: Coroutine[Any, Any, _T]) -> _T:
    """Work that is not left half-way when nobody waits for it any longer."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait((task,))
        if not task.cancelled():
            task.exception()  # which nobody is there to be told
        raise


def wait_for_orphans(
    folder: Path, beginnings: Collection[str], seconds: float, unless: Path | None = None
) -> None:
    """Until no process has such a beginning of its command line, and the folder in it.

    What a killed process had begun goes on without it, and would make what nobody knows of. A file
    that is there `unless` tells that it is known.
    """
    deadline = time.monotonic() + seconds
    while any(_is_orphan(folder, line, beginnings) for line in _command_lines()):
        if time.monotonic() > deadline or (unless and unless.exists()):
            return
        time.sleep(0.02)


def _is_orphan(folder: Path, line: list[str], beginnings: Collection[str]) -> bool:
    begins = f"{Path(line[0]).name} {' '.join(line[1:])} "
    return begins.startswith(tuple(f"{one} " for one in beginnings)) and str(folder) in begins


def _command_lines() -> list[list[str]]:
    lines = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            lines.append(os.fsdecode(file.read_bytes()).split("\0"))
    return lines
