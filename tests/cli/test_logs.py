"""The log of a container: parts, ends, times, rotation."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from winpod.cli.logs import Line, Log, last_lines, parse_line, parse_since
from winpod.windows.errors import InvalidInput

NOW = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)


def entry(text: str, kind: str = "F", stream: str = "stdout", minute: int = 0) -> str:
    return f"2026-01-31T11:{minute:02}:00.000000000Z {stream} {kind} {text}\n"


def contents(lines: object) -> list[str]:
    return [line.content.decode() for line in lines]  # type: ignore[attr-defined]


def test_lines_are_read_as_the_kubelet_reads_them() -> None:
    line = parse_line(b"2026-01-31T11:00:00Z stderr P a b  c")
    assert line == Line("2026-01-31T11:00:00Z", "stderr", False, b"a b  c")
    assert parse_line(b"2026-01-31T11:00:00Z stdout F:x ") == Line(
        "2026-01-31T11:00:00Z", "stdout", True, b""
    )
    assert parse_line(b"no line") is None


def test_reading_goes_on_where_it_stopped_also_in_the_middle_of_a_line(tmp_path: Path) -> None:
    path = tmp_path / "app.log"
    log = Log(path)
    assert contents(log.read()) == []
    path.write_text(entry("one") + entry("two")[:10])
    assert contents(log.read()) == ["one"]
    with path.open("a") as file:
        file.write(entry("two")[10:] + entry("three"))
    assert contents(log.read()) == ["two", "three"]


def test_a_rotation_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "app.log"
    path.write_text(entry("one"))
    log = Log(path)
    assert contents(log.read()) == ["one"]
    with path.open("a") as file:
        file.write(entry("two"))
    path.rename(tmp_path / "app.log.1")
    path.write_text(entry("three"))
    assert contents(log.read()) == ["two", "three"]


def test_the_last_lines_have_all_their_parts() -> None:
    lines = [
        Line("", "stdout", True, b"one"),
        Line("", "stdout", False, b"tw"),
        Line("", "stdout", True, b"o"),
        Line("", "stdout", False, b"unfinished"),
    ]
    assert contents(last_lines(lines, 1)) == ["unfinished"]
    assert contents(last_lines(lines, 2)) == ["tw", "o", "unfinished"]
    assert contents(last_lines(lines, None)) == ["one", "tw", "o", "unfinished"]
    assert last_lines(lines, 0) == []


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("10m", "2026-01-31T11:50:00.000000"),
        ("1h30m", "2026-01-31T10:30:00.000000"),
        ("0.5s", "2026-01-31T11:59:59.500000"),
        ("2026-01-31T13:00:00+02:00", "2026-01-31T11:00:00.000000"),
        ("2026-01-31T11:00:00Z", "2026-01-31T11:00:00.000000"),
    ],
)
def test_since_is_a_time_or_a_while(text: str, start: str) -> None:
    assert parse_since(text, NOW) == start
    assert entry("x", minute=0)[:26] < parse_since("1s", NOW)


def test_what_is_no_time_is_refused() -> None:
    for text in ("", "yesterday", "m"):
        with pytest.raises(InvalidInput, match="is not a time"):
            parse_since(text, NOW)
