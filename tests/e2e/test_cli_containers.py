"""The commands for containers that run, on real Windows programs."""

import json
import os
import pty
import subprocess
import termios
from functools import partial

import pytest
from tests.support.e2e.command_line import Winpod, image, winpod
from tests.support.e2e.terminals import read_until
from tests.support.e2e.waiting import eventually
from tests.support.e2e.windows_programs import c_program

__all__ = ["image", "winpod"]

TALKS = "for /l %i in (1,1,6000) do @(echo line %i & ping -n 2 127.0.0.1 >nul)"


@pytest.fixture
def talking(winpod: Winpod, image: str) -> str:
    started = winpod("run", "-d", "--name", "talking", "-e", "OWN=x", image, "cmd", "/c", TALKS)
    assert started.returncode == 0, started.stderr
    return "talking"


def test_a_further_program_has_the_container_s_place(winpod: Winpod, talking: str) -> None:
    told = winpod("exec", talking, "cmd", "/c", "echo %OWN% & echo bad 1>&2 & exit 300")
    assert (told.returncode, told.stdout.strip(), told.stderr.strip()) == (300 & 255, "x", "bad")
    there = winpod(
        *("exec", "-w", "C:\\Program Files", "-e", "MORE=a b", talking),
        *("cmd", "/c", "echo [%MORE%] & cd"),
    )
    assert there.stdout.split("\n")[:2] == ["[a b] ", "C:\\Program Files"]
    lines = "".join(f"line {number}\n" for number in range(3000))
    passed = winpod("exec", "-i", talking, "findstr", "line", stdin=lines)
    assert passed.stdout == lines
    gone = winpod("exec", talking, "gone.exe")
    assert gone.returncode == 127
    assert gone.stderr == "winpod: gone.exe: The system cannot find the file specified.\n"


def test_a_program_in_the_background_outlives_the_client(winpod: Winpod, talking: str) -> None:
    line = "ping -n 3 127.0.0.1 >nul & echo done> C:\\done.txt"
    assert winpod("exec", "-d", talking, "cmd", "/c", line).returncode == 0
    done = ("exec", talking, "cmd", "/c", "type C:\\done.txt")
    eventually(lambda: winpod(*done), lambda ran: ran.returncode == 0)


def test_a_log_is_followed_to_the_end(winpod: Winpod, talking: str) -> None:
    following = winpod.start("logs", "-f", talking, stdout=subprocess.PIPE)
    assert following.stdout is not None
    assert following.stdout.readline().strip() == b"line 1"
    winpod("stop", "-t", "0", talking)
    rest = following.stdout.read().splitlines()
    assert following.wait(300) == 0
    following.stdout.close()
    every = winpod("logs", talking).stdout.splitlines()
    assert [b"line 1", *(line.strip() for line in rest)] == [
        line.strip().encode() for line in every
    ]
    assert winpod("logs", "-n", "1", talking).stdout.splitlines() == every[-1:]
    assert winpod("logs", "--since", "1h", talking).stdout.splitlines() == every
    stamped = winpod("logs", "-t", talking).stdout.splitlines()
    assert stamped[0].endswith(every[0])
    assert stamped[0].startswith("20")


def test_a_flood_of_lines_leaves_the_disk_as_it_is(winpod: Winpod, image: str) -> None:
    program = c_program("hostile")
    mount = f"{program.parent}:C:\\programs:ro"
    flood = f"C:\\programs\\{program.name}"
    started = winpod("run", "-d", "--name", "flood", "-v", mount, image, flood, "flood")
    assert started.returncode == 0, started.stderr
    folder = winpod.root / "runtime/logs/flood"
    aside = folder / "app.log.1"
    eventually(aside.exists)
    first = aside.stat().st_ino
    eventually(lambda: aside.stat().st_ino != first)
    assert sum(file.stat().st_size for file in folder.iterdir()) < 102 << 20
    winpod("stop", "-t", "0", "flood")
    lines = winpod("logs", "flood").stdout.splitlines()
    assert len(lines) * 100 > 25 << 20
    assert set(lines[1:-1]) == {"x" * 99, "x" * (99 + 65536 % 100)}
    assert winpod("logs", "-n", "2", "flood").stdout.splitlines() == lines[-2:]
    winpod("rm", "flood")
    assert not folder.exists()


def test_somebody_joins_and_leaves_a_terminal(winpod: Winpod, image: str) -> None:
    winpod("run", "-dit", "--name", "prompt", image, "cmd")
    for word in ("one", "two"):
        keyboard, terminal = pty.openpty()
        attached = winpod.start(
            "attach", "prompt", stdin=terminal, stdout=terminal, stderr=terminal
        )
        os.close(terminal)
        eventually(partial(is_raw, keyboard))
        os.write(keyboard, f"echo {word}\r".encode())
        seen = b""
        while seen.count(word.encode()) < 2:  # a first prompt may come before what was typed
            seen += read_until(keyboard, b"C:\\>")
        assert seen.count(word.encode()) == 2
        os.write(keyboard, b"\x10\x11")
        assert attached.wait(300) == 0
        os.close(keyboard)
    assert "Up" in winpod("ps").stdout


def is_raw(terminal: int) -> bool:
    return not termios.tcgetattr(terminal)[3] & termios.ICANON


def test_what_containers_use_is_shown(winpod: Winpod, talking: str) -> None:
    (used,) = json.loads(winpod("stats", "--no-stream", "-o", "json").stdout)
    assert used["name"] == talking
    assert used["memoryBytes"] > 1_000_000
    (told,) = json.loads(winpod("inspect", talking).stdout)
    assert told["sandbox"]["status"]["state"] == "SANDBOX_READY"
