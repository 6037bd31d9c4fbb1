"""SQLite databases: opening, migrations, transactions, and error conversion.

`user_version` counts the applied migrations. A released migration is never edited; a change is a
new migration. Each runs in one transaction, so a database always has exactly one version.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path


class NewerVersion(Exception):
    """The database has more migrations than this winpod knows."""

    def __init__(self, version: int) -> None:
        super().__init__(f"version {version}")
        self.version = version


class Database:
    """A connection in WAL mode that threads can share.

    Statements outside of a transaction are committed one by one. While opening and in transactions,
    `convert_error` turns an sqlite3.Error, an OSError or NewerVersion into the error to raise.
    """

    def __init__(
        self,
        file: Path,
        migrations: Sequence[str],
        *,
        convert_error: Callable[[Exception], Exception] = lambda error: error,
        busy_seconds: float = 5.0,
    ) -> None:
        self._convert_error = convert_error
        self._mutex = threading.RLock()
        self._synchronous = ""
        with self._converted_errors():
            self._connection = sqlite3.connect(
                file, timeout=busy_seconds, isolation_level=None, check_same_thread=False
            )
            try:
                self._connection.row_factory = sqlite3.Row
                self._connection.execute("PRAGMA journal_mode = WAL")
                self._connection.execute("PRAGMA foreign_keys = ON")
                self._migrate(migrations)
                self._set_synchronous("NORMAL")
            except BaseException:
                self._connection.close()
                raise

    def _migrate(self, migrations: Sequence[str]) -> None:
        version = int(self._connection.execute("PRAGMA user_version").fetchone()[0])
        if version > len(migrations):
            raise NewerVersion(version)
        for number, script in enumerate(migrations[version:], version + 1):
            with self.write_transaction(durable=True):
                for statement in script.split(";"):
                    self._connection.execute(statement)
                self._connection.execute(f"PRAGMA user_version = {number}")

    def close(self) -> None:
        self._connection.close()

    def execute(
        self, statement: str, values: Mapping[str, object] | Sequence[object] = ()
    ) -> sqlite3.Cursor:
        return self._connection.execute(statement, values)

    def executemany(self, statement: str, rows: Iterable[Sequence[object]]) -> None:
        self._connection.executemany(statement, rows)

    def column(self, statement: str, values: Sequence[object] = ()) -> list[str]:
        return [row[0] for row in self._connection.execute(statement, values)]

    @contextmanager
    def read_transaction(self) -> Iterator[None]:
        with self._transaction("BEGIN", "NORMAL"):
            yield

    @contextmanager
    def write_transaction(self, *, durable: bool = False) -> Iterator[None]:
        """Run a transaction that excludes other writers; with `durable`, it is synced on commit.

        A power failure may undo the last transactions that are not durable.
        """
        with self._transaction("BEGIN IMMEDIATE", "FULL" if durable else "NORMAL"):
            yield

    @contextmanager
    def _transaction(self, begin: str, synchronous: str) -> Iterator[None]:
        with self._mutex, self._converted_errors():
            self._set_synchronous(synchronous)
            self._connection.execute(begin)
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")
                raise

    def _set_synchronous(self, synchronous: str) -> None:
        if synchronous != self._synchronous:
            self._connection.execute(f"PRAGMA synchronous = {synchronous}")
            self._synchronous = synchronous

    @contextmanager
    def _converted_errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError, NewerVersion) as error:
            raise self._convert_error(error) from None


@contextmanager
def open_read_only(file: Path) -> Iterator[sqlite3.Connection]:
    """Open the database of another process to read it. It is not created or migrated."""
    connection = sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=5.0)
    try:
        yield connection
    finally:
        connection.close()
