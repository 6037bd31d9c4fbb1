"""Server process of a test: logs to a file, stopped through its process group.

With a parent death signal, it also exits when the test run is killed.
"""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

START_LIMIT = 300.0
STOP_LIMIT = 60.0
TAIL_LINES = 40


class StartFailed(Exception):
    """A server did not become ready; the message has the end of its log."""


class ServerProcess:
    def __init__(self, name: str, command: list[str], log: Path) -> None:
        self.name = name
        self._log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [_setpriv(), "--pdeathsig", "KILL", *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=log.parent,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until(self, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_LIMIT
        while not ready():
            if self._process.poll() is not None:
                raise StartFailed(self._error_message(f"ended with {self._process.returncode}"))
            if time.monotonic() > deadline:
                raise StartFailed(self._error_message(f"was not ready after {START_LIMIT:.0f} s"))
            time.sleep(0.1)

    def stop(self) -> None:
        if self._process.poll() is None:
            os.killpg(self.pid, signal.SIGTERM)
            try:
                self._process.wait(STOP_LIMIT)
            except subprocess.TimeoutExpired:
                os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()

    def kill(self) -> None:
        """Kill the process, as in a failure: it cannot shut down its connections."""
        if self._process.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()

    def _error_message(self, problem: str) -> str:
        lines = self._log.read_text(errors="replace").splitlines()[-TAIL_LINES:]
        return "\n".join([f"{self.name} {problem}; the end of its log:", *lines])


def _setpriv() -> str:
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise StartFailed("setpriv is needed and was not found: apt-get install util-linux")
    return setpriv
