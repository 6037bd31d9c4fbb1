"""Reads container logs in the CRI format: the last lines, the rest, and new lines.

Following continues across rotations: the rest of the rotated file is read before its successor. A
log that its writer truncates by size begins in the `.1` file. A line longer than the format allows
is written in parts and counts once.
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
class LogLine:
    """One log entry; `is_complete` is false for all but the last part of a split line."""

    time: str
    stream: str
    is_complete: bool
    content: bytes


def parse_line(text: bytes) -> LogLine | None:
    """Parse an entry; None if it is malformed."""
    parts = text.split(b" ", 3)
    if len(parts) < 4:
        return None
    time, stream, tags, content = parts
    is_complete = tags.split(b":")[0] != b"P"
    return LogLine(
        time.decode(errors="replace"), stream.decode(errors="replace"), is_complete, content
    )


def log_time(moment: datetime) -> str:
    """Format a time as logs do, which compares lexically."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")


class LogReader:
    """Reads a log incrementally, from its last `last` lines if given."""

    def __init__(self, path: Path, last: int | None = None) -> None:
        self._path = path
        self._rotated = path.with_name(f"{path.name}.1")
        self._files: list[int] = []
        self._files += self._open_new()
        self._rest = b""
        if last is not None:
            self._skip_to_last(last)

    def read(self) -> Iterator[LogLine]:
        """Yield the entries since the last call."""
        if not self._files or not _is_at(self._path, self._files[-1]):
            self._files += self._open_new()
        yield from self._read()
        while len(self._files) > 1:
            os.close(self._files.pop(0))
            self._rest = b""
            yield from self._read()

    async def follow(self, ended: asyncio.Future[Any]) -> AsyncIterator[LogLine]:
        """Yield new entries until the writer has ended and all of them were read."""
        is_last = False
        while not is_last:
            is_last = ended.done()
            for line in self.read():
                yield line
            if not is_last:
                await asyncio.wait((ended,), timeout=_POLL_SECONDS)

    def _open_new(self) -> list[int]:
        """Open the files after the current one, oldest first, in a consistent snapshot."""
        older, newer = _open(self._rotated), _open(self._path)
        while not _is_at(self._rotated, older):
            _close(older, newer)
            older, newer = _open(self._rotated), _open(self._path)
        files = [file for file in (older, newer) if file is not None]
        if self._files and files and os.path.sameopenfile(files[0], self._files[-1]):
            os.close(files.pop(0))
        return files

    def close(self) -> None:
        while self._files:
            os.close(self._files.pop())

    def _skip_to_last(self, count: int) -> None:
        for file in reversed(self._files):
            start, lines = _start_of_last(file, count)
            os.lseek(file, start, os.SEEK_SET)
            count -= lines

    def _read(self) -> Iterator[LogLine]:
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
    """Whether `path` refers to this open file, or does not exist if there is none."""
    try:
        current = path.stat()
    except FileNotFoundError:
        return file is None
    return file is not None and os.path.samestat(current, os.fstat(file))


def _start_of_last(file: int, count: int) -> tuple[int, int]:
    """Return the offset of the last `count` lines, and how many there are."""
    backwards = _backwards(file)
    offset, _ = next(backwards)
    end, lines = offset, 0
    for start, text in backwards:
        line = parse_line(text)
        lines += offset == end or line is None or line.is_complete
        if lines > count:
            return offset, count
        offset = start
    return offset, lines


def _backwards(file: int) -> Iterator[tuple[int, bytes]]:
    """Yield lines and offsets from the end; the first is the unterminated rest."""
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


class LogPrinter:
    """Formats entries for output; timestamps are written at line starts only."""

    def __init__(self, *, timestamps: bool) -> None:
        self._timestamps = timestamps
        self._in_line: dict[str, bool] = {}

    def text(self, line: LogLine) -> bytes:
        text = line.content + (b"\n" if line.is_complete else b"")
        if self._timestamps and not self._in_line.get(line.stream):
            text = line.time.encode() + b" " + text
        self._in_line[line.stream] = not line.is_complete
        return text
