"""Commands of the session, and the kernel's view of the containers that they start."""

import json
import os
import pty
import select
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fresh_machine.session.report import Failed, Report, check, wait_for

VENV = Path("/root/winpod")
WINPOD = str(VENV / "bin/winpod")
ROOT = Path("/var/lib/winpod")
CGROUPS = Path("/sys/fs/cgroup")
COMMAND_SECONDS = 180.0
_LOGS = (ROOT / "runtime/runtime.log", ROOT / "play/play.log")
_LOG_LINES = 30


@dataclass
class Shell:
    """User's shell: the environment of the commands, each logged in the report's transcript."""

    report: Report
    environment: dict[str, str]

    def run(self, *command: str, expect: int | None = 0, seconds: float = COMMAND_SECONDS) -> str:
        """Run a command and return its output; an unexpected exit code is a failure."""
        self.report.log(f"$ {' '.join(command)}")
        began = time.monotonic()
        try:
            done = subprocess.run(
                command,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=seconds,
            )
        except subprocess.TimeoutExpired as late:
            self.report.log(_text(late.stdout or b""))
            raise Failed(f"{command[0]} did not end within {seconds:.0f} s") from None
        output = _text(done.stdout)
        took = time.monotonic() - began
        self.report.log(f"{output.rstrip()}\n[exit {done.returncode}, {took:.1f} s]")
        if expect is not None and done.returncode != expect:
            raise Failed(f"exit code {done.returncode}, expected {expect}: {' '.join(command)}")
        return output

    def winpod(self, *arguments: str, expect: int | None = 0, seconds: float = 180.0) -> str:
        return self.run(WINPOD, *arguments, expect=expect, seconds=seconds)

    def winpod_json(self, *arguments: str) -> Any:
        output = self.winpod(*arguments, "-o", "json")
        start = min((at for at in (output.find("["), output.find("{")) if at >= 0), default=0)
        return json.loads(output[start:])

    def terminal(self, command: list[str], typed: str, wanted: str, seconds: float) -> str:
        """Type a line into a command on a terminal, and return its complete output."""
        self.report.log(f"$ {' '.join(command)}    (on a terminal)")
        pid, descriptor = pty.fork()
        if pid == 0:
            os.execve(command[0], command, self.environment)
        seen, deadline = b"", time.monotonic() + seconds
        waiting = wanted.encode()
        while time.monotonic() < deadline:
            if not select.select([descriptor], [], [], 1.0)[0]:
                continue
            try:
                data = os.read(descriptor, 4096)
            except OSError:
                break
            if not data:
                break
            seen += data
            if waiting and waiting in seen:
                os.write(descriptor, typed.encode())
                waiting = b""
        else:
            os.kill(pid, 9)
        _, status = os.waitpid(pid, 0)
        os.close(descriptor)
        self.report.log(f"{_text(seen)}\n[exit {os.waitstatus_to_exitcode(status)}]")
        return _text(seen)

    def containers(self) -> dict[str, dict[str, Any]]:
        return {one["name"]: one for one in self.winpod_json("ps", "-a")}

    def is_running(self, name: str) -> bool:
        return bool(self.containers().get(name, {}).get("state") == "running")

    def end_runtime(self, signal: int = 15) -> None:
        """Kill the runtime that serves the root, and wait until it is gone."""
        process = serving_pid()
        if process is None:
            return
        self.report.log(f"kill -{signal} {process}")
        os.kill(process, signal)
        wait_for("the runtime ends", lambda: not Path(f"/proc/{process}/exe").exists())

    def log_tail(self) -> None:
        """Add the last lines of winpod's logs to the transcript."""
        for log in _LOGS:
            if log.exists():
                lines = log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
                self.report.log("\n".join([f"--- {log}", *lines]))


def serving_pid() -> int | None:
    """Return the process id of the runtime that serves the root."""
    try:
        process = int(json.loads((ROOT / "runtime/serving.json").read_text())["process"])
    except (OSError, ValueError, KeyError):
        return None
    return process if Path(f"/proc/{process}/exe").exists() else None


def processes_with(marker: str) -> list[int]:
    """Return the processes in containers whose command line contains a marker."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().decode(errors="replace")
            group = (folder / "cgroup").read_text()
        except OSError:
            continue
        if marker in words and "winpod/" in group:
            found.append(int(folder.name))
    return found


def cgroup_of(marker: str) -> Path:
    """Return the cgroup of the container whose program has a marker in its command line."""
    found = wait_for(f"a process with {marker}", lambda: processes_with(marker), 30)
    group = Path(f"/proc/{found[0]}/cgroup").read_text().strip().rpartition(":")[2]
    return CGROUPS / group.lstrip("/")


def check_files(folder: Path, expected: Mapping[str, str], report: Report) -> None:
    """Compare files of a cgroup with the expected content."""
    found = {name: (folder / name).read_text().strip() for name in expected}
    report.log(f"{folder}: {found}")
    for name, value in expected.items():
        check(found[name] == value, f"{folder / name} is {found[name]!r}, expected {value!r}")


def _text(data: bytes) -> str:
    return data.decode(errors="replace").replace("\r\n", "\n")
