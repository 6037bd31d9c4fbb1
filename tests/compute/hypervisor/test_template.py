"""A guest that cannot be booted is told of at once; a script stands in for QEMU."""

import asyncio
import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from winpod.compute.errors import MachineFailed
from winpod.compute.hypervisor.accelerator import Accelerator
from winpod.compute.hypervisor.kit import Kit
from winpod.compute.hypervisor.template import BOOT_SECONDS, Template, booted


def failing(folder: Path, script: str) -> Template:
    """What starts each program of a kit is its loader."""
    loader = folder / "tree/usr/lib64/ld-linux-x86-64.so.2"
    loader.parent.mkdir(parents=True)
    loader.write_text(f"#!/bin/sh\n{script}\n")
    loader.chmod(0o755)
    return Template(folder, Kit(folder, "10.0.13"), Accelerator.EMULATION)


async def boot(folder: Path, script: str) -> None:
    async with booted(failing(folder, script), folder):
        pass


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo no such device >&2; exit 1", "QEMU ended with 1: no such device"),
        ("echo Kernel panic >console; exit 0", "QEMU ended with 0: Kernel panic"),
        ("kill -9 $$", "QEMU ended with -9: it said nothing"),
    ],
)
async def test_a_qemu_that_ends_is_not_waited_for_and_its_words_are_told(
    tmp_path: Path, script: str, said: str
) -> None:
    async with asyncio.timeout(BOOT_SECONDS / 4):
        with pytest.raises(MachineFailed, match=said):
            await boot(tmp_path, script)


def test_nothing_of_a_boot_goes_on_without_who_began_it(tmp_path: Path) -> None:
    script = "echo $$ >pid.new; mv pid.new pid; exec sleep 600"
    beginner = multiprocessing.get_context("fork").Process(
        target=lambda: asyncio.run(boot(tmp_path, script))
    )
    beginner.start()
    file = tmp_path / "pid"
    _until(file.exists)
    qemu = Path("/proc") / file.read_text().strip()
    assert qemu.exists()
    beginner.kill()
    beginner.join()
    _until(lambda: not qemu.exists() or "Z" in (qemu / "stat").read_text().split()[2])


def _until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)
