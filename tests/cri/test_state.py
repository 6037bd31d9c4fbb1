"""Records on disk, across versions of winpod."""

import json
import sqlite3
from pathlib import Path

import pytest

from winpod.cri.state import SCHEMA, Container, Phase, Sandbox, State
from winpod.windows.errors import InvalidInput


def container(plan: str) -> Container:
    return Container("id", "sandbox", "name", b"", Phase.CREATED, 1, "image", "ref", plan)


def set_version(file: Path, version: int) -> None:
    with sqlite3.connect(file) as database:
        database.execute(f"PRAGMA user_version = {version}")


def test_what_was_asked_of_a_container_is_found_in_a_state_of_the_first_version(
    tmp_path: Path,
) -> None:
    file = tmp_path / "state.db"
    state = State(file)
    state.add(container('{"cpu_count": 2}'))
    state.close()
    set_version(file, 1)
    for _ in range(2):
        state = State(file)
        assert json.loads(state.containers["id"].plan) == {"asked": {"cpu_count": 2}}
        state.close()


def test_a_sandbox_of_an_older_version_does_not_tell_what_runs_it(tmp_path: Path) -> None:
    file = tmp_path / "state.db"
    state = State(file)
    state.add(Sandbox("id", "name", "handler", b"", Phase.RUNNING, 1, accelerator="kvm"))
    state.close()
    with sqlite3.connect(file) as database:
        database.execute("ALTER TABLE sandboxes DROP COLUMN accelerator")
    set_version(file, 2)
    for _ in range(2):
        state = State(file)
        assert state.sandboxes["id"].accelerator == ""
        state.close()


def test_a_state_of_a_newer_winpod_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "state.db"
    State(file).close()
    set_version(file, SCHEMA + 1)
    with pytest.raises(InvalidInput, match="written by a newer winpod"):
        State(file)


def test_a_state_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "state.db").write_bytes(b"not a database" * 100)
    with pytest.raises(InvalidInput, match="cannot be read"):
        State(tmp_path / "state.db")
