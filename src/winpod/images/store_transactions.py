"""The store's database, read and written in transactions; those that write exclude each other."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from winpod.images.store_lock import FileLock
from winpod.images.store_schema import open_database
from winpod.images.store_trouble import database_trouble, trouble


class Transactions:
    """Statements run inside of `reading` or `writing`."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._mutex = threading.RLock()
        try:
            opening = FileLock.take(root / "state.lock")
        except OSError as error:
            raise trouble(root, error) from None
        try:
            self._database = open_database(root / "state.db")
        except sqlite3.Error as error:
            raise database_trouble(root, error) from None
        finally:
            opening.release()

    def close(self) -> None:
        self._database.close()

    def execute(
        self, statement: str, values: Mapping[str, object] | Sequence[object] = ()
    ) -> sqlite3.Cursor:
        return self._database.execute(statement, values)

    def executemany(self, statement: str, rows: Iterable[Sequence[object]]) -> None:
        self._database.executemany(statement, rows)

    def column(self, statement: str, values: Sequence[object] = ()) -> list[str]:
        return [row[0] for row in self._database.execute(statement, values)]

    @contextmanager
    def reading(self) -> Iterator[None]:
        with self._transaction("BEGIN"):
            yield

    @contextmanager
    def writing(self, *, durable: bool = False) -> Iterator[None]:
        """A transaction that excludes others, and what it must be before the disk is told more.

        A loss of power may take back the last transactions that are not durable. That a lease is
        forgotten does no harm, for its content is as likely lost; that a removal is, would.
        """
        with self._transaction("BEGIN IMMEDIATE", "FULL" if durable else "NORMAL"):
            yield

    @contextmanager
    def _transaction(self, begin: str, synchronous: str = "NORMAL") -> Iterator[None]:
        with self._mutex:
            try:
                self._database.execute(f"PRAGMA synchronous = {synchronous}")
                self._database.execute(begin)
                try:
                    yield
                    self._database.execute("COMMIT")
                except BaseException:
                    with contextlib.suppress(sqlite3.Error):
                        self._database.execute("ROLLBACK")
                    raise
            except sqlite3.Error as error:
                raise database_trouble(self._root, error) from None
            except OSError as error:
                raise trouble(self._root, error) from None
