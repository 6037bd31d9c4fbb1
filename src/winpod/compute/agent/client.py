"""Client of a silo's agent, which starts programs in the container's Windows.

A connection to the silo's socket carries one program or one request; see docs/agent-protocol.md.
The agent runs in the container, so nothing it sends is trusted: sizes are bounded, invalid frames
end the connection, and output is read only as fast as it is consumed. Closing a connection
terminates its program and that program's descendants.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

from winpod.compute.agent.protocol import (
    CHUNK,
    FRAME_HEADER,
    MAX_FRAME,
    MAX_TEXT,
    PROCESS_INFO,
    REGISTRY_CHANGE,
    STDIN_WINDOW,
    TERMINAL_EXTENT,
    Frame,
    RegistryOperation,
    RegistryRoot,
    Signal,
    StartFlag,
)
from winpod.compute.errors import AgentProtocolError, AgentUnavailable, WindowsError
from winpod.errors import InvalidInput, WinpodError

_TICKS = 10_000_000


class Stream(IntEnum):
    OUTPUT = Frame.STDOUT
    ERRORS = Frame.STDERR


@dataclass(frozen=True, slots=True)
class TerminalSize:
    columns: int = 80
    rows: int = 25


@dataclass(frozen=True, slots=True)
class Program:
    """A program to start, with the raw Windows command line.

    The environment is merged over that of the machine and the user, ignoring the case of names.
    """

    command_line: str
    directory: str = "C:\\"
    environment: Mapping[str, str] = field(default_factory=dict)
    terminal: TerminalSize | None = None
    stdin: bool = False
    kill_descendants: bool = False
    """Terminate its descendants when it exits, as a container ends with its first program."""

    def encode(self) -> bytes:
        """Encode the payload of START, which is also the file that wproxy starts from."""
        flags = StartFlag.TERMINAL if self.terminal else StartFlag(0)
        flags |= StartFlag.STDIN if self.stdin else StartFlag(0)
        flags |= StartFlag.KILL_DESCENDANTS if self.kill_descendants else StartFlag(0)
        size = self.terminal or TerminalSize()
        payload = bytes([flags]) + _extent(size)
        payload += _text(self.command_line) + _text(self.directory)
        payload += _environment(self.environment)
        if len(payload) > MAX_FRAME:
            raise InvalidInput("The command line and the environment are longer than 512 KiB.")
        return payload

    @classmethod
    def decode(cls, payload: bytes) -> Program:
        """Decode the payload of START."""
        flags = payload[0]
        columns, rows = TERMINAL_EXTENT.unpack_from(payload, 1)
        texts, offset = [], 1 + TERMINAL_EXTENT.size
        for _ in range(3):
            (units,) = struct.unpack_from("<I", payload, offset)
            text = payload[offset + 4 : offset + 4 + 2 * units].decode("utf-16-le", "surrogatepass")
            texts.append(text[:-1])
            offset += 4 + 2 * units
        return cls(
            texts[0],
            texts[1],
            dict(_variable(entry) for entry in texts[2].split("\0") if entry),
            terminal=TerminalSize(columns, rows) if flags & StartFlag.TERMINAL else None,
            stdin=bool(flags & StartFlag.STDIN),
            kill_descendants=bool(flags & StartFlag.KILL_DESCENDANTS),
        )


@dataclass(frozen=True, slots=True)
class RegistryChange:
    """Set a value, delete it if `data` is None, or delete the whole key if `name` is None."""

    key: str
    name: str | None = None
    data: bytes | None = None
    type: int = 1
    root: RegistryRoot = RegistryRoot.MACHINE

    def encode(self) -> bytes:
        operation = RegistryOperation.SET_VALUE
        if self.name is None:
            operation = RegistryOperation.DELETE_KEY
        elif self.data is None:
            operation = RegistryOperation.DELETE_VALUE
        head = REGISTRY_CHANGE.pack(self.root, operation, self.type)
        data = self.data or b""
        texts = _text(self.key) + _text(self.name or "")
        return head + texts + struct.pack("<I", len(data)) + data


def registry_frames(changes: Iterable[RegistryChange]) -> bytes:
    """Encode the frames that wproxy sends before START. Changes before a failed one are kept."""
    batches = _batches(change.encode() for change in changes)
    return b"".join(FRAME_HEADER.pack(len(batch), Frame.REGISTRY) + batch for batch in batches)


def pipe_request(name: str) -> bytes:
    r"""Encode the payload of PIPE_LISTEN, for the pipe `\\.\pipe\NAME`."""
    return _text(name)


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """A process in the silo, with Windows' counters."""

    pid: int
    parent: int
    threads: int
    name: str
    user_seconds: float
    kernel_seconds: float
    working_set: int
    private_bytes: int


