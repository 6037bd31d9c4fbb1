"""Templates: a failed boot is reported at once, and missing programs beforehand.

A script stands in for QEMU.
"""

import asyncio
import multiprocessing
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from winpod.compute.errors import MicroVmFailed
from winpod.compute.hypervisor.accelerator import Accelerator
from winpod.compute.hypervisor.assets import HypervisorAssets
from winpod.compute.hypervisor.template import BOOT_SECONDS, Template, Templates, boot_guest
from winpod.images.base.builder import Base


def failing(folder: Path, script: str) -> Template:
    """Assets whose loader, which starts every program, is a script."""
    loader = folder / "tree/usr/lib64/ld-linux-x86-64.so.2"
    loader.parent.mkdir(parents=True)
    loader.write_text(f"#!/bin/sh\n{script}\n")
    loader.chmod(0o755)
    return Template(folder, HypervisorAssets(folder, "10.0.13"), Accelerator.EMULATION)


async def boot(folder: Path, script: str) -> None:
    async with boot_guest(failing(folder, script), folder):
        pass


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo no such device >&2; exit 1", "QEMU ended with 1: no such device"),
        ("echo Kernel panic >console; exit 0", "QEMU ended with 0: Kernel panic"),
        ("kill -9 $$", "QEMU ended with -9: no output"),
    ],
)
async def test_early_exit_of_qemu_is_reported_with_its_output(
    tmp_path: Path, script: str, message: str
) -> None:
    async with asyncio.timeout(BOOT_SECONDS / 4):
        with pytest.raises(MicroVmFailed, match=message):
            await boot(tmp_path, script)


def test_boot_ends_with_its_parent(tmp_path: Path) -> None:
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


def test_missing_program_makes_hypervisor_isolation_unavailable(
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
    assert made.unavailable_reason() == "this host has no tc (package iproute2)."
    (programs / "mkfs.ext4").unlink()
    assert made.unavailable_reason().endswith(
        "no tc (package iproute2), no mkfs.ext4 (package e2fsprogs)."
    )
    for name in ("tc", "mkfs.ext4"):
        (programs / name).touch(mode=0o755)
    assert made.unavailable_reason() == ""
