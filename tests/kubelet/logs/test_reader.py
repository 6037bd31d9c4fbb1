"""Log reading: tails, partial lines and rotations."""

import asyncio
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from winpod.kubelet.logs.reader import LogLine, LogPrinter, LogReader, log_time, parse_line

TIME = "2026-01-31T12:00:00.000000000Z"


def entry(text: str, tag: str = "F", stream: str = "stdout") -> str:
    return f"{TIME} {stream} {tag} {text}\n"


def said(lines: list[LogLine]) -> list[str]:
    return [line.content.decode() for line in lines]


def write(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def rotate(path: Path, before_reopening: str) -> None:
    write(path.rename(path.with_suffix(".log.1")), before_reopening)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "0.log"


def test_log_line_is_parsed() -> None:
    assert parse_line(f"{TIME} stderr P:more a  b ".encode()) == LogLine(
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
def test_tail_counts_complete_lines(path: Path, last: int | None, expected: list[str]) -> None:
    parts = [entry("one"), entry("two"), entry("thr", "P"), entry("ee"), entry("four")]
    path.write_text("".join(parts))
    assert said(list(LogReader(path, last).read())) == expected


def test_tail_includes_unterminated_line(path: Path) -> None:
    path.write_text(entry("one") + entry("two", "P"))
    assert said(list(LogReader(path, 1).read())) == ["two"]


def test_tail_of_log_with_many_blocks(path: Path) -> None:
    path.write_text("".join(entry(f"{number} {'x' * (number % 700)}") for number in range(2000)))
    found = said(list(LogReader(path, 1500).read()))
    assert [int(text.split()[0]) for text in found] == list(range(500, 2000))


def test_partial_line_is_read_when_complete(path: Path) -> None:
    path.write_text(entry("one") + entry("two")[:-5])
    log = LogReader(path, 0)
    assert said(list(log.read())) == []
    path.write_text(entry("one") + entry("two"))
    assert said(list(log.read())) == ["two"]


async def test_follow_continues_across_rotations(path: Path) -> None:
    write(path, entry("one"))
    log, ended = LogReader(path), asyncio.get_running_loop().create_future()
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
def test_log_begins_in_rotated_file(path: Path, last: int | None, expected: list[str]) -> None:
    write(path, entry("one") + entry("two"))
    rotate(path, before_reopening="")
    write(path, entry("three") + entry("four"))
    assert said(list(LogReader(path, last).read())) == expected


def test_reader_misses_no_existing_lines(path: Path) -> None:
    write(path, entry("one"))
    log = LogReader(path)
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


def test_log_is_read_once_it_exists(path: Path) -> None:
    log = LogReader(path, 5)
    assert list(log.read()) == []
    path.write_text(entry("one"))
    assert said(list(log.read())) == ["one"]


def test_timestamp_is_printed_at_line_start_only() -> None:
    printer = LogPrinter(timestamps=True)
    parts = [
        LogLine("T1", "stdout", False, b"o"),
        LogLine("T2", "stderr", True, b"e"),
        LogLine("T3", "stdout", True, b"ut"),
    ]
    assert b"".join(map(printer.text, parts)) == b"T1 oT2 e\nut\n"


def test_times_are_compared_in_utc() -> None:
    here = datetime(2026, 1, 31, 14, 0, 0, 5, timezone(timedelta(hours=2)))
    assert log_time(here) == "2026-01-31T12:00:00.000005"
    assert log_time(datetime(2026, 1, 31, 12, tzinfo=UTC)) < TIME