@dataclass(frozen=True, slots=True)
class ProgramResult:
    code: int
    output: bytes
    errors: bytes


class RunningProgram:
    """A started program. Leaving the context terminates it if it still runs."""

    def __init__(self, connection: _Connection, pid: int) -> None:
        self.pid = pid
        self._connection = connection
        self._window = STDIN_WINDOW
        self._window_open = asyncio.Event()
        self._window_open.set()
        self._code: int | None = None
        self._error: WinpodError | None = None

    async def __aenter__(self) -> RunningProgram:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._connection.close()

    async def output(self) -> AsyncIterator[tuple[Stream, bytes]]:
        """Yield what the program writes, in order, until it exits. For one reader."""
        try:
            while self._code is None:
                kind, payload = await self._connection.receive()
                match kind:
                    case Frame.STDOUT | Frame.STDERR:
                        yield Stream(kind), payload
                    case Frame.STDIN_CREDIT:
                        self._window = min(self._window + _number(payload), STDIN_WINDOW)
                        self._window_open.set()
                    case Frame.EXIT:
                        self._code = _number(payload)
                    case Frame.FAILED:
                        raise _failure(payload)
                    case _:
                        raise AgentProtocolError(f"Unexpected frame of type {kind}.")
        except WinpodError as error:
            self._error = error
            raise
        finally:
            self._window_open.set()

    async def wait(self) -> int:
        """Return the exit code as an unsigned 32-bit number. Drops output that is not read."""
        async for _ in self.output():
            pass
        return self._code or 0

    async def write(self, data: bytes) -> None:
        """Write to stdin. Blocks until the program reads; needs a concurrent `output`."""
        while data and self._code is None:
            if self._error:
                raise self._error
            if not self._window:
                self._window_open.clear()
                await self._window_open.wait()
                continue
            piece = data[: min(self._window, CHUNK)]
            self._window -= len(piece)
            await self._connection.send(Frame.STDIN, piece)
            data = data[len(piece) :]

    async def close_stdin(self) -> None:
        await self._connection.send(Frame.STDIN_CLOSE)

    async def signal(self, signal: Signal) -> None:
        await self._connection.send(Frame.SIGNAL, bytes([signal]))

    async def resize(self, size: TerminalSize) -> None:
        await self._connection.send(Frame.RESIZE, _extent(size))


