"""What the runtime knows of sandboxes and containers, kept so that a kill loses nothing.

A record is written before a thing is made and says how far it has come, and is deleted after the
thing is gone. A record that is found half-way at the next start names what has to be undone or
finished. The client's own words (config) are kept as they came, because they must be returned so.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from google.protobuf.message import DecodeError

from winpod.cri.proto import api_pb2 as api
from winpod.windows.errors import InvalidInput, NotFound, WinpodError

SCHEMA = 3
_log = logging.getLogger(__name__)


class Phase(StrEnum):
    """How far a thing has come. Only the middle ones are shown to clients."""

    MAKING = "making"
    CREATED = "created"
    STARTING = "starting"
    RUNNING = "running"
    EXITED = "exited"
    REMOVING = "removing"


@dataclass(slots=True)
class Sandbox:
    """A pod's place: `RUNNING` is ready, `EXITED` is stopped.

    One that is `ending` gets nothing new, whatever becomes of its end.
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
    known: api.PodSandboxConfig = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.known = api.PodSandboxConfig.FromString(self.config)

    @property
    def hostname(self) -> str:
        return self.known.hostname or self.id[:12]


@dataclass(slots=True)
class Container:
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
    known: api.ContainerConfig = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.known = api.ContainerConfig.FromString(self.config)


class NameTaken(WinpodError):
    code = "ALREADY_EXISTS"


class StateUnwritable(WinpodError):
    """What is not written down is not begun."""

    code = "RESOURCE_EXHAUSTED"

    def __init__(self, file: Path, error: Exception) -> None:
        super().__init__(
            f"the runtime's state in {file} cannot be written: {error}.",
            "Make room on its disk; what runs goes on.",
        )


Record = TypeVar("Record", Sandbox, Container)
_TABLES: dict[type, str] = {Sandbox: "sandboxes", Container: "containers"}


def _columns(kind: type[Any]) -> list[str]:
    return [f.name for f in fields(kind) if f.init]


