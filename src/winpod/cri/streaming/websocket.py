"""Channels over a WebSocket: the first byte of each message is the channel number.

The protocol versions differ in three ways: base64 variants use text messages, version 4 and later
send the status as JSON, and version 5 can close a channel (`v5.channel.k8s.io`, required by current
clients).
"""

import asyncio
import base64
import binascii
import contextlib
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass

from aiohttp import WSCloseCode, WSMessage, WSMsgType, web

from winpod.cri.streaming.api import CHUNK
from winpod.cri.streaming.connection import (
    LINGER,
    ClientGone,
    IdleWatch,
    ReceiveWindow,
    StreamBuffer,
)

MAX_MESSAGE = 4 * 1024 * 1024
PONG_INTERVAL = 5.0
CLOSE_SIGNAL = 255


@dataclass(frozen=True)
class ChannelProtocol:
    name: str
    version: int
    base64: bool = False


async def accept(request: web.Request, protocol: str) -> web.WebSocketResponse:
    """Answer 101 with the chosen subprotocol, "" for none."""
    socket = web.WebSocketResponse(
        protocols=(protocol,) if protocol else (),
        compress=False,
        max_msg_size=MAX_MESSAGE,
        timeout=LINGER,
        decode_text=True,
    )
    await socket.prepare(request)
    return socket


class WebSocketChannel:
    """A channel. It ends with the connection; its input also ends with the close signal."""

    def __init__(self, connection: "WebSocketConnection", number: int) -> None:
        self.inbox = StreamBuffer(connection.backlog)
        self._connection = connection
        self._number = number
        self._closed = False

    async def read(self, limit: int = CHUNK) -> bytes:
        return await self.inbox.read(limit)

    async def write(self, data: bytes) -> None:
        if self._closed:
            raise BrokenPipeError("The channel was closed for writing.")
        for start in range(0, len(data), CHUNK):
            await self._connection.send(self._number, data[start : start + CHUNK])

    async def close(self) -> None:
        """Close both directions: the protocols have no half-close for the server."""
        self._closed = True
        self.discard()

    async def reset(self) -> None:
        await self.close()

    def discard(self) -> None:
        self.inbox.discard()


class WebSocketConnection:
    """Use as `async with WebSocketConnection.open(...)`: messages are received inside the block."""

    def __init__(
        self,
        socket: web.WebSocketResponse,
        protocol: ChannelProtocol,
        *,
        channels: int,
        idle_timeout: float,
        abort: Callable[[], None],
    ) -> None:
        self.backlog = ReceiveWindow()
        self.channels = [WebSocketChannel(self, number) for number in range(channels)]
        self._socket = socket
        self._protocol = protocol
        self._idle = IdleWatch(idle_timeout)
        self._disconnected = asyncio.Event()
        self._abort = abort

    @classmethod
    @contextlib.asynccontextmanager
    async def open(
        cls,
        socket: web.WebSocketResponse,
        protocol: ChannelProtocol,
        *,
        channels: int,
        readable: Collection[int],
        idle_timeout: float,
        abort: Callable[[], None],
    ) -> AsyncIterator["WebSocketConnection"]:
        """Open the connection. Input on channels that are not `readable` is dropped."""
        connection = cls(
            socket, protocol, channels=channels, idle_timeout=idle_timeout, abort=abort
        )
        for number in set(range(channels)) - set(readable):
            connection.channels[number].discard()
        receiving = asyncio.create_task(connection._receive())
        try:
            yield connection
        finally:
            receiving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await receiving

    async def wait_disconnected(self) -> None:
        """Wait until the client disconnects."""
        await self._disconnected.wait()

    async def finish(self) -> None:
        """Close with a normal close frame after all data; clients treat others as failure."""
        for channel in self.channels:
            channel.discard()
        with contextlib.suppress(ConnectionError):
            await self._socket.close(code=WSCloseCode.OK)

    async def send(self, number: int, data: bytes) -> None:
        self._idle.touch()
        if self._disconnected.is_set():
            raise ClientGone("The client closed the connection.")
        if self._protocol.base64:
            await self._socket.send_str(f"{number}{base64.b64encode(data).decode()}")
        else:
            await self._socket.send_bytes(bytes([number]) + data)

    async def _receive(self) -> None:
        try:
            async with self._idle:
                while (payload := _payload(await self._socket.receive())) is not None:
                    self._idle.touch()
                    self._dispatch(payload)
                    await wait_for_buffer_space(self._socket, self.backlog)
        except ConnectionError:
            pass
        except TimeoutError:
            self._abort()
        finally:
            self._disconnected.set()
            for channel in self.channels:
                channel.inbox.fail(ClientGone("The client closed the connection."))

    def _dispatch(self, payload: bytes) -> None:
        if not payload:
            return
        if self._protocol.version >= 5 and payload[0] == CLOSE_SIGNAL:
            if len(payload) == 2 and payload[1] < len(self.channels):
                self.channels[payload[1]].inbox.finish()
            return
        number, data = payload[0], payload[1:]
        if self._protocol.base64:
            number -= ord("0")
            try:
                data = base64.b64decode(data, validate=True)
            except binascii.Error:
                raise ClientGone("The client sent invalid base64.") from None
        if 0 <= number < len(self.channels):
            self.channels[number].inbox.put(data)


class WebSocketTransport:
    """Transport of a SPDY connection over binary WebSocket messages."""

    def __init__(self, socket: web.WebSocketResponse, abort: Callable[[], None]) -> None:
        self._socket = socket
        self.abort = abort

    async def read(self) -> bytes:
        while (payload := _payload(await self._socket.receive())) is not None:
            if payload:
                return payload
        return b""

    async def write(self, *parts: bytes) -> None:
        await self._socket.send_bytes(b"".join(parts))

    async def flush(self) -> None:
        """Do nothing: the closing handshake follows all written data."""


async def wait_for_buffer_space(socket: web.WebSocketResponse, backlog: ReceiveWindow) -> None:
    """Wait for buffer space. While the client is not read, its pings are not answered.

    It would time out after a minute, so send unsolicited pongs; they also detect a dead client.
    """
    while backlog.full and not await backlog.wait_for_space(PONG_INTERVAL):
        await socket.pong()


def _payload(message: WSMessage) -> bytes | None:
    """Return the bytes of a message; None at the end of the connection."""
    match message.type:
        case WSMsgType.BINARY:
            return bytes(message.data)
        case WSMsgType.TEXT:
            return str(message.data).encode()
        case _:
            return None