class AgentClient:
    """The agent behind a silo's socket. Connects for each request."""

    def __init__(self, path: Path) -> None:
        self.path = path

    async def ping(self) -> None:
        """Return when the silo is ready for programs."""
        await self._request(Frame.PING, b"", Frame.DONE)

    async def start(self, program: Program) -> RunningProgram:
        payload = program.encode()
        connection = await _Connection.connect(self.path)
        try:
            await connection.send(Frame.START, payload)
            return RunningProgram(connection, _number(await connection.expect(Frame.STARTED)))
        except BaseException:
            connection.close()
            raise

    async def run(
        self, program: Program, *, stdin: bytes | None = None, max_output: int = 16 << 20
    ) -> ProgramResult:
        """Run a program to its end; keep only the first `max_output` bytes of each stream."""
        captured = {Stream.OUTPUT: bytearray(), Stream.ERRORS: bytearray()}
        async with await self.start(program) as running:
            writing_stdin = asyncio.create_task(_feed(running, stdin))
            try:
                async for stream, data in running.output():
                    captured[stream] += data[: max(0, max_output - len(captured[stream]))]
                code = await running.wait()
            finally:
                writing_stdin.cancel()
                with contextlib.suppress(asyncio.CancelledError, WinpodError):
                    await writing_stdin
        return ProgramResult(code, bytes(captured[Stream.OUTPUT]), bytes(captured[Stream.ERRORS]))

    async def processes(self) -> list[ProcessInfo]:
        return list(_processes(await self._request(Frame.LIST_PROCESSES, b"", Frame.PROCESS_LIST)))

    async def _request(self, request: Frame, payload: bytes, answer: Frame) -> bytes:
        connection = await _Connection.connect(self.path)
        try:
            await connection.send(request, payload)
            return await connection.expect(answer)
        finally:
            connection.close()


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._header: tuple[int, int] | None = None

    @classmethod
    async def connect(cls, path: Path) -> _Connection:
        try:
            with short_socket_path(path) as name:
                return cls(*await asyncio.open_unix_connection(name, limit=MAX_FRAME))
        except OSError as error:
            raise AgentUnavailable(
                f"The container's agent does not answer: {error.strerror}."
            ) from None

    async def send(self, kind: Frame, payload: bytes = b"") -> None:
        try:
            self._writer.write(FRAME_HEADER.pack(len(payload), kind) + payload)
            await self._writer.drain()
        except OSError:
            raise AgentUnavailable("The container's silo has ended.") from None

    async def receive(self) -> tuple[int, bytes]:
        """Receive a frame. After a cancellation the next call receives it."""
        try:
            if self._header is None:
                self._header = FRAME_HEADER.unpack(
                    await self._reader.readexactly(FRAME_HEADER.size)
                )
            size, kind = self._header
            if size > MAX_FRAME:
                raise AgentProtocolError(f"The container's agent announced {size} bytes at once.")
            payload = await self._reader.readexactly(size)
            self._header = None
            return kind, payload
        except (OSError, EOFError):
            raise AgentUnavailable("The container's silo has ended.") from None

    async def expect(self, expected: Frame) -> bytes:
        kind, payload = await self.receive()
        if kind == Frame.FAILED:
            raise _failure(payload)
        if kind != expected:
            raise AgentProtocolError(f"Unexpected answer of type {kind}.")
        return payload

    def close(self) -> None:
        self._writer.close()


@contextlib.contextmanager
def short_socket_path(path: Path) -> Iterator[str]:
    """Yield a path of a socket that fits into its address, whatever its directory."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


async def _feed(running: RunningProgram, stdin: bytes | None) -> None:
    if stdin is not None:
        await running.write(stdin)
        await running.close_stdin()


def _extent(size: TerminalSize) -> bytes:
    return TERMINAL_EXTENT.pack(*(max(1, min(one, 1000)) for one in (size.columns, size.rows)))


def _units(text: str) -> bytes:
    if "\0" in text:
        raise InvalidInput("Windows does not allow zero characters in a text.")
    data = text.encode("utf-16-le", "surrogatepass")
    if len(data) > 2 * (MAX_TEXT - 1):
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
        raise AgentProtocolError(f"A number has 4 bytes, not {len(payload)}.")
    return int.from_bytes(payload, "little")


def _failure(payload: bytes) -> WindowsError:
    return WindowsError(_number(payload[:4]), payload[4:].decode(errors="replace"))


def _batches(encoded: Iterable[bytes]) -> Iterator[bytes]:
    batch = b""
    for change in encoded:
        if len(change) > MAX_FRAME:
            raise InvalidInput("A registry value of more than 512 KiB cannot be set.")
        if len(batch) + len(change) > MAX_FRAME:
            yield batch
            batch = b""
        batch += change
    if batch:
        yield batch


def _processes(payload: bytes) -> Iterator[ProcessInfo]:
    offset = 0
    while offset < len(payload):
        if len(payload) - offset < PROCESS_INFO.size:
            raise AgentProtocolError("The list of processes is truncated.")
        pid, parent, threads, _, user, kernel, working_set, private, size = (
            PROCESS_INFO.unpack_from(payload, offset)
        )
        offset += PROCESS_INFO.size
        name = payload[offset : offset + size].decode("utf-16-le", "replace")
        offset += size
        yield ProcessInfo(
            pid, parent, threads, name, user / _TICKS, kernel / _TICKS, working_set, private
        )
