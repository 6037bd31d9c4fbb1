"""A guest that cannot be booted is told of at once; a script stands in for QEMU. Where something
is missing that every guest needs, none is promised."""

import asyncio
import multiprocessing
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from winpod.compute.errors import MachineFailed
from winpod.compute.hypervisor.accelerator import Accelerator
from winpod.compute.hypervisor.kit import Kit
from winpod.compute.hypervisor.template import BOOT_SECONDS, Template, Templates, booted
from winpod.images.base import Base


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


def test_without_a_program_that_guests_need_there_is_a_sentence_and_no_guest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kits/one").mkdir(parents=True)
    (tmp_path / "kits/one/kit.json").write_text('{"revision": 2, "qemu": "10.0.13"}')
    made = Templates(
        tmp_path,
        Base(tmp_path, datetime.now(UTC), "", with_32bit=False, size=0),
        allow_emulation=True,
    )
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    for name in ("conmon", "ip", "mkfs.ext4", "mount", "setpriv"):
        (programs / name).touch(mode=0o755)
    assert made.trouble() == "this machine has no tc (package iproute2)."
    (programs / "mkfs.ext4").unlink()
    assert made.trouble().endswith("no tc (package iproute2), no mkfs.ext4 (package e2fsprogs).")
    for name in ("tc", "mkfs.ext4"):
        (programs / name).touch(mode=0o755)
    assert made.trouble() == ""
