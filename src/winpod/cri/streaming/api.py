"""What the streaming server asks of the runtime, and what it gives to it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

CHUNK = 64 * 1024


class Size(NamedTuple):
    """Of a terminal, in characters."""

    width: int
    height: int


class ByteReader(Protocol):
    async def read(self, limit: int = CHUNK) -> bytes:
        """Some bytes; none when the client sends no more.

        Raises ConnectionError when the client took the stream back or is gone.
        """


class ByteWriter(Protocol):
    async def write(self, data: bytes) -> None:
        """Returns when there is room for more, so that a slow client slows its writer.

        Raises ConnectionError when the client took the stream back or is gone.
        """

    async def close(self) -> None:
        """Tells the client that no more comes. Once is enough, twice does no harm."""


class Duplex(ByteReader, ByteWriter, Protocol):
    """One stream of a client, whichever transport carries it."""

    def discard(self) -> None:
        """What the client sent, or still sends, is dropped from now on."""

    async def reset(self) -> None:
        """Ends the stream both ways at once."""


@dataclass(frozen=True)
class Streams:
    """What the client of one exec or attach asked for."""

    stdin: ByteReader | None
    stdout: ByteWriter | None
    stderr: ByteWriter | None
    resize: AsyncIterator[Size]
    """Sizes of the client's terminal as they change, the newest only; ends at once without tty."""


class Backend(Protocol):
    """The runtime behind the server. A `WinpodError` it raises reaches the client as its sentence;
    any other exception as an internal error without details."""

    async def exec(
        self, container_id: str, command: Sequence[str], io: Streams, *, tty: bool
    ) -> int:
        """Runs a command to its end; its exit code, of 32 bits, signed or unsigned.

        Is cancelled when the client is gone: then the process is told, as by a closed terminal.
        """

    async def attach(self, container_id: str, io: Streams, *, tty: bool) -> None:
        """Returns when the container's process has ended; cancelled when the client leaves it."""

    async def connect(
        self, sandbox_id: str, port: int
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to a port of the pod."""


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
