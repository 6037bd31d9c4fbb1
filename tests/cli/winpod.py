"""The real command, run as a person runs it."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


def winpod(*arguments: str, home: Path, stdin: str = "", cwd: Path | None = None) -> Ran:
    """Run `winpod` with a home of its own, so that nothing of the user's is read."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "COLUMNS": "100",
        **{name: value for name, value in os.environ.items() if name.startswith("COVERAGE_")},
    }
    done = subprocess.run(
        [sys.executable, "-m", "winpod", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        env=environment,
        cwd=cwd,
        check=False,
        timeout=600,
    )
    return Ran(done.returncode, done.stdout, done.stderr)
