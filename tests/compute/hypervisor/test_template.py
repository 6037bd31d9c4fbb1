"""A guest that cannot be booted is told of at once; a script stands in for QEMU."""

import asyncio
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
            async with booted(failing(tmp_path, script), tmp_path):
                pass
