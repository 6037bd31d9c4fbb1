"""`winpod run` in a separate network namespace."""

import json
import os
import pty
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

from tests.support.e2e.command_line import Winpod, image, winpod
from tests.support.e2e.terminals import read_until
from tests.support.e2e.waiting import eventually

__all__ = ["image", "winpod"]

PRINT_AND_SLEEP = "echo up & ping -n 3600 127.0.0.1 >nul"


def test_run_executes_windows_program(winpod: Winpod, image: str) -> None:
    result = winpod("run", "--name", "first", image)
    assert result.returncode == 7, result.stderr
    assert result.stdout == "Hello from FIRST\n\nMicrosoft Windows 10.0.20348\n"
    assert result.stderr.strip() == "bad"
    listed = json.loads(winpod("ps", "-a", "-o", "json").stdout)
    assert [
        (container["name"], container["state"], container["exitCode"]) for container in listed
    ] == [("first", "exited", 7)]
    assert winpod("run", "--rm", image).returncode == 7
    assert len(winpod.containers) == 1
    older = winpod("run", "--rm", "--host-build", "2019", image, "cmd", "/c", "ver")
    assert "Microsoft Windows 10.0.17763" in older.stdout


def test_stdin_and_stdout_are_complete(winpod: Winpod, image: str) -> None:
    lines = "".join(f"line {number} of the input\n" for number in range(20000))
    result = winpod("run", "--rm", "-i", image, "findstr", "line", stdin=lines)
    assert result.returncode == 0, result.stderr
    assert result.stdout.replace("\r\n", "\n") == lines


def test_user_cannot_write_administrator_files(winpod: Winpod, image: str) -> None:
    line = "echo x>C:\\hello.cmd & echo mine>C:\\Users\\ContainerUser\\f & echo %USERNAME%"
    result = winpod("run", "--user", "ContainerUser", image, "cmd", "/c", line)
    assert "Access denied" in result.stderr
    assert "ContainerUser" in result.stdout
    unknown = winpod("run", "--user", "nobody", image)
    assert unknown.returncode == 125
    assert "The user name or password is incorrect. (0x52e)" in unknown.stderr


