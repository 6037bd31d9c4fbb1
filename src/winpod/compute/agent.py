"""A shell's agent, spoken to from the host: programs started in a container's Windows.

One connection to the shell's socket is one program, or one request; `native/protocol.h` says what
travels on it. The other end runs in the container, so nothing it sends is trusted: sizes are
bounded, an answer that makes no sense ends the connection, and output is read only as fast as it
is taken. A connection that ends takes its program, with all that it started, along.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag
from pathlib import Path

from winpod.compute.errors import AgentGone, AgentMisspoke, WindowsError
from winpod.windows.errors import InvalidInput, WinpodError

MAX_FRAME = 512 << 10
MAX_TEXT = 32766
INPUT_WINDOW = 64 << 10
CHUNK = 32 << 10

_HEADER = struct.Struct("<IB")
_PROCESS = struct.Struct("<IIIQQQQQI")
_CHANGE = struct.Struct("<BBI")
_TICKS = 10_000_000


class Frame(IntEnum):
    START = 1
    INPUT = 2
    INPUT_END = 3
    SIGNAL = 4
    RESIZE = 5
    PROCESSES = 6
    REGISTRY = 7
    PING = 8
    PIPE = 9
    STARTED = 65
    OUTPUT = 66
    ERRORS = 67
    EXIT = 68
    FAILED = 69
    WINDOW = 70
    PROCESS_LIST = 71
    DONE = 72
    CONNECTED = 73


class _Flag(IntFlag):
    TERMINAL = 1
    INPUT = 2
    WHOLE = 4


class Signal(IntEnum):
    """What a program can be told. It can answer all but the last."""

    SHUTDOWN = 1
    """The machine goes down: SIGTERM to Go, Java and .NET, a closed console (SIGHUP) to Node.js."""
    CLOSE = 2
    INTERRUPT = 3
    BREAK = 4
    KILL = 5


class Stream(IntEnum):
    OUTPUT = Frame.OUTPUT
    ERRORS = Frame.ERRORS


@dataclass(frozen=True, slots=True)
class Size:
    columns: int = 80
    rows: int = 25


@dataclass(frozen=True, slots=True)
class Program:
    """A program to start: the command line as Windows gets it, raw.

    The environment is laid over that of the machine and the user, whatever the case of its names.
    """

    command_line: str
    directory: str = "C:\\"
    environment: Mapping[str, str] = field(default_factory=dict)
    terminal: Size | None = None
    stdin: bool = False
    whole: bool = False
    """Whatever it has started ends with it, as a container does with its first program."""

    def encode(self) -> bytes:
        """The payload of START; also the content of the file that wproxy starts from."""
        flags = _Flag.TERMINAL if self.terminal else _Flag(0)
        flags |= _Flag.INPUT if self.stdin else _Flag(0)
        flags |= _Flag.WHOLE if self.whole else _Flag(0)
        size = self.terminal or Size()
        payload = struct.pack("<BHH", flags, *_extent(size))
        payload += _text(self.command_line) + _text(self.directory)
        payload += _environment(self.environment)
        if len(payload) > MAX_FRAME:
            raise InvalidInput("The command line and the environment are longer than 512 KiB.")
        return payload

    @classmethod
    def decode(cls, payload: bytes) -> Program:
        """What was encoded."""
        flags, columns, rows = struct.unpack_from("<BHH", payload)
        texts, at = [], 5
        for _ in range(3):
            (units,) = struct.unpack_from("<I", payload, at)
            text = payload[at + 4 : at + 4 + 2 * units].decode("utf-16-le", "surrogatepass")
            texts.append(text[:-1])
            at += 4 + 2 * units
        return cls(
            texts[0],
            texts[1],
            dict(_variable(entry) for entry in texts[2].split("\0") if entry),
            terminal=Size(columns, rows) if flags & _Flag.TERMINAL else None,
            stdin=bool(flags & _Flag.INPUT),
            whole=bool(flags & _Flag.WHOLE),
        )


class Root(IntEnum):
    """Where a key of the registry begins."""

    MACHINE = 0
    USER = 1
    USERS = 2


@dataclass(frozen=True, slots=True)
class RegistryChange:
    """A value to set, or one to remove when `data` is None, or a whole key without a `name`."""

    key: str
    name: str | None = None
    data: bytes | None = None
    type: int = 1
    root: Root = Root.MACHINE

    def encode(self) -> bytes:
        what = 2 if self.name is None else 1 if self.data is None else 0
        data = self.data or b""
        head = _CHANGE.pack(self.root, what, self.type) + _text(self.key) + _text(self.name or "")
        return head + struct.pack("<I", len(data)) + data


def registry_frames(changes: Iterable[RegistryChange]) -> bytes:
    """What wproxy sends before it starts a program. Changes before one that fails are made."""
    batches = _batches(change.encode() for change in changes)
    return b"".join(_HEADER.pack(len(batch), Frame.REGISTRY) + batch for batch in batches)


def pipe_request(name: str) -> bytes:
    r"""The payload of PIPE, for what is `\\.\pipe\NAME` to programs."""
    return _text(name)


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """One process of the shell, as Windows counts."""

    pid: int
    parent: int
    threads: int
    name: str
    user_seconds: float
    kernel_seconds: float
    working_set: int
    private_bytes: int


@dataclass(frozen=True, slots=True)
class Finished:
    code: int
    output: bytes
    errors: bytes


class Running:
    """A program that was started. Leaving the context ends it, if it has not ended."""

    def __init__(self, connection: _Connection, pid: int) -> None:
        self.pid = pid
        self._connection = connection
        self._window = INPUT_WINDOW
        self._room = asyncio.Event()
        self._room.set()
        self._code: int | None = None
        self._lost: WinpodError | None = None

    async def __aenter__(self) -> Running:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._connection.close()

    async def output(self) -> AsyncIterator[tuple[Stream, bytes]]:
        """What the program writes, in the order it came, until it has exited. For one reader."""
        try:
            while self._code is None:
                kind, payload = await self._connection.receive()
                match kind:
                    case Frame.OUTPUT | Frame.ERRORS:
                        yield Stream(kind), payload
                    case Frame.WINDOW:
                        self._window = min(self._window + _number(payload), INPUT_WINDOW)
                        self._room.set()
                    case Frame.EXIT:
                        self._code = _number(payload)
                    case Frame.FAILED:
                        raise _failure(payload)
                    case _:
                        raise AgentMisspoke(f"A program's frame of type {kind} means nothing.")
        except WinpodError as error:
            self._lost = error
            raise
        finally:
            self._room.set()

    async def wait(self) -> int:
        """The exit code, 32 bits without a sign. What is written meanwhile is dropped."""
        async for _ in self.output():
            pass
        return self._code or 0

    async def write(self, data: bytes) -> None:
        """Waits until the program has taken enough of it, which `output` hears of."""
        while data and self._code is None:
            if self._lost:
                raise self._lost
            if not self._window:
                self._room.clear()
                await self._room.wait()
                continue
            piece = data[: min(self._window, CHUNK)]
            self._window -= len(piece)
            await self._connection.send(Frame.INPUT, piece)
            data = data[len(piece) :]

    async def end_input(self) -> None:
        await self._connection.send(Frame.INPUT_END)

    async def signal(self, signal: Signal) -> None:
        await self._connection.send(Frame.SIGNAL, bytes([signal]))

    async def resize(self, size: Size) -> None:
        await self._connection.send(Frame.RESIZE, struct.pack("<HH", *_extent(size)))


class Agent:
    """The agent behind a shell's socket; connected to anew for each request."""

    def __init__(self, path: Path) -> None:
        self.path = path

    async def ping(self) -> None:
        """Returns when the shell is ready for programs."""
        await self._ask(Frame.PING, b"", Frame.DONE)

    async def start(self, program: Program) -> Running:
        payload = program.encode()
        connection = await _Connection.to(self.path)
        try:
            await connection.send(Frame.START, payload)
            return Running(connection, _number(await connection.answer(Frame.STARTED)))
        except BaseException:
            connection.close()
            raise

    async def run(
        self, program: Program, *, stdin: bytes | None = None, most: int = 16 << 20
    ) -> Finished:
        """Runs a program to its end; of each stream only the first `most` bytes are kept."""
        kept = {Stream.OUTPUT: bytearray(), Stream.ERRORS: bytearray()}
        async with await self.start(program) as running:
            feeding = asyncio.create_task(_feed(running, stdin))
            try:
                async for stream, data in running.output():
                    kept[stream] += data[: max(0, most - len(kept[stream]))]
                code = await running.wait()
            finally:
                feeding.cancel()
                with contextlib.suppress(asyncio.CancelledError, WinpodError):
                    await feeding
        return Finished(code, bytes(kept[Stream.OUTPUT]), bytes(kept[Stream.ERRORS]))

    async def processes(self) -> list[ProcessInfo]:
        return list(_processes(await self._ask(Frame.PROCESSES, b"", Frame.PROCESS_LIST)))

    async def _ask(self, question: Frame, payload: bytes, answer: Frame) -> bytes:
        connection = await _Connection.to(self.path)
        try:
            await connection.send(question, payload)
            return await connection.answer(answer)
        finally:
            connection.close()


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._announced: tuple[int, int] | None = None

    @classmethod
    async def to(cls, path: Path) -> _Connection:
        try:
            with short_name(path) as name:
                return cls(*await asyncio.open_unix_connection(name, limit=MAX_FRAME))
        except OSError as error:
            raise AgentGone(f"The container's shell does not answer: {error.strerror}.") from None

    async def send(self, kind: Frame, payload: bytes = b"") -> None:
        try:
            self._writer.write(_HEADER.pack(len(payload), kind) + payload)
            await self._writer.drain()
        except OSError:
            raise AgentGone("The container's shell has ended.") from None

    async def receive(self) -> tuple[int, bytes]:
        """One frame; whoever is cancelled half-way leaves it whole to the next."""
        try:
            if self._announced is None:
                self._announced = _HEADER.unpack(await self._reader.readexactly(_HEADER.size))
            size, kind = self._announced
            if size > MAX_FRAME:
                raise AgentMisspoke(f"The container's shell announced {size} bytes at once.")
            payload = await self._reader.readexactly(size)
            self._announced = None
            return kind, payload
        except (OSError, EOFError):
            raise AgentGone("The container's shell has ended.") from None

    async def answer(self, wanted: Frame) -> bytes:
        kind, payload = await self.receive()
        if kind == Frame.FAILED:
            raise _failure(payload)
        if kind != wanted:
            raise AgentMisspoke(f"The answer of type {kind} is not one to the question.")
        return payload

    def close(self) -> None:
        self._writer.close()


