"""Shell completion of commands, options and object names."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from winpod.play.apiserver.objects import ObjectKey
from winpod.play.apiserver.store import ObjectStore, StoredObject

OBJECTS = (
    ObjectKey("Deployment", "default", "web"),
    ObjectKey("Pod", "default", "web-1"),
    ObjectKey("Pod", "shop", "db-0"),
    ObjectKey("Service", "default", "web"),
    ObjectKey("ConfigMap", "default", "web"),
    ObjectKey("PersistentVolumeClaim", "default", "web"),
)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a home whose object store was written by the test."""
    records = ObjectStore(tmp_path / "root/play/records.db")
    for key in OBJECTS:
        records.put(key, StoredObject({"metadata": {"name": key.name}}))
    records.close()
    return tmp_path


def completed(home: Path, *words: str) -> list[str]:
    """Return the completions for bash."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "WINPOD_ROOT": str(home / "root"),
        "_WINPOD_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(("winpod", *words)),
        "COMP_CWORD": str(len(words)),
        **{
            name: value
            for name, value in os.environ.items()
            if name.startswith("COVERAGE_") or name == "PYTHONPATH"
        },
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


def test_completion_without_objects_is_empty(tmp_path: Path) -> None:
    assert completed(tmp_path, "logs", "") == []


def test_completion_with_corrupt_database_is_empty(home: Path) -> None:
    (home / "root/play/records.db").write_text("not one")
    assert completed(home, "logs", "") == []
