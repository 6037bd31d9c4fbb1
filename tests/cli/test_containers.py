"""The commands for containers, over a simulated runtime that they start themselves."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from tests.cli.winpod import Ran, winpod
from winpod.cri.serving import read_serving

IMAGE = "registry.example/web:1.0"


class Command(Protocol):
    def __call__(self, *arguments: str) -> Ran: ...


@pytest.fixture
def command(tmp_path: Path, story_images: Path) -> Iterator[Command]:
    """`winpod` on a machine whose configuration says that it simulates."""
    file = tmp_path / ".config/winpod/config.toml"
    file.parent.mkdir(parents=True)
    file.write_text(f'root = "{tmp_path}/root"\n[runtime]\ncompute = "simulated"\n')
    (tmp_path / "images").symlink_to(story_images)

    def run(*arguments: str) -> Ran:
        return winpod(*arguments, home=tmp_path, cwd=tmp_path)

    yield run
    end_runtime(tmp_path / "root")


def end_runtime(root: Path) -> None:
    serving = read_serving(root)
    if serving is None:
        return
    os.kill(serving.process, signal.SIGTERM)
    while read_serving(root):
        time.sleep(0.05)


def test_a_container_is_run_seen_asked_and_removed(command: Command, tmp_path: Path) -> None:
    ran = command("run", "-d", "--name", "web", "-e", "A=b", f"oci:images:{IMAGE}")
    assert (ran.code, ran.err) == (0, "")
    id_ = ran.out.strip()
    listed = json.loads(command("ps", "-o", "json").out)
    assert [(one["id"], one["name"], one["state"]) for one in listed] == [(id_, "web", "running")]
    assert command("logs", "web").out == "simulated: cmd /c hello.cmd\n"
    told = command("exec", id_[:10], "cmd", "/c", "ver")
    assert (told.code, told.out.strip()) == (0, "simulated: cmd /c ver")
    (inspected,) = json.loads(command("inspect", "web").out)
    assert inspected["status"]["state"] == "CONTAINER_RUNNING"
    assert ["A", "b"] in inspected["info"]["info"]["plan"]["env"]
    assert "web" in command("stats", "web").out
    assert command("stop", "-t", "1", "web").out.strip() == "web"
    assert command("ps", "-q").out == ""
    assert "Exited (0)" in command("ps", "-a").out
    assert command("rm", "web").out.strip() == "web"
    assert command("ps", "-aq").out == ""
    assert not list((tmp_path / "root/runtime/logs").glob("*"))


def test_what_is_not_there_is_said_to_be(command: Command) -> None:
    for name in ("logs", "exec", "inspect", "stop", "rm"):
        more = ("cmd",) if name == "exec" else ()
        ran = command(name, "nobody", *more)
        assert ran.code != 0
        assert "nobody" in ran.err


def test_a_taken_name_and_an_image_of_another_build_are_refused(command: Command) -> None:
    assert command("run", "-d", "--name", "one", f"oci:images:{IMAGE}").code == 0
    again = command("run", "-d", "--name", "one", f"oci:images:{IMAGE}")
    assert again.code == 125
    assert "one" in again.err
    newer = command("run", "-d", "oci:images:registry.example/legacy:1.0")
    assert newer.code == 125
    assert "10.0.17763" in newer.err
    assert command("rm", "-f", "one").code == 0
