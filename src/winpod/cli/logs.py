"""`winpod logs`: what a container wrote, from the log that kubelet reads too."""

from __future__ import annotations

import asyncio
import os
import re
from collections import deque
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from winpod.cli.containers import Target, container_status, exit_code, find_container, with_runtime
from winpod.cli.options import Root
from winpod.cri.rpc import Client
from winpod.windows.errors import InvalidInput, NotFound

_POLL_SECONDS = 0.1
_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Line:
    """One entry of the log; `is_whole` tells that a line ends with it."""

    time: str
    stream: str
    is_whole: bool
    content: bytes


def command(
    target: Target,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the container has ended.")
    ] = False,
    tail: Annotated[
        str, typer.Option("--tail", "-n", metavar="N", help="Only the last lines.")
    ] = "all",
    timestamps: Annotated[
        bool, typer.Option("--timestamps", "-t", help="Begin each line with its time.")
    ] = False,
    since: Annotated[
        str,
        typer.Option(metavar="TIME", help="Only since a time (2026-01-31T12:00:00Z) or for (10m)."),
    ] = "",
    root: Root = None,
) -> None:
    """Print what a container wrote."""
    newest = _parse_tail(tail)
    start = parse_since(since, datetime.now(UTC)) if since else ""

    async def show(client: Client) -> None:
        found = await find_container(client, target)
        status = await container_status(client, found.id)
        if not status.log_path:
            raise NotFound(f"{found.name} was made without a log.")
        printer = _Printer(timestamps)
        log = Log(Path(status.log_path))
        lines = [line for line in log.read() if line.time >= start]
        for line in last_lines(lines, newest):
            printer.print(line)
        if follow:
            async for line in _following(client, found.id, log):
                printer.print(line)

    with_runtime(root, show)


def _parse_tail(text: str) -> int | None:
    if text == "all":
        return None
    if not text.isdecimal():
        raise InvalidInput(f'"{text}" is not a number of lines.', "Write 20, or all.")
    return int(text)


def parse_since(text: str, now: datetime) -> str:
    """As the log writes times, which can be compared as text: `10m`, `1h30m`, or a time itself."""
    match = _DURATION.fullmatch(text)
    if match and any(match.groups()):
        hours, minutes, seconds = (float(group or 0) for group in match.groups())
        moment = now - timedelta(hours=hours, minutes=minutes, seconds=seconds)
    else:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise InvalidInput(
                f'"{text}" is not a time.', "Write 10m, 1h30m or 2026-01-31T12:00:00Z."
            ) from None
        moment = moment if moment.tzinfo else moment.astimezone()
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")


def last_lines(lines: list[Line], count: int | None) -> list[Line]:
    """So many whole lines from the end, with all parts of each."""
    if count is None:
        return lines
    kept: deque[Line] = deque()
    ends = 0
    for line in reversed(lines):
        ends += line.is_whole or not kept
        if ends > count:
            break
        kept.appendleft(line)
    return list(kept)


def parse_line(text: bytes) -> Line | None:
    """Of kubelet's format; None where it is not."""
    parts = text.split(b" ", 3)
    if len(parts) < 4:
        return None
    time, stream, tags, content = parts
    is_whole = tags.split(b":")[0] != b"P"
    return Line(time.decode(errors="replace"), stream.decode(errors="replace"), is_whole, content)


class Log:
    """Reads on where it stopped. When the file is rotated, the rest of the old one comes first."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = self._open()
        self._rest = b""

    def read(self) -> Iterable[Line]:
        """What is new."""
        yield from self._read()
        if self._file is None or self._is_rotated(self._file):
            yield from self._read()
            if self._file is not None:
                os.close(self._file)
            self._file, self._rest = self._open(), b""
            yield from self._read()

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

    def _read(self) -> Iterable[Line]:
        while self._file is not None and (data := os.read(self._file, 1 << 16)):
            *whole, self._rest = (self._rest + data).split(b"\n")
            for text in whole:
                if line := parse_line(text):
                    yield line


async def _following(client: Client, container: str, log: Log) -> AsyncIterator[Line]:
    ending = asyncio.create_task(exit_code(client, container))
    try:
        while not ending.done():
            for line in log.read():
                yield line
            await asyncio.wait((ending,), timeout=_POLL_SECONDS)
        for line in log.read():
            yield line
    finally:
        ending.cancel()


class _Printer:
    def __init__(self, timestamps: bool) -> None:
        self._timestamps = timestamps
        self._in_line = {"stdout": False, "stderr": False}

    def print(self, line: Line) -> None:
        text = line.content + (b"\n" if line.is_whole else b"")
        if self._timestamps and not self._in_line.get(line.stream):
            text = line.time.encode() + b" " + text
        self._in_line[line.stream] = not line.is_whole
        descriptor = 2 if line.stream == "stderr" else 1
        while text:
            text = text[os.write(descriptor, text) :]
