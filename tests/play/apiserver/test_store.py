"""Transactions of the object store."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from winpod.play.apiserver.objects import ObjectKey
from winpod.play.apiserver.store import ObjectStore, StoredObject

ONE, TWO = ObjectKey("ConfigMap", "default", "one"), ObjectKey("ConfigMap", "default", "two")


class Interrupted(Exception):
    pass


def write_and_fail(records: ObjectStore) -> None:
    with records.transaction():
        records.put(ONE, StoredObject({"data": {"a": "2"}}))
        records.put(TWO, StoredObject({}))
        records.set("publish", ["8080:web"])
        raise Interrupted


def test_failed_transaction_is_rolled_back(tmp_path: Path) -> None:
    records = ObjectStore(tmp_path / "records.db")
    records.put(ONE, StoredObject({"data": {"a": "1"}}))
    with pytest.raises(Interrupted):
        write_and_fail(records)
    for store in (records, ObjectStore(tmp_path / "records.db")):
        assert store.keys() == [ONE]
        assert store.document(ONE) == {"data": {"a": "1"}}
        assert store.setting("publish") == []
        store.close()


def test_store_from_before_migrations_were_counted_is_kept(tmp_path: Path) -> None:
    records = ObjectStore(tmp_path / "records.db")
    records.put(ONE, StoredObject({"data": {"a": "1"}}))
    records.close()
    with closing(sqlite3.connect(tmp_path / "records.db")) as database:
        database.execute("PRAGMA user_version = 0")
    records = ObjectStore(tmp_path / "records.db")
    assert records.document(ONE) == {"data": {"a": "1"}}
    records.close()
