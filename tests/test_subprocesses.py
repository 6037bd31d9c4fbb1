"""Running programs."""

import asyncio
import os
from pathlib import Path

import pytest

from winpod.subprocesses import run, run_blocking

SCRIPT = ("sh", "-c", "cat; echo wrong >&2; exit 3")


async def test_result_has_output_errors_and_exit_code() -> None:
    done = await run(SCRIPT, stdin=b"given")
    assert (done.code, done.output, done.error_text) == (3, b"given", "wrong")


def test_blocking_run_has_the_same_result() -> None:
    done = run_blocking(SCRIPT)
    assert (done.code, done.output, done.error_text) == (3, b"", "wrong")


async def test_grandchild_that_keeps_the_output_open_is_not_awaited() -> None:
    async with asyncio.timeout(10):
        done = await run(("sh", "-c", "sleep 30 & echo $!"))
    await asyncio.to_thread(run_blocking, ("kill", done.output.decode().strip()))


@pytest.mark.parametrize("is_interactive", [False, True])
async def test_program_is_killed_on_timeout(tmp_path: Path, is_interactive: bool) -> None:
    script = f"echo $$ > {tmp_path}/pid; exec sleep 30"
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await run(("sh", "-c", script), is_interactive=is_interactive)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


async def test_missing_program_is_reported() -> None:
    with pytest.raises(FileNotFoundError):
        await run(("/no/such/program",))
