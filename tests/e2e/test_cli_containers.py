"""Commands for running containers, with real Windows programs."""

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

PRINT_LINES = "for /l %i in (1,1,6000) do @(echo line %i & ping -n 2 127.0.0.1 >nul)"


@pytest.fixture
def running_container(winpod: Winpod, image: str) -> str:
    started = winpod(
        "run", "-d", "--name", "talking", "-e", "OWN=x", image, "cmd", "/c", PRINT_LINES
    )
    assert started.returncode == 0, started.stderr
    return "talking"


def test_exec_inherits_container_environment(winpod: Winpod, running_container: str) -> None:
    result = winpod("exec", running_container, "cmd", "/c", "echo %OWN% & echo bad 1>&2 & exit 300")
    assert (result.returncode, result.stdout.strip(), result.stderr.strip()) == (
        300 & 255,
        "x",
        "bad",
    )
    in_directory = winpod(
        *("exec", "-w", "C:\\Program Files", "-e", "MORE=a b", running_container),
        *("cmd", "/c", "echo [%MORE%] & cd"),
    )
    assert in_directory.stdout.split("\n")[:2] == ["[a b] ", "C:\\Program Files"]
    lines = "".join(f"line {number}\n" for number in range(3000))
    piped = winpod("exec", "-i", running_container, "findstr", "line", stdin=lines)
    assert piped.stdout == lines
    missing = winpod("exec", running_container, "gone.exe")
    assert missing.returncode == 127
    assert missing.stderr == "winpod: gone.exe: The system cannot find the file specified.\n"


def test_detached_exec_outlives_client(winpod: Winpod, running_container: str) -> None:
    line = "ping -n 3 127.0.0.1 >nul & echo done> C:\\done.txt"
    assert winpod("exec", "-d", running_container, "cmd", "/c", line).returncode == 0
    done = ("exec", running_container, "cmd", "/c", "type C:\\done.txt")
    eventually(lambda: winpod(*done), lambda ran: ran.returncode == 0)


def test_logs_are_followed_until_exit(winpod: Winpod, running_container: str) -> None:
    following = winpod.start("logs", "-f", running_container, stdout=subprocess.PIPE)
    assert following.stdout is not None
    assert following.stdout.readline().strip() == b"line 1"
    winpod("stop", "-t", "0", running_container)
    rest = following.stdout.read().splitlines()
    assert following.wait(300) == 0
    following.stdout.close()
    lines = winpod("logs", running_container).stdout.splitlines()
    assert [b"line 1", *(line.strip() for line in rest)] == [
        line.strip().encode() for line in lines
    ]
    assert winpod("logs", "-n", "1", running_container).stdout.splitlines() == lines[-1:]
    assert winpod("logs", "--since", "1h", running_container).stdout.splitlines() == lines
    timestamped = winpod("logs", "-t", running_container).stdout.splitlines()
    assert timestamped[0].endswith(lines[0])
    assert timestamped[0].startswith("20")


def test_log_flood_is_rotated(winpod: Winpod, image: str) -> None:
    program = c_program("hostile")
    mount = f"{program.parent}:C:\\programs:ro"
    flood = f"C:\\programs\\{program.name}"
    started = winpod("run", "-d", "--name", "flood", "-v", mount, image, flood, "flood")
    assert started.returncode == 0, started.stderr
    folder = winpod.root / "runtime/logs/flood"
    rotated = folder / "app.log.1"
    eventually(rotated.exists)
    first = rotated.stat().st_ino
    eventually(lambda: rotated.stat().st_ino != first)
    assert sum(file.stat().st_size for file in folder.iterdir()) < 102 << 20
    winpod("stop", "-t", "0", "flood")
    lines = winpod("logs", "flood").stdout.splitlines()
    assert len(lines) * 100 > 25 << 20
    assert set(lines[1:-1]) == {"x" * 99, "x" * (99 + 65536 % 100)}
    assert winpod("logs", "-n", "2", "flood").stdout.splitlines() == lines[-2:]
    winpod("rm", "flood")
    assert not folder.exists()


def test_terminal_is_attached_and_detached(winpod: Winpod, image: str) -> None:
    winpod("run", "-dit", "--name", "prompt", image, "cmd")
    for word in ("one", "two"):
        keyboard, terminal = pty.openpty()
        attached = winpod.start(
            "attach", "prompt", stdin=terminal, stdout=terminal, stderr=terminal
        )
        os.close(terminal)
        eventually(partial(is_raw, keyboard))
        os.write(keyboard, f"echo {word}\r".encode())
        output = b""
        while output.count(word.encode()) < 2:  # the first prompt may precede the echo of the input
            output += read_until(keyboard, b"C:\\>")
        assert output.count(word.encode()) == 2
        os.write(keyboard, b"\x10\x11")
        assert attached.wait(300) == 0
        os.close(keyboard)
    assert "Up" in winpod("ps").stdout


def is_raw(terminal: int) -> bool:
    return not termios.tcgetattr(terminal)[3] & termios.ICANON


def test_stats_and_inspect_show_container(winpod: Winpod, running_container: str) -> None:
    (stats,) = json.loads(winpod("stats", "--no-stream", "-o", "json").stdout)
    assert stats["name"] == running_container
    assert stats["memoryBytes"] > 1_000_000
    (inspected,) = json.loads(winpod("inspect", running_container).stdout)
    assert inspected["sandbox"]["status"]["state"] == "SANDBOX_READY"
