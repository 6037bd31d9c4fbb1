"""conmon with wproxy as its runtime, as tests start it."""

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

from winpod.compute.agent.client import Program
from winpod.compute.native import WPROXY, native_program

PATIENCE = 120.0


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "timed out waiting for a condition"
        time.sleep(0.02)


def create(folder: Path, program: Program, **streams: int) -> subprocess.Popen[bytes]:
    """Run `wproxy create` like conmon, with the caller's streams."""
    (folder / "start").write_bytes(program.encode())
    return call(folder, **streams)


def call(folder: Path, **streams: int) -> subprocess.Popen[bytes]:
    """Run `wproxy create` for the start request in the bundle."""
    command = [str(native_program(WPROXY)), "create", "--bundle", str(folder)]
    command += ["--no-pivot", "--pid-file", str(folder / "pid"), "an-id"]
    pipe = subprocess.PIPE
    chosen = {"stdin": pipe, "stdout": pipe, "stderr": pipe, **streams}
    return subprocess.Popen(command, **chosen)  # type: ignore[call-overload,no-any-return]


def read_log(path: Path) -> list[tuple[str, str, str]]:
    """Return stream, tag and content of every log line; assert its format and timestamps."""
    text = path.read_bytes().decode()
    assert text.endswith("\n") or not text
    parts = [line.split(" ", 3) for line in text.split("\n")[:-1]]
    times = [datetime.strptime(one[0][:26], "%Y-%m-%dT%H:%M:%S.%f") for one in parts]
    assert times == sorted(times)
    assert all(re.fullmatch(r"[-\dT:]{19}\.\d{9}Z", one[0]) for one in parts)
    return [(one[1], one[2], one[3]) for one in parts]


class Conmon:
    """conmon with wproxy as its runtime."""

    def __init__(self, folder: Path, name: str = "one") -> None:
        self.folder = folder
        self.name = name
        self.log = self.folder / f"{name}.log"
        self.answer: dict[str, object] = {}

    def start(self, program: Program, *options: str) -> None:
        if not shutil.which("conmon"):
            pytest.fail("conmon is needed: apt-get install conmon")
        (self.folder / "start").write_bytes(program.encode())
        (self.folder / "log_path").write_text(str(self.log))
        for name in ("exits", "sockets"):
            (self.folder / name).mkdir(exist_ok=True)
        read, write = os.pipe()
        command = ["conmon", "--api-version", "1", "-c", self.name, "-u", self.name]
        command += ["-n", self.name, "-r", str(native_program(WPROXY)), "-b", str(self.folder)]
        command += ["-p", str(self.folder / "pid"), "-P", str(self.folder / "conmon.pid")]
        command += ["--exit-dir", str(self.folder / "exits"), "-l", "none"]
        command += ["--socket-dir-path", str(self.folder / "sockets"), *options]
        environment = {**os.environ, "_OCI_SYNCPIPE": str(write)}
        subprocess.run(command, check=True, pass_fds=[write], env=environment, timeout=PATIENCE)
        os.close(write)
        with os.fdopen(read) as answers:
            self.answer = json.loads(answers.readline())

    @property
    def exit_file(self) -> Path:
        return self.folder / "exits" / self.name

    def control(self, line: str) -> None:
        with (self.folder / "ctl").open("w") as file:
            file.write(line)

    def lines(self) -> list[tuple[str, str, str]]:
        return read_log(self.log)
