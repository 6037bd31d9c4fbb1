"""Interface between the streaming server and the runtime."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

CHUNK = 64 * 1024


class StreamTerminalSize(NamedTuple):
    """Terminal size in characters."""

    width: int
    height: int


class ByteReader(Protocol):
    async def read(self, limit: int = CHUNK) -> bytes:
        """Read up to `limit` bytes; empty at the end of the stream.

        Raises ConnectionError if the client reset the stream or disconnected.
        """


class ByteWriter(Protocol):
    async def write(self, data: bytes) -> None:
        """Write, and return when there is buffer space: a slow client blocks its writer.

        Raises ConnectionError if the client reset the stream or disconnected.
        """

    async def close(self) -> None:
        """Signal the end of the stream to the client. Idempotent."""


class Duplex(ByteReader, ByteWriter, Protocol):
    """A bidirectional client stream, independent of the transport."""

    def discard(self) -> None:
        """Drop all data the client has sent or will send."""

    async def reset(self) -> None:
        """Close the stream in both directions immediately."""


@dataclass(frozen=True)
class ClientStreams:
    """The streams that the client of an exec or attach requested."""

    stdin: ByteReader | None
    stdout: ByteWriter | None
    stderr: ByteWriter | None
    resize: AsyncIterator[StreamTerminalSize]
    """Sizes of the client's terminal, the latest only. Empty without a tty."""


class StreamingBackend(Protocol):
    """The runtime behind the server. The message of a `WinpodError` is sent to the client; any
    other exception becomes an internal error without details."""

    async def exec(
        self, container_id: str, command: Sequence[str], io: ClientStreams, *, tty: bool
    ) -> int:
        """Execute a command and return its 32-bit exit code, signed or unsigned.

        Cancelled if the client disconnects: the process then gets a terminal close event.
        """

    async def attach(self, container_id: str, io: ClientStreams, *, tty: bool) -> None:
        """Attach until the container's process exits. Cancelled if the client disconnects."""

    async def connect(
        self, sandbox_id: str, port: int
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to a port of the pod."""


@dataclass(frozen=True)
class ExecRequest:
    container_id: str
    command: tuple[str, ...]
    stdin: bool
    stdout: bool
    stderr: bool
    tty: bool


@dataclass(frozen=True)
class AttachRequest:
    container_id: str
    stdin: bool
    stdout: bool
    stderr: bool
    tty: bool


@dataclass(frozen=True)
class PortForwardRequest:
    sandbox_id: str
    ports: tuple[int, ...]


Request = ExecRequest | AttachRequest | PortForwardRequest
