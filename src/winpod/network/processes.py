"""Run a program to its end: input in, output out, a time limit, no child left behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Finished:
    code: int
    output: bytes
    errors: bytes


async def start(
    command: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    inherited: Sequence[int] = (),
) -> Process:
    """In a session of its own, so that it ends with all its children or with none."""
    return await asyncio.create_subprocess_exec(
        *command,
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        env=environment,
        start_new_session=True,
        pass_fds=inherited,
    )


async def finish(process: Process, given: bytes, time_limit: float) -> Finished:
    """Raises TimeoutError. Ended early, it takes all its children along."""
    try:
        async with asyncio.timeout(time_limit):
            output, errors = await process.communicate(given)
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        raise
    return Finished(process.returncode or 0, output, errors)
