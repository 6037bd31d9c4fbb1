"""Logs read from their end, in parts, and across rotations."""

import asyncio
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from winpod.node.logs import Line, Log, Printer, log_time, parse_line

TIME = "2026-01-31T12:00:00.000000000Z"


def entry(text: str, tag: str = "F", stream: str = "stdout") -> str:
    return f"{TIME} {stream} {tag} {text}\n"


def said(lines: list[Line]) -> list[str]:
    return [line.content.decode() for line in lines]


def write(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def rotate(path: Path, before_reopening: str) -> None:
    write(path.rename(path.with_suffix(".log.1")), before_reopening)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "0.log"


def test_a_line_is_read_with_everything_that_is_in_it() -> None:
    assert parse_line(f"{TIME} stderr P:more a  b ".encode()) == Line(
        TIME, "stderr", False, b"a  b "
    )
    assert parse_line(b"not a log") is None


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        (None, ["one", "two", "thr", "ee", "four"]),
        (0, []),
        (1, ["four"]),
        (2, ["thr", "ee", "four"]),
        (3, ["two", "thr", "ee", "four"]),
        (9, ["one", "two", "thr", "ee", "four"]),
    ],
)
def test_the_last_lines_are_whole_ones(path: Path, last: int | None, expected: list[str]) -> None:
    parts = [entry("one"), entry("two"), entry("thr", "P"), entry("ee"), entry("four")]
    path.write_text("".join(parts))
    assert said(list(Log(path, last).read())) == expected


def test_the_last_line_may_have_no_end(path: Path) -> None:
    path.write_text(entry("one") + entry("two", "P"))
    assert said(list(Log(path, 1).read())) == ["two"]


def test_last_lines_are_found_in_a_log_of_many_blocks(path: Path) -> None:
    path.write_text("".join(entry(f"{number} {'x' * (number % 700)}") for number in range(2000)))
    found = said(list(Log(path, 1500).read()))
    assert [int(text.split()[0]) for text in found] == list(range(500, 2000))


def test_what_is_half_written_comes_when_it_is_whole(path: Path) -> None:
    path.write_text(entry("one") + entry("two")[:-5])
    log = Log(path, 0)
    assert said(list(log.read())) == []
    path.write_text(entry("one") + entry("two"))
    assert said(list(log.read())) == ["two"]


async def test_a_log_is_followed_across_rotations_to_its_end(path: Path) -> None:
    write(path, entry("one"))
    log, ended = Log(path), asyncio.get_running_loop().create_future()
    found: list[str] = []

    async def follow() -> None:
        async for line in log.follow(ended):
            found.append(line.content.decode())

    async def until_found(*words: str) -> None:
        async with asyncio.timeout(60):
            while len(found) < len(words):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert found == [*words]

    following = asyncio.create_task(follow())
    await until_found("one")
    rotate(path, before_reopening=entry("two"))
    write(path, entry("three"))
    await until_found("one", "two", "three")
    write(path, entry("four"))
    ended.set_result(None)
    await following
    assert found == ["one", "two", "three", "four"]


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        (None, ["one", "two", "three", "four"]),
        (0, []),
        (1, ["four"]),
        (2, ["three", "four"]),
        (3, ["two", "three", "four"]),
        (9, ["one", "two", "three", "four"]),
    ],
)
def test_a_log_begins_in_what_was_moved_aside(
    path: Path, last: int | None, expected: list[str]
) -> None:
    write(path, entry("one") + entry("two"))
    rotate(path, before_reopening="")
    write(path, entry("three") + entry("four"))
    assert said(list(Log(path, last).read())) == expected


def test_a_reader_misses_nothing_that_is_still_there(path: Path) -> None:
    write(path, entry("one"))
    log = Log(path)
    assert said(list(log.read())) == ["one"]
    rotate(path, before_reopening=entry("two"))
    assert said(list(log.read())) == ["two"]
    write(path, entry("three"))
    rotate(path, before_reopening=entry("four"))
    write(path, entry("five"))
    assert said(list(log.read())) == ["three", "four", "five"]
    for word in ("six", "seven", "eight"):
        rotate(path, before_reopening=entry(word))
        write(path, "")
    assert said(list(log.read())) == ["six", "eight"]
    log.close()


def test_a_log_that_is_not_there_yet_is_read_when_it_is(path: Path) -> None:
    log = Log(path, 5)
    assert list(log.read()) == []
    path.write_text(entry("one"))
    assert said(list(log.read())) == ["one"]


def test_a_time_is_written_where_a_line_begins() -> None:
    printer = Printer(timestamps=True)
    parts = [
        Line("T1", "stdout", False, b"o"),
        Line("T2", "stderr", True, b"e"),
        Line("T3", "stdout", True, b"ut"),
    ]
    assert b"".join(map(printer.text, parts)) == b"T1 oT2 e\nut\n"


def test_times_are_compared_in_utc() -> None:
    here = datetime(2026, 1, 31, 14, 0, 0, 5, timezone(timedelta(hours=2)))
    assert log_time(here) == "2026-01-31T12:00:00.000005"
    assert log_time(datetime(2026, 1, 31, 12, tzinfo=UTC)) < TIME