@contextlib.contextmanager
def short_name(path: Path) -> Iterator[str]:
    """A name for a socket that fits into its address, however long its directory is."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


async def _feed(running: Running, stdin: bytes | None) -> None:
    if stdin is not None:
        await running.write(stdin)
        await running.end_input()


def _extent(size: Size) -> tuple[int, int]:
    return max(1, min(size.columns, 1000)), max(1, min(size.rows, 1000))


def _units(text: str) -> bytes:
    if "\0" in text:
        raise InvalidInput("A text with a zero character cannot be given to Windows.")
    data = text.encode("utf-16-le", "surrogatepass")
    if len(data) > 2 * MAX_TEXT:
        raise InvalidInput("The text is longer than the 32,766 characters that Windows allows.")
    return data + b"\0\0"


def _text(text: str) -> bytes:
    data = _units(text)
    return struct.pack("<I", len(data) // 2) + data


def _environment(variables: Mapping[str, str]) -> bytes:
    for name in variables:
        if not name or "=" in name[1:]:
            raise InvalidInput(f'"{name}" cannot be the name of an environment variable.')
    entries = b"".join(_units(f"{name}={value}") for name, value in variables.items())
    return struct.pack("<I", len(entries) // 2 + 1) + entries + b"\0\0"


def _variable(entry: str) -> tuple[str, str]:
    name, _, value = entry[1:].partition("=")
    return entry[0] + name, value


def _number(payload: bytes) -> int:
    if len(payload) != 4:
        raise AgentMisspoke(f"A number has 4 bytes, not {len(payload)}.")
    return int.from_bytes(payload, "little")


def _failure(payload: bytes) -> WindowsError:
    return WindowsError(_number(payload[:4]), payload[4:].decode(errors="replace"))


def _batches(encoded: Iterable[bytes]) -> Iterator[bytes]:
    batch = b""
    for one in encoded:
        if len(one) > MAX_FRAME:
            raise InvalidInput("A registry value of more than 512 KiB cannot be set.")
        if len(batch) + len(one) > MAX_FRAME:
            yield batch
            batch = b""
        batch += one
    if batch:
        yield batch


def _processes(payload: bytes) -> Iterator[ProcessInfo]:
    at = 0
    while at < len(payload):
        if len(payload) - at < _PROCESS.size:
            raise AgentMisspoke("The list of processes ends in the middle of one.")
        pid, parent, threads, _, user, kernel, working_set, private, size = _PROCESS.unpack_from(
            payload, at
        )
        at += _PROCESS.size
        name = payload[at : at + size].decode("utf-16-le", "replace")
        at += size
        yield ProcessInfo(
            pid, parent, threads, name, user / _TICKS, kernel / _TICKS, working_set, private
        )
