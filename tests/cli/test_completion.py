"""What shells complete: commands, their options, and the names of what is played."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from winpod.node.play.objects import Key
from winpod.node.play.records import Kept, Records

PLAYED = (
    Key("Deployment", "default", "web"),
    Key("Pod", "default", "web-1"),
    Key("Pod", "shop", "db-0"),
    Key("Service", "default", "web"),
    Key("ConfigMap", "default", "web"),
    Key("PersistentVolumeClaim", "default", "web"),
)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with something that is played, written down by nobody but the test."""
    records = Records(tmp_path / "root/play/records.db")
    for key in PLAYED:
        records.put(key, Kept({"metadata": {"name": key.name}}))
    records.close()
    return tmp_path


def completed(home: Path, *words: str) -> list[str]:
    """What bash is told, by the command itself."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "WINPOD_ROOT": str(home / "root"),
        "_WINPOD_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(("winpod", *words)),
        "COMP_CWORD": str(len(words)),
        **{name: value for name, value in os.environ.items() if name.startswith("COVERAGE_")},
    }
    command = Path(sys.executable).parent / "winpod"
    done = subprocess.run([command], env=environment, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("port-",), ["port-forward"]),
        (("image", "pa"), ["pack"]),
        (("play", "--no-"), ["--no-wait"]),
        (("logs", ""), ["db-0", "deployment/web", "service/web", "web-1"]),
        (("logs", "w"), ["web-1"]),
        (("exec", "dep"), ["deployment/web"]),
        (("events", "d"), ["db-0", "deployment/web"]),
        (("port-forward", "s"), ["service/web"]),
    ],
)
def test_commands_options_and_names_are_completed(
    home: Path, words: tuple[str, ...], expected: list[str]
) -> None:
    assert completed(home, *words) == expected


def test_where_nothing_is_played_nothing_is_completed(tmp_path: Path) -> None:
    assert completed(tmp_path, "logs", "") == []


def test_what_is_no_database_is_no_reason_for_a_traceback(home: Path) -> None:
    (home / "root/play/records.db").write_text("not one")
    assert completed(home, "logs", "") == []
