"""The log that wproxy writes: format, full disk, flood, and rotation."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.conmon_supervision import create, read_log, until
from tests.support.silos import StandinSilo, standin_silo
from winpod.compute.agent.client import Program
from winpod.compute.errors import LogNotReopened
from winpod.compute.wine.backend import reopen_log

MIB = 1 << 20
LONG = 16384


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[StandinSilo]:
    with standin_silo(tmp_path / "bundle") as running:
        yield running


class Logged:
    """A program that writes given pieces, and its log."""

    def __init__(self, folder: Path, log: Path, line: str = "both") -> None:
        (folder / "log_path").write_text(str(log))
        self.log = log
        self.process = create(folder, Program(line, stdin=True), stdout=subprocess.DEVNULL)
        assert self.process.wait(120) == 0
        self.pid = int((folder / "pid").read_text())
        self._ended = folder / "exit32"

    def say(self, *pieces: bytes) -> None:
        assert self.process.stdin
        for piece in pieces:
            self.process.stdin.write(piece)
            self.process.stdin.flush()
            time.sleep(0.02)

    def end(self) -> list[tuple[str, str, str]]:
        assert self.process.stdin
        self.process.stdin.close()
        until(self._ended.exists)
        return read_log(self.log)


@pytest.fixture
def start(shell: StandinSilo, tmp_path: Path) -> Callable[..., Logged]:
    def start(line: str = "both", log: Path = tmp_path / "log") -> Logged:
        return Logged(shell.folder, log, line)

    return start


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", []),
        ("one\n", [("F", "one")]),
        ("one\r\ntwo\n", [("F", "one"), ("F", "two")]),
        ("\n\r\n", [("F", ""), ("F", "")]),
        ("a\rb\r\r\n", [("F", "a\rb\r")]),
        ("no end", [("P", "no end")]),
        ("C:\\>\r", [("P", "C:\\>\r")]),
        ("x" * LONG + "\n", [("F", "x" * LONG)]),
        ("x" * LONG + "\r\n", [("F", "x" * LONG)]),
        ("x" * LONG + "y\n", [("P", "x" * LONG), ("F", "y")]),
        ("x" * LONG + "\ry\n", [("P", "x" * LONG), ("F", "\ry")]),
        ("x" * LONG + "\r", [("P", "x" * LONG), ("P", "\r")]),
        ("x" * (LONG - 1) + "\r\n", [("F", "x" * (LONG - 1))]),
        ("é" * LONG, [("P", "é" * (LONG // 2)), ("P", "é" * (LONG // 2))]),
    ],
)
def test_lines_end_with_lf_or_crlf_and_long_ones_are_split(
    start: Callable[..., Logged], text: str, lines: list[tuple[str, str]]
) -> None:
    assert start(f"say {text}").end() == [("stdout", *line) for line in lines]


def test_fragmented_lines_are_joined_per_stream(
    start: Callable[..., Logged],
) -> None:
    logged = start()
    logged.say(b"a", b"!b", b"a\r", b"!b\n!c", b"\nd")
    assert logged.end() == [
        ("stderr", "F", "!b!b"),
        ("stdout", "F", "aa"),
        ("stdout", "P", "d"),
        ("stderr", "P", "!c"),
    ]


def test_no_log_without_a_path(shell: StandinSilo) -> None:
    (shell.folder / "log_path").write_text("")
    assert create(shell.folder, Program("say x")).communicate(timeout=120)[0] == b"x"


def test_log_that_cannot_be_created_is_reported_before_the_start(
    shell: StandinSilo, tmp_path: Path
) -> None:
    (shell.folder / "log_path").write_text(str(tmp_path / "gone/log"))
    process = create(shell.folder, Program("say x"))
    message = b"The log cannot be opened: No such file or directory\n"
    assert process.communicate(timeout=120) == (b"", message)
    assert process.returncode == 1


def test_flood_is_logged_completely_in_bounded_memory(start: Callable[..., Logged]) -> None:
    logged = start(f"flood {64 * MIB}")
    until(logged.log.exists)
    status = Path(f"/proc/{logged.pid}/status").read_text()
    assert int(status.partition("VmHWM:")[2].split()[0]) < 4 * 1024
    assert sum(len(line[2]) for line in logged.end()) == 64 * MIB


async def test_rotated_log_is_reopened_without_lost_or_duplicate_lines(
    start: Callable[..., Logged],
) -> None:
    logged = start()
    for turn in range(5):
        logged.say(*(f"{turn} {number}\n".encode() for number in range(3)))
        until(lambda turn=turn: f"{turn} 2" in logged.log.read_text())  # type: ignore[misc]
        logged.log.rename(logged.log.with_suffix(f".{turn}"))
        await reopen_log(str(logged.log), logged.pid)
        assert logged.log.read_text() == ""
    logged.end()
    for turn in range(5):
        lines = read_log(logged.log.with_suffix(f".{turn}"))
        assert [line[2] for line in lines] == [f"{turn} {number}" for number in range(3)]


@pytest.mark.parametrize("disturb", ["nothing", "removed", "in the way"])
def test_log_with_a_limit_keeps_its_end_in_two_files(
    shell: StandinSilo, start: Callable[..., Logged], disturb: str
) -> None:
    (shell.folder / "log_limit").write_text("1000")
    logged = start()
    aside = logged.log.with_name("log.1")
    if disturb == "in the way":
        (aside / "folder").mkdir(parents=True)
    if disturb == "removed":
        logged.log.unlink()
    lines = [f"{number:09}" for number in range(195)]
    for line in lines:
        logged.say(line.encode() + b"\n")
    logged.end()
    files = [logged.log] if disturb == "in the way" else [aside, logged.log]
    assert all(file.stat().st_size < 1100 for file in files)
    found = [content for file in files for _, _, content in read_log(file)]
    assert found == lines[-len(found) :]
    if disturb != "in the way":
        assert len(found) > 15


async def test_failed_reopen_is_reported_and_the_old_log_continues(
    start: Callable[..., Logged], tmp_path: Path
) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    logged = start(log=folder / "log")
    kept = tmp_path / "kept"
    logged.log.rename(kept)
    shutil.rmtree(folder)
    with pytest.raises(LogNotReopened, match="its directory is gone"):
        await reopen_log(str(logged.log), logged.pid)
    os.kill(logged.pid, signal.SIGUSR1)
    logged.say(b"still here\n")
    until(lambda: "still here" in kept.read_text())
    logged.log = kept
    assert logged.end() == [("stdout", "F", "still here")]
    folder.mkdir()
    with pytest.raises(LogNotReopened, match="does not run"):
        await reopen_log(str(folder / "log"), logged.pid)
    assert list(folder.iterdir()) == []


def test_full_disk_does_not_stop_the_program_and_the_log_reports_the_gap(
    start: Callable[..., Logged], tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    subprocess.run(mount, check=True)
    try:
        logged = start(log=disk / "log")
        (disk / "filler").write_bytes(b"x" * (56 << 10))
        logged.say(b"first\n", *(b"%d" % number * 3000 + b"\n" for number in range(8)))
        until(lambda: (disk / "log").stat().st_size > 4000)
        time.sleep(1)
        (disk / "filler").unlink()
        logged.say(b"last\n")
        lines = [content for _, _, content in logged.end()]
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    *kept, notice, last = lines
    assert (kept[0], last) == ("first", "last")
    assert kept[1:] == [f"{number}" * 3000 for number in range(len(kept) - 1)]
    lost = 9 - len(kept)
    assert lost > 0
    assert notice == f"winpod: {lost} lines of this log are lost: No space left on device"