def test_options_are_applied(winpod: Winpod, image: str, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared/note.txt").write_text("from outside")
    (tmp_path / "variables").write_text("# two\nONE=1\n\nTWO=of two\n")
    result = winpod(
        *("run", "--rm", "--hostname", "box", "-w", "C:\\windows", "-e", "THREE=3"),
        *("--env-file", f"{tmp_path}/variables", "-v", f"{tmp_path}/shared:C:\\shared:ro"),
        *("-m", "300m", "--cpus", "1", "--entrypoint", "cmd", image),
        *("/c", "echo %COMPUTERNAME% %ONE% %TWO% %THREE% %NUMBER_OF_PROCESSORS% & cd & "),
        *("type", "C:\\shared\\note.txt"),
    )
    assert "BOX 1 of two 3 1" in result.stdout
    assert "C:\\windows" in result.stdout
    assert result.stdout.endswith("from outside")


def test_invalid_options_are_reported_and_leave_nothing(winpod: Winpod, image: str) -> None:
    cases = (
        (127, (image, "gone.exe"), "The system cannot find the file specified."),
        (125, ("-e", "novalue", image), '"novalue" is not an environment variable.'),
        (125, ("-v", "nowhere", image), '"nowhere" is not a mount.'),
        (125, ("-p", "http", image), '"http" is not a pair of ports.'),
        (125, ("--memory", "much", image), '"much" is not an amount of memory.'),
        (125, ("-v", "/tmp:C:\\", image), "destination path can not be C drive"),
        (125, ("-t", image), "-t requires a terminal"),
        (125, ("--pull", "never", "registry.invalid/none:1"), "registry.invalid/none:1"),
        (125, ("--isolation", "hypervisor", image), "hypervisor isolation"),
    )
    for code, arguments, message in cases:
        result = winpod("run", *arguments)
        assert (result.returncode, message in result.stderr) == (code, True), result.stderr
        assert "Traceback" not in result.stderr
    assert winpod.containers == []
    assert winpod("ps", "-aq").stdout == ""


def test_container_name_is_unique(winpod: Winpod, image: str) -> None:
    assert winpod("run", "--name", "web", image).returncode == 7
    again = winpod("run", "--name", "web", image)
    assert again.returncode == 125
    assert "winpod rm -f web" in again.stderr
    assert winpod("rm", "web").stdout == "web\n"
    assert winpod("run", "--name", "web", image).returncode == 7


def test_ctrl_c_stops_program_and_returns_exit_code(winpod: Winpod, image: str) -> None:
    running = winpod.start(
        "run", "--rm", image, "cmd", "/c", PRINT_AND_SLEEP, stdout=subprocess.PIPE
    )
    assert running.stdout is not None
    assert running.stdout.readline().startswith(b"up")
    running.send_signal(signal.SIGINT)
    assert running.wait(300) == 0xC000013A & 0xFF
    running.stdout.close()
    assert winpod("ps", "-aq").stdout == ""


def test_container_survives_killed_client(winpod: Winpod, image: str) -> None:
    for name, options in (("kept", ()), ("removed", ("--rm",))):
        arguments = ("run", "--name", name, *options, image, "cmd", "/c", PRINT_AND_SLEEP)
        running = winpod.start(*arguments, stdout=subprocess.PIPE)
        assert running.stdout is not None
        assert running.stdout.readline().startswith(b"up")
        running.kill()
        running.wait()
        running.stdout.close()
    assert sorted(winpod("ps", "-q", "--filter", "status=running").stdout.split())
    winpod("stop", "-t", "0", "kept", "removed")
    eventually(lambda: winpod.containers, lambda found: len(found) == 1)
    assert [
        container["name"] for container in json.loads(winpod("ps", "-a", "-o", "json").stdout)
    ] == ["kept"]


def test_containers_survive_killed_runtime(winpod: Winpod, image: str) -> None:
    line = "echo one & ping -n 4 127.0.0.1 >nul & echo two & exit 5"
    started = winpod("run", "-d", "--name", "lasting", image, "cmd", "/c", line)
    assert re.fullmatch(r"[0-9a-f]{64}\n", started.stdout), started.stderr
    winpod("run", "-d", "--rm", "--name", "passing", image)
    first = winpod.serving()
    winpod.end_runtime(signal.SIGKILL)
    followed = winpod("logs", "-f", "lasting")
    assert followed.stdout.split() == ["one", "two"]
    assert winpod.serving().process != first.process
    listed = eventually(lambda: list_containers(winpod), lambda found: len(found) == 1)
    assert [(container["name"], container["exitCode"]) for container in listed] == [("lasting", 5)]


def list_containers(winpod: Winpod) -> list[dict[str, Any]]:
    return list(json.loads(winpod("ps", "-a", "-o", "json").stdout))


def test_concurrent_runs_share_one_runtime(winpod: Winpod, image: str) -> None:
    arguments = ("run", "--rm", image)
    processes = [winpod.start(*arguments, stdout=subprocess.PIPE) for _ in range(2)]
    for process in processes:
        out, _ = process.communicate(timeout=600)
        assert process.returncode == 7
        assert out.startswith(b"Hello")
    log = (winpod.root / "runtime/runtime.log").read_text()
    assert log.count("Serving 10.0.20348") == 1, log


def test_runtime_in_use_keeps_its_build(winpod: Winpod, image: str) -> None:
    winpod(
        "run", "-d", "--name", "old", "--host-build", "2019", image, "cmd", "/c", PRINT_AND_SLEEP
    )
    rejected = winpod("run", "--rm", image)
    assert rejected.returncode == 125
    assert "--host-build 10.0.17763" in rejected.stderr
    assert winpod("run", "--rm", "--host-build", "2019", image).returncode == 7
    winpod("rm", "-f", "old")
    assert winpod("run", "--rm", image).returncode == 7


def test_run_in_terminal(winpod: Winpod, image: str) -> None:
    keyboard, terminal = pty.openpty()
    running = winpod.start(
        *("run", "-it", "--rm", image, "cmd"), stdin=terminal, stdout=terminal, stderr=terminal
    )
    os.close(terminal)
    read_until(keyboard, b"C:\\>")
    os.write(keyboard, b"echo 4%NUMBER_OF_NOTHING%2\r")
    read_until(keyboard, b"4%NUMBER_OF_NOTHING%2\r\n")
    os.write(keyboard, b"exit 9\r")
    assert running.wait(300) == 9
    os.close(keyboard)


def test_missing_base_is_reported(winpod: Winpod, image: str) -> None:
    (winpod.root / "bases").unlink()
    result = winpod("run", image)
    assert result.returncode == 125
    assert "winpod base build" in result.stderr


def test_missing_root_privileges_are_reported(winpod: Winpod) -> None:
    command = ["setpriv", "--reuid=65534", "--clear-groups", *winpod.command("ps")[2:]]
    environment = {**winpod.environment, "HOME": "/", "WINPOD_ROOT": "/only-root-makes-this"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, cwd="/")
    assert (result.returncode, "sudo" in result.stderr) == (2, True), result.stderr
