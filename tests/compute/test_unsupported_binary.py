"""A program that the base cannot run is refused before it starts, wherever Windows finds it."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.support.windows_files import program
from winpod.compute.agent.client import Program
from winpod.compute.rootfs import refuse_unsupported_binary
from winpod.images.base.builder import Base
from winpod.images.errors import UnsupportedProgram
from winpod.windows.command_line import join


@pytest.fixture
def drive(tmp_path: Path) -> Path:
    content = {
        "Tools/old.exe": program(machine=0x14C),
        "Tools/web.EXE": program(managed=True),
        "app/good.exe": program(),
        "app/text.exe": b"nothing",
        "app/old.cmd": b"@echo off",
    }
    for name, data in content.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    (tmp_path / "app/out.exe").symlink_to("/etc/hostname")
    return tmp_path


def start(drive: Path, *command: str) -> None:
    search = {"Path": "C:\\gone;C:\\tools\\;D:\\tools"}
    started = Program(join(command), "C:\\app", search)
    base = Base(drive, datetime.now(UTC), "recipe", with_32bit=False, size=0)
    refuse_unsupported_binary(base, drive, started)


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("C:\\tools\\OLD.exe", "OLD.exe is a 32-bit program"),
        ("C:/tools/old", "--with-32bit"),
        ("old", "old.exe is a 32-bit program"),
        ("\\tools\\web.exe", r"web\.exe is a program for \.NET Framework"),
        ("web", r"\.NET Framework"),
        ("..\\app\\text.exe", "is not a Windows program"),
        ("text.exe", r"text\.exe is not a Windows program"),
    ],
)
def test_unsupported_program_is_refused_with_the_reason(
    drive: Path, command: str, reason: str
) -> None:
    with pytest.raises(UnsupportedProgram, match=reason):
        start(drive, command, "and", "more")


@pytest.mark.parametrize(
    "command", ["good", "C:\\app\\good.exe", "gone.exe", "old.cmd", "D:\\old.exe", "out.exe", "cmd"]
)
def test_supported_or_missing_program_is_left_to_windows(drive: Path, command: str) -> None:
    start(drive, command)
