"""Processes that outlive this one: known by the numbers they left in files."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path


def read_pid(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None


def is_program(pid: int | None, name: str) -> bool:
    """Whether a number that was written down is still the program it was written for."""
    try:
        return pid is not None and Path(f"/proc/{pid}/comm").read_text().strip() == name
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
