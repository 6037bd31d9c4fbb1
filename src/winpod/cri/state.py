"""Persistent records of sandboxes and containers, in SQLite.

A record is written before its object is created, tracks its phase, and is deleted after the object
is removed. A record in an intermediate phase tells the next start what to undo or finish. The
client's config is stored unchanged, because it must be returned unchanged.
"""

from __future__ import annotations

import logging
import sqlite3
from contextlib import suppress
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from google.protobuf.message import DecodeError

from winpod.cri.proto import api_pb2 as api
from winpod.database import Database, NewerVersion
from winpod.errors import InvalidInput, NotFound, WinpodError

_RECORDS = """
CREATE TABLE sandboxes (
    id PRIMARY KEY, name, handler, config, phase, created_at, netns, ips
);
CREATE UNIQUE INDEX sandboxes_names ON sandboxes (name);
CREATE TABLE containers (
    id PRIMARY KEY, sandbox, name, config, phase, created_at, image_id, image_ref, plan, log_path,
    started_at, finished_at, exit_code, reason, message
);
CREATE UNIQUE INDEX containers_names ON containers (name)
"""
_PLANS = """UPDATE containers SET plan = '{"asked": ' || plan || '}'"""
_ACCELERATORS = "ALTER TABLE sandboxes ADD COLUMN accelerator DEFAULT ''"
MIGRATIONS = (_RECORDS, _PLANS, _ACCELERATORS)
_log = logging.getLogger(__name__)


class Phase(StrEnum):
    """Life cycle phase of a sandbox or container. CREATING is not visible to clients."""

    CREATING = "making"
    CREATED = "created"
    STARTING = "starting"
    RUNNING = "running"
    EXITED = "exited"
    REMOVING = "removing"


@dataclass(slots=True)
class SandboxRecord:
    """A pod sandbox: `RUNNING` is ready, `EXITED` is stopped.

    Once `ending` is set it accepts no new containers, even if stopping it fails.
    """

    id: str
    name: str
    handler: str
    config: bytes
    phase: Phase
    created_at: int
    netns: str = ""
    ips: str = ""
    accelerator: str = ""
    ending: bool = field(default=False, init=False, compare=False)
    parsed_config: api.PodSandboxConfig = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.parsed_config = api.PodSandboxConfig.FromString(self.config)

    @property
    def hostname(self) -> str:
        return self.parsed_config.hostname or self.id[:12]


@dataclass(slots=True)
class ContainerRecord:
    id: str
    sandbox: str
    name: str
    config: bytes
    phase: Phase
    created_at: int
    image_id: str
    image_ref: str
    plan: str
    log_path: str = ""
    started_at: int = 0
    finished_at: int = 0
    exit_code: int = 0
    reason: str = ""
    message: str = ""
    parsed_config: api.ContainerConfig = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.parsed_config = api.ContainerConfig.FromString(self.config)


class NameInUse(WinpodError):
    code = "ALREADY_EXISTS"

    def __init__(self, record: SandboxRecord | ContainerRecord) -> None:
        kind = "container" if isinstance(record, ContainerRecord) else "sandbox"
        super().__init__(
            f'failed to reserve {kind} name "{record.name}": it is taken by another {kind}.',
            f"Remove that {kind}, or use another attempt number.",
        )


class StateUnwritable(WinpodError):
    """The state database cannot be written, so the operation is not started."""

    code = "RESOURCE_EXHAUSTED"

    def __init__(self, file: Path, error: Exception) -> None:
        super().__init__(
            f"the runtime's state in {file} cannot be written: {error}.",
            "Free disk space; running containers are not affected.",
        )


Record = TypeVar("Record", SandboxRecord, ContainerRecord)
_TABLES: dict[type, str] = {SandboxRecord: "sandboxes", ContainerRecord: "containers"}


def _columns(kind: type[Any]) -> list[str]:
    return [f.name for f in fields(kind) if f.init]