class State:
    """Records in SQLite, and in memory for reading. One process has it open."""

    def __init__(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self._file = file
        self._mutex = threading.Lock()
        self._database = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
        try:
            self._prepare(file)
            self.sandboxes: dict[str, Sandbox] = {r.id: r for r in self._read(Sandbox)}
            self.containers: dict[str, Container] = {r.id: r for r in self._read(Container)}
            self._together: dict[str, dict[str, Container]] = {}
            for container in self.containers.values():
                self._together.setdefault(container.sandbox, {})[container.id] = container
        except sqlite3.OperationalError as error:
            self._database.close()
            raise StateUnwritable(file, error) from error
        except sqlite3.DatabaseError as error:
            self._database.close()
            raise InvalidInput(
                f"the runtime's state in {file} cannot be read: {error}.",
                "Move the file away to start without it; containers that still run are then ended.",
            ) from error

    def _prepare(self, file: Path) -> None:
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = NORMAL")
        (version,) = self._database.execute("PRAGMA user_version").fetchone()
        if version > SCHEMA:
            raise InvalidInput(
                f"{file} was written by a newer winpod (schema {version}).", "Use that one."
            )
        with self._transaction():
            for kind, table in _TABLES.items():
                columns = ", ".join(
                    f"{name} PRIMARY KEY" if name == "id" else name for name in _columns(kind)
                )
                self._database.execute(f"CREATE TABLE IF NOT EXISTS {table} ({columns})")
                has = {row[1] for row in self._database.execute(f"PRAGMA table_info({table})")}
                for name in set(_columns(kind)) - has:  # what an older one did not keep
                    self._database.execute(f"ALTER TABLE {table} ADD COLUMN {name} DEFAULT ''")
                self._database.execute(
                    f"CREATE UNIQUE INDEX IF NOT EXISTS {table}_names ON {table} (name)"
                )
            if version == 1:  # it kept of a plan only what was asked for
                self._database.execute(
                    """UPDATE containers SET plan = '{"asked": ' || plan || '}'"""
                )
            self._database.execute(f"PRAGMA user_version = {SCHEMA}")

    def _read(self, kind: type[Record]) -> list[Record]:
        columns = _columns(kind)
        rows = self._database.execute(f"SELECT {', '.join(columns)} FROM {_TABLES[kind]}")  # noqa: S608
        found = []
        for row in rows.fetchall():
            values = dict(zip(columns, row, strict=True))
            try:
                found.append(kind(**{**values, "phase": Phase(values["phase"])}))
            except (ValueError, TypeError, DecodeError) as error:
                self._drop(kind, values["id"], error)
        return found

    def _drop(self, kind: type[Any], id_: object, error: Exception) -> None:
        """A record that means nothing; what it was about is ended, as all that is not known."""
        table = _TABLES[kind]
        _log.error("the record of %s in %s is broken, and is dropped: %s", id_, table, error)
        with self._transaction():
            self._database.execute(f"DELETE FROM {table} WHERE id IS ?", [id_])  # noqa: S608

    def add(self, record: Sandbox | Container) -> None:
        """Write a new record; its name is taken from now on."""
        columns = _columns(type(record))
        marks = ", ".join("?" * len(columns))
        values = [getattr(record, name) for name in columns]
        try:
            with self._transaction():
                self._database.execute(
                    f"INSERT INTO {_TABLES[type(record)]} ({', '.join(columns)}) "  # noqa: S608
                    f"VALUES ({marks})",
                    values,
                )
        except sqlite3.IntegrityError:
            kind = "container" if isinstance(record, Container) else "sandbox"
            raise NameTaken(
                f'failed to reserve {kind} name "{record.name}": it is taken by another {kind}.',
                f"Remove that {kind}, or use another attempt number.",
            ) from None
        self._table(record)[record.id] = record
        if isinstance(record, Container):
            self._together.setdefault(record.sandbox, {})[record.id] = record

    def save(self, record: Sandbox | Container, **changes: Any) -> None:
        """Change a record, on disk first."""
        names = list(changes)
        assignments = ", ".join(f"{name} = ?" for name in names)
        with self._transaction():
            self._database.execute(
                f"UPDATE {_TABLES[type(record)]} SET {assignments} WHERE id = ?",  # noqa: S608
                [*changes.values(), record.id],
            )
        for name, value in changes.items():
            setattr(record, name, value)

    def note(self, record: Sandbox | Container, **changes: Any) -> None:
        """Change a record whose truth is elsewhere too: a disk that takes nothing stops nobody."""
        try:
            self.save(record, **changes)
        except StateUnwritable as error:
            _log.warning("%s", error)
            for name, value in changes.items():
                setattr(record, name, value)

    def forget(self, record: Sandbox | Container) -> None:
        with self._transaction():
            self._database.execute(
                f"DELETE FROM {_TABLES[type(record)]} WHERE id = ?",  # noqa: S608
                [record.id],
            )
        self._table(record).pop(record.id, None)
        if isinstance(record, Container):
            self._together.get(record.sandbox, {}).pop(record.id, None)
        else:
            self._together.pop(record.id, None)

    def _table(self, record: Sandbox | Container) -> dict[str, Any]:
        return self.containers if isinstance(record, Container) else self.sandboxes

    def sandbox(self, id_: str) -> Sandbox:
        """By its id or the beginning of it, as crictl's users write."""
        return _find(self.sandboxes, id_, "sandbox")

    def container(self, id_: str) -> Container:
        return _find(self.containers, id_, "container")

    def containers_of(self, sandbox: Sandbox) -> list[Container]:
        return list(self._together.get(sandbox.id, {}).values())

    def close(self) -> None:
        self._database.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._mutex:
            try:
                self._database.execute("BEGIN IMMEDIATE")
                yield
                self._database.execute("COMMIT")
            except BaseException as error:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                if isinstance(error, sqlite3.OperationalError):
                    raise StateUnwritable(self._file, error) from None
                raise


def _find(table: dict[str, Record], id_: str, kind: str) -> Record:
    if record := table.get(id_):
        return record
    found = [
        record
        for key, record in table.items()
        if id_ and key.startswith(id_) and record.phase is not Phase.MAKING
    ]
    if len(found) > 1:
        raise InvalidInput(
            f'"{id_}" is the beginning of the ids of {len(found)} {kind}s.', "Write more of it."
        )
    if found:
        return found[0]
    raise NotFound(f'an error occurred when try to find {kind} "{id_}": not found.')
