"""Migrations, transactions and errors of SQLite databases."""

import sqlite3
from pathlib import Path

import pytest

from winpod.database import Database, NewerVersion, open_read_only

FIRST = "CREATE TABLE one (value); INSERT INTO one VALUES (1)"
SECOND = "ALTER TABLE one ADD COLUMN other DEFAULT 2"


def version(file: Path) -> int:
    with open_read_only(file) as database:
        return int(database.execute("PRAGMA user_version").fetchone()[0])


def test_migrations_are_applied_once(tmp_path: Path) -> None:
    file = tmp_path / "state.db"
    for migrations in ((FIRST,), (FIRST, SECOND), (FIRST, SECOND)):
        database = Database(file, migrations)
        database.close()
        assert version(file) == len(migrations)
    with open_read_only(file) as read:
        assert read.execute("SELECT value, other FROM one").fetchall() == [(1, 2)]


def test_failed_migration_leaves_the_version_before_it(tmp_path: Path) -> None:
    file = tmp_path / "state.db"
    with pytest.raises(sqlite3.OperationalError):
        Database(file, (FIRST, "INSERT INTO one VALUES (3); INSERT INTO missing VALUES (1)"))
    assert version(file) == 1
    database = Database(file, (FIRST, SECOND))
    assert [tuple(row) for row in database.execute("SELECT * FROM one")] == [(1, 2)]
    database.close()


def test_newer_database_is_rejected(tmp_path: Path) -> None:
    Database(tmp_path / "state.db", (FIRST, SECOND)).close()
    with pytest.raises(NewerVersion):
        Database(tmp_path / "state.db", (FIRST,))


@pytest.mark.parametrize(("durable", "synchronous"), [(True, 2), (False, 1)])
def test_only_durable_transactions_are_synced(
    tmp_path: Path, durable: bool, synchronous: int
) -> None:
    database = Database(tmp_path / "state.db", (FIRST,))
    with database.write_transaction(durable=durable):
        assert database.execute("PRAGMA synchronous").fetchone()[0] == synchronous
    with database.write_transaction():
        assert database.execute("PRAGMA synchronous").fetchone()[0] == 1
    database.close()


def test_failed_transaction_is_rolled_back_and_its_error_converted(tmp_path: Path) -> None:
    database = Database(tmp_path / "state.db", (FIRST,), convert_error=lambda e: KeyError(str(e)))

    def fail() -> None:
        with database.write_transaction():
            database.execute("DELETE FROM one")
            database.execute("INSERT INTO missing VALUES (1)")

    with pytest.raises(KeyError, match="missing"):
        fail()
    assert database.execute("SELECT value FROM one").fetchone()[0] == 1
    database.close()