class RuntimeState:
    """Records in SQLite, cached in memory. Opened by one process at a time."""

    def __init__(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self._database = Database(file, MIGRATIONS, convert_error=partial(_state_error, file))
        try:
            self.sandboxes = {r.id: r for r in self._read(SandboxRecord)}
            self.containers = {r.id: r for r in self._read(ContainerRecord)}
        except BaseException:
            self._database.close()
            raise
        self._by_sandbox: dict[str, dict[str, ContainerRecord]] = {}
        for container in self.containers.values():
            self._by_sandbox.setdefault(container.sandbox, {})[container.id] = container

    def _read(self, kind: type[Record]) -> list[Record]:
        columns = ", ".join(_columns(kind))
        with self._database.read_transaction():
            rows = self._database.execute(f"SELECT {columns} FROM {_TABLES[kind]}").fetchall()  # noqa: S608
        records = []
        for row in rows:
            try:
                records.append(kind(**{**dict(row), "phase": Phase(row["phase"])}))
            except (ValueError, TypeError, DecodeError) as error:
                self._drop(kind, row["id"], error)
        return records

    def _drop(self, kind: type[Any], id_: object, error: Exception) -> None:
        """Delete an unreadable record. Its object is then removed as unknown."""
        table = _TABLES[kind]
        _log.error("Deleting corrupt record %s from %s: %s", id_, table, error)
        with self._database.write_transaction():
            self._database.execute(f"DELETE FROM {table} WHERE id IS ?", [id_])  # noqa: S608

    def add(self, record: SandboxRecord | ContainerRecord) -> None:
        """Insert a new record and reserve its name."""
        columns = _columns(type(record))
        placeholders = ", ".join("?" * len(columns))
        values = [getattr(record, name) for name in columns]
        try:
            with self._database.write_transaction():
                self._database.execute(
                    f"INSERT INTO {_TABLES[type(record)]} ({', '.join(columns)}) "  # noqa: S608
                    f"VALUES ({placeholders})",
                    values,
                )
        except sqlite3.IntegrityError:
            raise NameInUse(record) from None
        self._add_to_cache(record)

    def _add_to_cache(self, record: SandboxRecord | ContainerRecord) -> None:
        self._table(record)[record.id] = record
        if isinstance(record, ContainerRecord):
            self._by_sandbox.setdefault(record.sandbox, {})[record.id] = record

    def save(self, record: SandboxRecord | ContainerRecord, **changes: Any) -> None:
        """Update a record, on disk first."""
        names = list(changes)
        assignments = ", ".join(f"{name} = ?" for name in names)
        with self._database.write_transaction():
            self._database.execute(
                f"UPDATE {_TABLES[type(record)]} SET {assignments} WHERE id = ?",  # noqa: S608
                [*changes.values(), record.id],
            )
        for name, value in changes.items():
            setattr(record, name, value)

    def save_best_effort(self, record: SandboxRecord | ContainerRecord, **changes: Any) -> None:
        """Update a record in memory even if the disk is full.

        For changes that can be derived again at the next start.
        """
        try:
            self.save(record, **changes)
        except StateUnwritable as error:
            _log.warning("%s", error)
            for name, value in changes.items():
                setattr(record, name, value)

    def delete(self, record: SandboxRecord | ContainerRecord) -> None:
        with self._database.write_transaction():
            self._database.execute(
                f"DELETE FROM {_TABLES[type(record)]} WHERE id = ?",  # noqa: S608
                [record.id],
            )
        self._remove_from_cache(record)

    def _remove_from_cache(self, record: SandboxRecord | ContainerRecord) -> None:
        self._table(record).pop(record.id, None)
        if isinstance(record, ContainerRecord):
            self._by_sandbox.get(record.sandbox, {}).pop(record.id, None)
        else:
            self._by_sandbox.pop(record.id, None)

    def _table(self, record: SandboxRecord | ContainerRecord) -> dict[str, Any]:
        return self.containers if isinstance(record, ContainerRecord) else self.sandboxes

    def sandbox(self, id_: str) -> SandboxRecord:
        """Find a sandbox by ID or unique ID prefix, as crictl accepts."""
        return _find(self.sandboxes, id_, "sandbox")

    def container(self, id_: str) -> ContainerRecord:
        return _find(self.containers, id_, "container")

    def log_fields(self, sandbox_id: str, container_id: str) -> dict[str, str]:
        """Return what the log of a call says of its sandbox and container; empty if unknown."""
        fields: dict[str, str] = {}
        with suppress(WinpodError):
            if container_id:
                container = self.container(container_id)
                sandbox_id, image = container.sandbox, container.parsed_config.image.image
                fields |= {"container": container.id, "image": image}
                fields |= {"container_name": container.parsed_config.metadata.name}
            if sandbox_id:
                sandbox = self.sandbox(sandbox_id)
                pod = sandbox.parsed_config.metadata
                fields |= {"pod": f"{pod.namespace}/{pod.name}", "sandbox": sandbox.id}
                fields |= {"handler": sandbox.handler}
        return fields

    def containers_of(self, sandbox: SandboxRecord) -> list[ContainerRecord]:
        return list(self._by_sandbox.get(sandbox.id, {}).values())

    def close(self) -> None:
        self._database.close()


def _state_error(file: Path, error: Exception) -> Exception:
    if isinstance(error, NewerVersion):
        return InvalidInput(
            f"{file} was written by a newer winpod (schema {error.version}).", "Upgrade winpod."
        )
    if isinstance(error, sqlite3.OperationalError):
        return StateUnwritable(file, error)
    if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.IntegrityError):
        return InvalidInput(
            f"the runtime's state in {file} cannot be read: {error}.",
            "Move the file away to start without it; running containers are then stopped.",
        )
    return error


def _find(table: dict[str, Record], id_: str, kind: str) -> Record:
    if record := table.get(id_):
        return record
    matches = [
        record
        for key, record in table.items()
        if id_ and key.startswith(id_) and record.phase is not Phase.CREATING
    ]
    if len(matches) > 1:
        raise InvalidInput(
            f'the ID prefix "{id_}" is ambiguous: {len(matches)} matches.', "Write more of the ID."
        )
    if matches:
        return matches[0]
    raise NotFound(f'an error occurred when try to find {kind} "{id_}": not found.')
