"""`winpod run` as a newcomer types it, in a network namespace of the test's own."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from winpod.images.base import Base

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def outside() -> Iterator[str]:
    """A network namespace that stands for the machine's."""
    name = f"winpod-{uuid4().hex[:8]}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        yield name
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)


@pytest.fixture
def winpod(outside: str, base: Base, tmp_path: Path) -> Run:
    (tmp_path / "root").mkdir()
    (tmp_path / "root/bases").symlink_to(base.path.parent)
    environment = {**os.environ, "HOME": str(tmp_path), "WINPOD_ROOT": str(tmp_path / "root")}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        inside = ["nsenter", f"--net=/run/netns/{outside}", sys.executable, "-m", "winpod"]
        return subprocess.run(
            [*inside, *arguments], env=environment, capture_output=True, text=True, timeout=120
        )

    return run


@pytest.fixture
def image(winpod: Run, tmp_path: Path) -> str:
    content = tmp_path / "content"
    content.mkdir()
    (content / "hello.cmd").write_text(
        "@echo off\r\necho Hello from %COMPUTERNAME%\r\nver\r\necho bad 1>&2\r\nexit /b 7\r\n"
    )
    name = f"oci:{tmp_path}/images:hello"
    builds = ("--os-version", "2019", "--os-version", "2022")
    packed = winpod("image", "pack", str(content), "-t", name, *builds, "--cmd", "cmd /c hello.cmd")
    assert packed.returncode == 0, packed.stderr
    return name


def test_one_command_runs_a_windows_program(winpod: Run, image: str, tmp_path: Path) -> None:
    ran = winpod("run", image)
    assert ran.returncode == 7, ran.stderr
    assert "Hello from RUN-" in ran.stdout
    assert "Microsoft Windows 10.0.20348" in ran.stdout
    assert ran.stderr.strip() == "bad"
    assert list((tmp_path / "root/runtime/containers").iterdir()) == []
    older = winpod("run", "--host-build", "2019", image, "cmd", "/c", "ver")
    assert "Microsoft Windows 10.0.17763" in older.stdout


def test_a_user_cannot_write_what_is_the_administrators(winpod: Run, image: str) -> None:
    line = "echo x>C:\\hello.cmd & echo mine>C:\\Users\\ContainerUser\\f & echo %USERNAME%"
    ran = winpod("run", "--user", "ContainerUser", image, "cmd", "/c", line)
    assert "Access denied" in ran.stderr
    assert "ContainerUser" in ran.stdout
    unknown = winpod("run", "--user", "nobody", image)
    assert unknown.returncode == 2
    assert "The user name or password is incorrect. (0x52e)" in unknown.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("IMAGE", "gone.exe"), "The system cannot find the file specified."),
        (("-e", "novalue", "IMAGE"), '"novalue" is not a variable.'),
        (("-v", "nowhere", "IMAGE"), '"nowhere" is not a mount.'),
        (("-p", "http", "IMAGE"), '"http" is not a pair of ports.'),
        (("--memory", "much", "IMAGE"), '"much" is not an amount of memory.'),
        (("-v", "/tmp:C:\\", "IMAGE"), "destination path can not be C drive"),
    ],
)
def test_what_cannot_be_is_a_sentence_and_leaves_nothing(
    winpod: Run, image: str, tmp_path: Path, arguments: tuple[str, ...], sentence: str
) -> None:
    ran = winpod("run", *(image if word == "IMAGE" else word for word in arguments))
    assert ran.returncode == 2
    assert sentence in ran.stderr
    assert "Traceback" not in ran.stderr
    containers = tmp_path / "root/runtime/containers"
    assert not containers.exists() or list(containers.iterdir()) == []


def test_a_run_that_is_killed_leaves_nothing_after_the_next(
    winpod: Run, image: str, outside: str, tmp_path: Path
) -> None:
    containers = tmp_path / "root/runtime/containers"
    line = "echo up & ping -n 90 127.0.0.1 >nul"
    command = [sys.executable, "-m", "winpod", "run", image, "cmd", "/c", line]
    environment = {**os.environ, "HOME": str(tmp_path), "WINPOD_ROOT": str(tmp_path / "root")}
    inside = ["nsenter", f"--net=/run/netns/{outside}", *command]
    with subprocess.Popen(inside, env=environment, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        running.stdout.read(1)
        busy = winpod("run", image)
        running.kill()
    assert (busy.returncode, "winpod runtime" in busy.stderr) == (2, True)
    assert len(list(containers.iterdir())) == 1
    assert winpod("run", image).returncode == 7
    assert list(containers.iterdir()) == []


def test_without_a_base_it_says_how_to_make_one(winpod: Run, image: str, tmp_path: Path) -> None:
    (tmp_path / "root/bases").unlink()
    ran = winpod("run", image)
    assert ran.returncode == 2
    assert "winpod base build" in ran.stderr
