"""A container's log in kubelet's format: its last lines, the rest, and what comes after.

A log is followed across rotations: what was still written to the file that was moved away comes
first, then the file that took its place. One that its writer keeps within a limit begins in the
file that was moved to its name with .1. A line longer than the format allows is written in parts,
and counts once.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

_POLL_SECONDS = 0.1
_BLOCK = 1 << 16


@dataclass(frozen=True, slots=True)
class Line:
    """One entry of the log; `is_whole` tells that a line ends with it."""

    time: str
    stream: str
    is_whole: bool
    content: bytes


def parse_line(text: bytes) -> Line | None:
    """None where it is not in the format."""
    parts = text.split(b" ", 3)
    if len(parts) < 4:
        return None
    time, stream, tags, content = parts
    is_whole = tags.split(b":")[0] != b"P"
    return Line(time.decode(errors="replace"), stream.decode(errors="replace"), is_whole, content)


def log_time(moment: datetime) -> str:
    """As logs write times, which can be compared as text."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")


class Log:
    """Reads on where it stopped, from the last so many lines on where a number is given."""

    def __init__(self, path: Path, last: int | None = None) -> None:
        self._path = path
        self._aside = path.with_name(f"{path.name}.1")
        self._files: list[int] = []
        self._files += self._open_new()
        self._rest = b""
        if last is not None:
            self._skip_to_last(last)

    def read(self) -> Iterator[Line]:
        """What is new."""
        if not self._files or not _is_at(self._path, self._files[-1]):
            self._files += self._open_new()
        yield from self._read()
        while len(self._files) > 1:
            os.close(self._files.pop(0))
            self._rest = b""
            yield from self._read()

    async def follow(self, ended: asyncio.Future[Any]) -> AsyncIterator[Line]:
        """What is new, until the writer has ended and all of it was read."""
        is_last = False
        while not is_last:
            is_last = ended.done()
            for line in self.read():
                yield line
            if not is_last:
                await asyncio.wait((ended,), timeout=_POLL_SECONDS)

    def _open_new(self) -> list[int]:
        """The files after the one that is open, older ones first, as they are at one moment."""
        older, newer = _open(self._aside), _open(self._path)
        while not _is_at(self._aside, older):
            _close(older, newer)
            older, newer = _open(self._aside), _open(self._path)
        files = [file for file in (older, newer) if file is not None]
        if self._files and files and os.path.sameopenfile(files[0], self._files[-1]):
            os.close(files.pop(0))
        return files

    def close(self) -> None:
        while self._files:
            os.close(self._files.pop())

    def _skip_to_last(self, count: int) -> None:
        for file in reversed(self._files):
            start, found = _start_of_last(file, count)
            os.lseek(file, start, os.SEEK_SET)
            count -= found

    def _read(self) -> Iterator[Line]:
        while self._files and (data := os.read(self._files[0], _BLOCK)):
            *whole, self._rest = (self._rest + data).split(b"\n")
            for text in whole:
                if line := parse_line(text):
                    yield line


def _open(path: Path) -> int | None:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None


def _close(*files: int | None) -> None:
    for file in files:
        if file is not None:
            os.close(file)


def _is_at(path: Path, file: int | None) -> bool:
    """Whether it is this file that is there; none is, where there is none."""
    try:
        there = path.stat()
    except FileNotFoundError:
        return file is None
    return file is not None and os.path.samestat(there, os.fstat(file))


def _start_of_last(file: int, count: int) -> tuple[int, int]:
    """Where so many lines from the end begin, with all parts of each; and how many there are."""
    backwards = _backwards(file)
    offset, _ = next(backwards)
    end, seen = offset, 0
    for start, text in backwards:
        line = parse_line(text)
        seen += offset == end or line is None or line.is_whole
        if seen > count:
            return offset, count
        offset = start
    return offset, seen


def _backwards(file: int) -> Iterator[tuple[int, bytes]]:
    """Lines from the end with their offsets; the first is what no newline has ended yet."""
    position, rest = os.fstat(file).st_size, b""
    while position > 0:
        size = min(_BLOCK, position)
        position -= size
        rest, *lines = (os.pread(file, size, position) + rest).split(b"\n")
        offset = position + len(rest) + sum(len(line) + 1 for line in lines)
        for line in reversed(lines):
            offset -= len(line)
            yield offset, line
            offset -= 1
    yield 0, rest


class Printer:
    """Lines as people read them; a time is written where a line begins."""

    def __init__(self, *, timestamps: bool) -> None:
        self._timestamps = timestamps
        self._in_line: dict[str, bool] = {}

    def text(self, line: Line) -> bytes:
        text = line.content + (b"\n" if line.is_whole else b"")
        if self._timestamps and not self._in_line.get(line.stream):
            text = line.time.encode() + b" " + text
        self._in_line[line.stream] = not line.is_whole
        return text
