"""What is to run, on disk: whole, or not at all."""

from pathlib import Path

import pytest

from winpod.node.play.objects import Key
from winpod.node.play.records import Kept, Records

ONE, TWO = Key("ConfigMap", "default", "one"), Key("ConfigMap", "default", "two")


class Interrupted(Exception):
    pass


def write_and_fail(records: Records) -> None:
    with records.together():
        records.put(ONE, Kept({"data": {"a": "2"}}))
        records.put(TWO, Kept({}))
        records.set("publish", ["8080:web"])
        raise Interrupted


def test_what_is_written_together_is_written_or_is_not(tmp_path: Path) -> None:
    records = Records(tmp_path / "records.db")
    records.put(ONE, Kept({"data": {"a": "1"}}))
    with pytest.raises(Interrupted):
        write_and_fail(records)
    for again in (records, Records(tmp_path / "records.db")):
        assert again.keys() == [ONE]
        assert again.document(ONE) == {"data": {"a": "1"}}
        assert again.setting("publish") == []
        again.close()
