"""The client's end of an exec or attach: one WebSocket whose messages begin with a channel."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from aiohttp import ClientError, ClientSession, ClientWebSocketResponse, WSMsgType

from winpod.cri.streaming.api import CHUNK, Size
from winpod.cri.streaming.websocket import CLOSE_SIGNAL
from winpod.windows.errors import Unavailable, WinpodError

STDIN, STDOUT, STDERR, ERROR, RESIZE = range(5)
_PROTOCOL = "v5.channel.k8s.io"
_PORT_PROTOCOL = "v4.channel.k8s.io"
_PORT_DATA, _PORT_ERROR = 0, 1
_CLOSE_SECONDS = 2.0
_STAY_SECONDS = 1800.0


class SessionFailed(WinpodError):
    """The runtime could not do what was asked; the sentence is its own."""


class SessionLost(Unavailable):
    """The runtime is gone, in the middle of it."""

    def __init__(self) -> None:
        super().__init__(
            "The connection to the runtime was lost; what runs in the container goes on.",
            "`winpod attach` joins it again.",
        )


class NoAnswer(Unavailable):
    def __init__(self, url: str, error: Exception) -> None:
        number = getattr(error, "errno", None)
        why = os.strerror(number) if number else str(error) or "it takes too long"
        super().__init__(
            f"The runtime does not answer at {urlsplit(url).netloc}: {why}.",
            "It listens in the network namespace that it was started in, and nowhere else.",
        )


class Session:
    """`output` to its end, then `exit_code`; writing may go on beside it."""

    def __init__(self, socket: ClientWebSocketResponse) -> None:
        self._socket = socket
        self._status: dict[str, Any] | None = None

    async def output(self) -> AsyncIterator[tuple[int, bytes]]:
        """What comes, with STDOUT or STDERR."""
        async for message in self._socket:
            if message.type is not WSMsgType.BINARY or not message.data:
                continue
            channel, data = message.data[0], message.data[1:]
            if channel == ERROR and data:
                self._status = json.loads(data)
            elif channel in (STDOUT, STDERR) and data:
                yield channel, data

    async def write(self, data: bytes) -> None:
        for start in range(0, len(data), CHUNK):
            await self._send(STDIN, data[start : start + CHUNK])

    async def end_input(self) -> None:
        await self._send(CLOSE_SIGNAL, bytes([STDIN]))

    async def resize(self, size: Size) -> None:
        words = json.dumps({"Width": size.width, "Height": size.height})
        await self._send(RESIZE, words.encode())

    async def _send(self, channel: int, data: bytes) -> None:
        if not self._socket.closed:
            await self._socket.send_bytes(bytes([channel]) + data)

    async def stay(self) -> None:
        """A server ends what nobody has used for hours; a message without meaning is use."""
        while True:
            await asyncio.sleep(_STAY_SECONDS)
            await self._send(CLOSE_SIGNAL, b"")

    @property
    def exit_code(self) -> int:
        """Of the command that was executed; 0 for an attach that came to its end."""
        if self._status is None:
            raise SessionLost
        if self._status.get("status") == "Success":
            return 0
        for cause in (self._status.get("details") or {}).get("causes") or ():
            if cause.get("reason") == "ExitCode":
                return int(cause["message"])
        message = str(self._status.get("message", "The runtime says nothing about why."))
        raise SessionFailed(message.removeprefix("Internal error occurred: "))


@asynccontextmanager
async def open_session(url: str) -> AsyncIterator[Session]:
    """At a URL that Exec or Attach answered; it can be used once."""
    async with ClientSession() as http:
        try:
            socket = await http.ws_connect(url, protocols=(_PROTOCOL,), max_msg_size=0)
            await socket.receive()  # an empty message, when all is set up
        except (ClientError, OSError, TimeoutError) as error:
            raise NoAnswer(url, error) from None
        session = Session(socket)
        staying = asyncio.create_task(session.stay())
        try:
            yield session
        finally:
            staying.cancel()
            async with asyncio.timeout(_CLOSE_SECONDS):
                await socket.close()


async def forward_port(
    url: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """One connection, joined to the port that PortForward was asked for, until the pod ends it."""
    async with ClientSession() as http:
        try:
            socket = await http.ws_connect(url, protocols=(_PORT_PROTOCOL,), max_msg_size=0)
        except (ClientError, OSError, TimeoutError) as error:
            raise NoAnswer(url, error) from None
        sending = asyncio.create_task(_send_all(reader, socket))
        try:
            await _receive_all(socket, writer)
        finally:
            sending.cancel()
            async with asyncio.timeout(_CLOSE_SECONDS):
                await socket.close()


async def _send_all(reader: asyncio.StreamReader, socket: ClientWebSocketResponse) -> None:
    while data := await reader.read(CHUNK):
        await socket.send_bytes(bytes((_PORT_DATA,)) + data)


async def _receive_all(socket: ClientWebSocketResponse, writer: asyncio.StreamWriter) -> None:
    """The first message of each channel is the port's number."""
    begun: set[int] = set()
    async for message in socket:
        if message.type is not WSMsgType.BINARY or not message.data:
            continue
        channel, data = message.data[0], message.data[1:]
        if channel not in begun:
            begun.add(channel)
            data = data[2:]
        if channel == _PORT_ERROR and data:
            raise SessionFailed(data.decode(errors="replace"))
        if channel == _PORT_DATA and data:
            writer.write(data)
            await writer.drain()
