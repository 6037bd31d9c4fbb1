"""The winpod command with its own root and network; processes it started end with the test."""

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

import pytest

from tests.support.e2e.waiting import eventually
from tests.support.e2e.windows_container import link_base
from winpod.cri.daemon import DaemonInfo, read_daemon_info
from winpod.images.base.builder import Base


@dataclass(frozen=True)
class Winpod:
    root: Path
    home: Path
    netns: str

    def command(self, *arguments: str) -> list[str]:
        inside = ["nsenter", f"--net=/run/netns/{self.netns}"]
        return [*inside, sys.executable, "-m", "winpod", *arguments]

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "HOME": str(self.home), "WINPOD_ROOT": str(self.root)}

    def __call__(
        self, *arguments: str, stdin: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments),
            env=self.environment,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            timeout=600,
        )

    def start(self, *arguments: str, **more: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self.command(*arguments), env=self.environment, **more)

    @property
    def containers(self) -> list[Path]:
        folder = self.root / "runtime/containers"
        return list(folder.iterdir()) if folder.exists() else []

    def serving(self) -> DaemonInfo:
        found = read_daemon_info(self.root)
        assert found is not None
        return found

    def end_runtime(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Stop the background runtime, if any, and wait until its state is unlocked."""
        lock = self.root / "runtime/lock"
        if not lock.exists():
            return
        if found := read_daemon_info(self.root):
            with suppress(ProcessLookupError):
                os.kill(found.process, how)
        until_unlocked(lock)


def until_unlocked(lock: Path) -> None:
    """Wait until the process that held the lock has exited."""

    def is_free(file: IO[str]) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    with lock.open() as file:
        eventually(lambda: is_free(file), within=300)


@pytest.fixture
def winpod(base: Base, tmp_path: Path) -> Iterator[Winpod]:
    with winpod_in(tmp_path, base) as command:
        yield command


@contextmanager
def winpod_in(folder: Path, base: Base) -> Iterator[Winpod]:
    (folder / "root").mkdir()
    link_base(folder / "root", base)
    netns = f"winpod-{uuid4().hex[:8]}"
    subprocess.run(["ip", "netns", "add", netns], check=True)
    subprocess.run(["ip", "-n", netns, "link", "set", "lo", "up"], check=True)
    command = Winpod(folder / "root", folder, netns)
    try:
        yield command
        if (command.root / "bases").exists() and (command.root / "runtime/state.db").exists():
            left = command("ps", "-aq").stdout.split()
            if left:
                command("rm", "-f", *left)
            assert command.containers == []
    finally:
        command.end_runtime()
        subprocess.run(["ip", "netns", "del", netns], check=True)


@pytest.fixture
def image(winpod: Winpod, tmp_path: Path) -> str:
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
