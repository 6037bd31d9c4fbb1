"""A container's log in kubelet's format: its last lines, the rest, and what comes after.

A log is followed across rotations: what was still written to the file that was moved away comes
first, then the file that took its place. A line longer than the format allows is written in
parts, and counts once.
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
        self._file = self._open()
        self._rest = b""
        if self._file is not None and last is not None:
            os.lseek(self._file, _start_of_last(self._file, last), os.SEEK_SET)

    def read(self) -> Iterator[Line]:
        """What is new."""
        yield from self._read()
        if self._file is None or self._is_rotated(self._file):
            yield from self._read()
            self.close()
            self._file, self._rest = self._open(), b""
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

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _open(self) -> int | None:
        try:
            return os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None

    def _is_rotated(self, file: int) -> bool:
        try:
            return not os.path.samestat(self._path.stat(), os.fstat(file))
        except FileNotFoundError:
            return False

    def _read(self) -> Iterator[Line]:
        while self._file is not None and (data := os.read(self._file, _BLOCK)):
            *whole, self._rest = (self._rest + data).split(b"\n")
            for text in whole:
                if line := parse_line(text):
                    yield line


def _start_of_last(file: int, count: int) -> int:
    """Where so many lines from the end begin, with all parts of each."""
    backwards = _backwards(file)
    offset, _ = next(backwards)
    end, seen = offset, 0
    for start, text in backwards:
        line = parse_line(text)
        seen += offset == end or line is None or line.is_whole
        if seen > count:
            break
        offset = start
    return offset


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
