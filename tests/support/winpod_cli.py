"""The winpod command as a user runs it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


_PASSED_ON = ("COVERAGE_", "PYTHONPATH")


def environment(home: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "COLUMNS": "100",
        **{name: os.environ[name] for name in os.environ if name.startswith(_PASSED_ON)},
    }


@contextmanager
def started(*arguments: str, home: Path) -> Iterator[IO[str]]:
    """Yield the output of a command that runs until it is interrupted."""
    line = [sys.executable, "-m", "winpod", *arguments]
    process = subprocess.Popen(
        line, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, env=environment(home)
    )
    try:
        assert process.stdout is not None
        yield process.stdout
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=300)


def winpod(*arguments: str, home: Path, stdin: str = "", cwd: Path | None = None) -> Ran:
    """Run `winpod` with a separate home, so that no files of the user are read."""
    done = subprocess.run(
        [sys.executable, "-m", "winpod", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        env=environment(home),
        cwd=cwd,
        check=False,
        timeout=600,
    )
    return Ran(done.returncode, done.stdout, done.stderr)
