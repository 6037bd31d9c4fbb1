"""Records on disk, across schema versions."""

import json
import sqlite3
from pathlib import Path

import pytest

from winpod.cri.state import MIGRATIONS, ContainerRecord, Phase, RuntimeState, SandboxRecord
from winpod.errors import InvalidInput


def container(plan: str) -> ContainerRecord:
    return ContainerRecord("id", "sandbox", "name", b"", Phase.CREATED, 1, "image", "ref", plan)


def set_version(file: Path, version: int) -> None:
    with sqlite3.connect(file) as database:
        if version < 3:
            database.execute("ALTER TABLE sandboxes DROP COLUMN accelerator")
        database.execute(f"PRAGMA user_version = {version}")


def test_resource_request_is_migrated_from_schema_1(
    tmp_path: Path,
) -> None:
    file = tmp_path / "state.db"
    state = RuntimeState(file)
    state.add(container('{"cpu_count": 2}'))
    state.close()
    set_version(file, 1)
    for _ in range(2):
        state = RuntimeState(file)
        assert json.loads(state.containers["id"].plan) == {"asked": {"cpu_count": 2}}
        state.close()


def test_sandbox_of_an_older_schema_has_no_accelerator(tmp_path: Path) -> None:
    file = tmp_path / "state.db"
    state = RuntimeState(file)
    state.add(SandboxRecord("id", "name", "handler", b"", Phase.RUNNING, 1, accelerator="kvm"))
    state.close()
    set_version(file, 2)
    for _ in range(2):
        state = RuntimeState(file)
        assert state.sandboxes["id"].accelerator == ""
        state.close()


def test_state_of_a_newer_schema_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "state.db"
    RuntimeState(file).close()
    set_version(file, len(MIGRATIONS) + 1)
    with pytest.raises(InvalidInput, match="written by a newer winpod"):
        RuntimeState(file)


def test_corrupt_state_is_reported(tmp_path: Path) -> None:
    (tmp_path / "state.db").write_bytes(b"not a database" * 100)
    with pytest.raises(InvalidInput, match="cannot be read"):
        RuntimeState(tmp_path / "state.db")
