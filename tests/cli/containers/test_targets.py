"""Container commands against a background runtime with simulated containers."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.winpod_cli import Ran, winpod
from winpod.cri.daemon import read_daemon_info
from winpod.files import FileLock

Run = Callable[..., Ran]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    root = tmp_path / "root"
    (tmp_path / ".config/winpod").mkdir(parents=True)
    settings = f'root = "{root}"\n[runtime]\ncompute = "simulated"\n'
    (tmp_path / ".config/winpod/config.toml").write_text(settings)
    (tmp_path / "content").mkdir()
    name = f"oci:{tmp_path}/images:hello"
    packed = winpod(
        *(
            "image",
            "pack",
            f"{tmp_path}/content",
            "-t",
            name,
            "--os-version",
            "2022",
            "--cmd",
            "serve",
        ),
        home=tmp_path,
    )
    assert packed.code == 0, packed.err
    yield tmp_path
    if serving := read_daemon_info(root):
        with suppress(ProcessLookupError):
            os.kill(serving.process, signal.SIGTERM)


@pytest.fixture
def run(home: Path) -> Run:
    def command(*arguments: str) -> Ran:
        filled = [argument.replace("IMAGE", f"oci:{home}/images:hello") for argument in arguments]
        return winpod(*filled, home=home)

    return command


def test_container_is_found_by_name_id_and_id_prefix(run: Run, home: Path) -> None:
    started = run("run", "-d", "--name", "web", "-p", "8089:80", "IMAGE", "serve", "-x")
    assert re.fullmatch(r"[0-9a-f]{64}\n", started.out), started.err
    id_ = started.out.strip()
    listed = run("ps")
    assert listed.out.split()[:6] == ["id", "image", "created", "status", "ports", "name"]
    assert id_[:12] in listed.out
    assert "8089->80/tcp" in listed.out
    assert run("ps", "-q").out == f"{id_[:12]}\n"
    assert run("logs", "web").out == "simulated: serve -x\n"
    assert run("logs", id_[:5], "-t").out.startswith("20")
    assert run("exec", "web", "cmd", "/c", "ver").out == "simulated: cmd /c ver\n"
    (details,) = json.loads(run("inspect", id_).out)
    assert (details["name"], details["status"]["state"]) == ("web", "CONTAINER_RUNNING")
    (used,) = json.loads(run("stats", "-o", "json").out)
    assert used["memoryBytes"] == 32 * 1024 * 1024
    taken = run("run", "-d", "-p", "8089:80", "IMAGE")
    assert (taken.code, "8089/tcp is already in use by web" in taken.err) == (125, True)
    assert run("rm", "web").err.startswith("winpod: web is running.")
    assert run("stop", "web").out == "web\n"
    assert "Exited (0)" in run("ps", "-a").out
    assert run("ps", "-q").out == ""
    assert run("rm", "web", "nobody") == Ran(
        1, "web\n", 'winpod: No such container: "nobody". List containers with `winpod ps -a`.\n'
    )
    assert list((home / "root/runtime/logs").iterdir()) == []


def test_ps_filters_containers(run: Run) -> None:
    for name in ("web-1", "web-2", "db"):
        assert run("run", "-d", "--name", name, "IMAGE").code == 0
    run("stop", "-t", "0", "web-2")

    def names(*more: str) -> list[str]:
        return [one["name"] for one in json.loads(run("ps", "-o", "json", *more).out)]

    assert names() == ["db", "web-1"]
    assert names("-a", "--filter", "name=web") == ["web-2", "web-1"]
    assert names("--filter", "status=exited") == ["web-2"]
    assert names("--filter", "label=winpod.dev/run=db") == ["db"]
    refused = run("ps", "--filter", "colour=red")
    assert (refused.code, '"colour=red" is not a filter' in refused.err) == (2, True)


def test_container_with_rm_is_removed_on_exit(run: Run, home: Path) -> None:
    run("run", "-d", "--rm", "--name", "passing", "IMAGE")
    assert run("stop", "passing").code == 0
    for _ in range(600):
        if run("ps", "-aq").out == "":
            break
        time.sleep(0.1)
    assert run("ps", "-aq").out == ""
    assert list((home / "root/runtime/logs").iterdir()) == []


def test_ctrl_c_stops_the_foreground_container(run: Run, home: Path) -> None:
    command = [sys.executable, "-m", "winpod", "run", "--rm", f"oci:{home}/images:hello", "wait"]
    environment = {**os.environ, "HOME": str(home)}
    with subprocess.Popen(command, env=environment) as running:
        while not run("ps", "-q").out:
            assert running.poll() is None
        running.send_signal(signal.SIGINT)
        assert running.wait(300) == 0


def test_exec_in_an_exited_container_is_rejected(run: Run) -> None:
    run("run", "-d", "--name", "web", "IMAGE")
    run("stop", "web")
    for command in (("exec", "web", "cmd"), ("attach", "web")):
        assert "web is not running: it has exited" in run(*command).err


def test_port_forward_to_a_used_local_port_fails(run: Run) -> None:
    run("run", "-d", "--name", "web", "IMAGE")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = run("port-forward", "web", f"{port}:80")
    message = f"cannot listen on 127.0.0.1:{port}: Address already in use. "
    assert message in refused.err


def test_ctrl_c_ends_a_command_waiting_for_the_runtime_lock(home: Path) -> None:
    (home / "root/runtime").mkdir(parents=True)
    lock = FileLock.acquire(home / "root/runtime/starting")
    environment = {**os.environ, "HOME": str(home)}
    with subprocess.Popen([sys.executable, "-m", "winpod", "ps"], env=environment) as waiting:
        while not has_begun(waiting.pid):
            time.sleep(0.05)
        time.sleep(1)
        assert waiting.poll() is None
        waiting.send_signal(signal.SIGINT)
        assert waiting.wait(120) == 130
    lock.release()


def has_begun(process: int) -> bool:
    """Whether the process has started its event loop."""
    open_files = [file.readlink() for file in Path(f"/proc/{process}/fd").iterdir()]
    return Path("anon_inode:[eventpoll]") in open_files


def test_idle_runtime_exits(home: Path) -> None:
    root = home / "root"
    command = [sys.executable, "-m", "winpod", "runtime", "--socket", f"{home}/s", "--idle-exit"]
    ended = subprocess.run(
        [*command, "0.5"], env={**os.environ, "HOME": str(home)}, timeout=300, capture_output=True
    )
    assert ended.returncode == 0, ended.stderr
    assert read_daemon_info(root) is None
    assert not (home / "s").exists()


def test_base_rm_stops_an_idle_runtime(run: Run, home: Path) -> None:
    run("run", "-d", "--name", "web", "IMAGE")
    assert run("base", "rm").code == 0
    assert read_daemon_info(home / "root")
    run("rm", "-f", "web")
    assert run("base", "rm").code == 0
    assert read_daemon_info(home / "root") is None


def test_containers_are_recovered_after_the_runtime_is_killed(run: Run, home: Path) -> None:
    run("run", "-d", "--name", "web", "IMAGE")
    first = read_daemon_info(home / "root")
    assert first is not None
    os.kill(first.process, signal.SIGKILL)
    listed = json.loads(run("ps", "-a", "-o", "json").out)
    assert [(one["name"], one["state"]) for one in listed] == [("web", "exited")]
    second = read_daemon_info(home / "root")
    assert second is not None
    assert second.process != first.process


def test_runtime_start_failure_is_reported(home: Path, run: Run) -> None:
    (home / ".config/winpod/config.toml").write_text(f'root = "{home}/root"\n')
    refused = run("ps")
    assert (refused.code, "winpod base build" in refused.err) == (2, True), refused.err
