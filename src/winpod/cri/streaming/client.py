"""WebSocket client for exec, attach and port-forward. Messages start with a channel byte."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from aiohttp import ClientError, ClientSession, ClientWebSocketResponse, WSMsgType

from winpod.concurrency import cancel_and_wait
from winpod.cri.streaming.api import CHUNK, StreamTerminalSize
from winpod.cri.streaming.websocket import CLOSE_SIGNAL
from winpod.errors import Unavailable, WinpodError

STDIN, STDOUT, STDERR, ERROR, RESIZE = range(5)
_PROTOCOL = "v5.channel.k8s.io"
_PORT_PROTOCOL = "v4.channel.k8s.io"
_PORT_DATA, _PORT_ERROR = 0, 1
_CLOSE_SECONDS = 2.0
_KEEP_ALIVE_SECONDS = 1800.0


class SessionFailed(WinpodError):
    """The runtime reported an error; the message and the reason are the runtime's."""


class SessionLost(Unavailable):
    """The connection to the runtime was lost during a session."""

    def __init__(self) -> None:
        super().__init__(
            "The connection to the runtime was lost; the container keeps running.",
            "Attach again with `winpod attach`.",
        )


class NoResponse(Unavailable):
    def __init__(self, url: str, error: Exception) -> None:
        number = getattr(error, "errno", None)
        reason = os.strerror(number) if number else str(error) or "timed out"
        super().__init__(
            f"The runtime does not answer at {urlsplit(url).netloc}: {reason}.",
            "It is reachable only in the network namespace that it was started in.",
        )


class Session:
    """An exec or attach session: read `output` to its end, then `exit_code`."""

    def __init__(self, socket: ClientWebSocketResponse) -> None:
        self._socket = socket
        self._status: dict[str, Any] | None = None

    async def output(self) -> AsyncIterator[tuple[int, bytes]]:
        """Yield chunks of output with their channel, STDOUT or STDERR."""
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

    async def close_stdin(self) -> None:
        await self._send(CLOSE_SIGNAL, bytes([STDIN]))

    async def resize(self, size: StreamTerminalSize) -> None:
        message = json.dumps({"Width": size.width, "Height": size.height})
        await self._send(RESIZE, message.encode())

    async def _send(self, channel: int, data: bytes) -> None:
        if not self._socket.closed:
            await self._socket.send_bytes(bytes([channel]) + data)

    async def keep_alive(self) -> None:
        """Send empty messages, because servers close sessions that are idle for hours."""
        while True:
            await asyncio.sleep(_KEEP_ALIVE_SECONDS)
            await self._send(CLOSE_SIGNAL, b"")

    @property
    def exit_code(self) -> int:
        """Exit code of the executed command; 0 for a completed attach."""
        if self._status is None:
            raise SessionLost
        if self._status.get("status") == "Success":
            return 0
        cause: dict[str, Any] = {}
        for cause in (self._status.get("details") or {}).get("causes") or ():
            if cause.get("reason") == "ExitCode":
                return int(cause["message"])
        message = cause.get("message") or self._status.get("message")
        raise SessionFailed(
            str(message or "The runtime gave no reason."), reason=str(cause.get("reason", ""))
        )


@asynccontextmanager
async def open_session(url: str) -> AsyncIterator[Session]:
    """Connect to a URL returned by Exec or Attach. A URL can be used once."""
    async with ClientSession() as http:
        try:
            socket = await http.ws_connect(url, protocols=(_PROTOCOL,), max_msg_size=0)
            await socket.receive()  # an empty message signals readiness
        except (ClientError, OSError, TimeoutError) as error:
            raise NoResponse(url, error) from None
        session = Session(socket)
        keep_alive = asyncio.create_task(session.keep_alive())
        try:
            yield session
        finally:
            await cancel_and_wait(keep_alive)
            async with asyncio.timeout(_CLOSE_SECONDS):
                await socket.close()


async def forward_port(
    url: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Forward one connection to the requested port until the pod closes it."""
    async with ClientSession() as http:
        try:
            socket = await http.ws_connect(url, protocols=(_PORT_PROTOCOL,), max_msg_size=0)
        except (ClientError, OSError, TimeoutError) as error:
            raise NoResponse(url, error) from None
        sending = asyncio.create_task(_send_all(reader, socket))
        try:
            await _receive_all(socket, writer)
        finally:
            await cancel_and_wait(sending)
            async with asyncio.timeout(_CLOSE_SECONDS):
                await socket.close()


async def _send_all(reader: asyncio.StreamReader, socket: ClientWebSocketResponse) -> None:
    while data := await reader.read(CHUNK):
        await socket.send_bytes(bytes((_PORT_DATA,)) + data)


async def _receive_all(socket: ClientWebSocketResponse, writer: asyncio.StreamWriter) -> None:
    """Copy data to the writer. The first message of each channel starts with the port number."""
    seen_channels: set[int] = set()
    async for message in socket:
        if message.type is not WSMsgType.BINARY or not message.data:
            continue
        channel, data = message.data[0], message.data[1:]
        if channel not in seen_channels:
            seen_channels.add(channel)
            data = data[2:]
        if channel == _PORT_ERROR and data:
            raise SessionFailed(data.decode(errors="replace"))
        if channel == _PORT_DATA and data:
            writer.write(data)
            await writer.drain()
