"""Channels over one WebSocket: the first byte of each message says which.

The protocols differ in three ways only: base64 sends text, version 4 and later send a status as
JSON, and version 5 can close one channel (`v5.channel.k8s.io`, which current clients insist on).
"""

import asyncio
import base64
import binascii
import contextlib
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass

from aiohttp import WSCloseCode, WSMessage, WSMsgType, web

from winpod.cri.streaming.api import CHUNK
from winpod.cri.streaming.backlog import Backlog, Inbox
from winpod.cri.streaming.idle import IdleWatch
from winpod.cri.streaming.lost import LINGER, ClientGone

MAX_MESSAGE = 4 * 1024 * 1024
PONG_INTERVAL = 5.0
CLOSE_SIGNAL = 255


@dataclass(frozen=True)
class ChannelProtocol:
    name: str
    version: int
    base64: bool = False


async def accept(request: web.Request, protocol: str) -> web.WebSocketResponse:
    """Answers 101 with the chosen subprotocol, "" for none."""
    socket = web.WebSocketResponse(
        protocols=(protocol,) if protocol else (),
        compress=False,
        max_msg_size=MAX_MESSAGE,
        timeout=LINGER,
        decode_text=True,
    )
    await socket.prepare(request)
    return socket


class Channel:
    """One channel: it ends with the connection, and its reading also by the close signal."""

    def __init__(self, connection: "WebSocketConnection", number: int) -> None:
        self.inbox = Inbox(connection.backlog)
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
        """Ends both ways: the protocols have no message to say that only our side is done."""
        self._closed = True
        self.discard()

    async def reset(self) -> None:
        await self.close()

    def discard(self) -> None:
        self.inbox.discard()


class WebSocketConnection:
    """Use as `async with WebSocketConnection.open(...)`: receiving goes on inside."""

    def __init__(
        self,
        socket: web.WebSocketResponse,
        protocol: ChannelProtocol,
        *,
        channels: int,
        idle_timeout: float,
        abort: Callable[[], None],
    ) -> None:
        self.backlog = Backlog()
        self.channels = [Channel(self, number) for number in range(channels)]
        self._socket = socket
        self._protocol = protocol
        self._idle = IdleWatch(idle_timeout)
        self._gone = asyncio.Event()
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
        """Of `channels` channels the client may send on the `readable`; the rest is dropped."""
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

    async def lost(self) -> None:
        """Returns when the client is gone."""
        await self._gone.wait()

    async def finish(self) -> None:
        """Closes normally after everything written; clients take any other end for a failure."""
        for channel in self.channels:
            channel.discard()
        with contextlib.suppress(ConnectionError):
            await self._socket.close(code=WSCloseCode.OK)

    async def send(self, number: int, data: bytes) -> None:
        self._idle.touch()
        if self._gone.is_set():
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
                    self._sort(payload)
                    await wait_for_room(self._socket, self.backlog)
        except ConnectionError:
            pass
        except TimeoutError:
            self._abort()
        finally:
            self._gone.set()
            for channel in self.channels:
                channel.inbox.fail(ClientGone("The client closed the connection."))

    def _sort(self, payload: bytes) -> None:
        if not payload:
            return
        if self._protocol.version >= 5 and payload[0] == CLOSE_SIGNAL:
            if len(payload) == 2 and payload[1] < len(self.channels):
                self.channels[payload[1]].inbox.end()
            return
        number, data = payload[0], payload[1:]
        if self._protocol.base64:
            number -= ord("0")
            try:
                data = base64.b64decode(data, validate=True)
            except binascii.Error:
                raise ClientGone("The client sent what is not base64.") from None
        if 0 <= number < len(self.channels):
            self.channels[number].inbox.put(data)


class WebSocketPipe:
    """The bytes of a SPDY connection in binary messages, cut anywhere."""

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
        """The WebSocket's closing handshake comes after all that was written."""


async def wait_for_room(socket: web.WebSocketResponse, backlog: Backlog) -> None:
    """While a client is not read its pings go unanswered, and it would give up after a minute.

    A pong it did not ask for is allowed and keeps it; if it is dead, the write finds out.
    """
    while backlog.full and not await backlog.shrink(PONG_INTERVAL):
        await socket.pong()


def _payload(message: WSMessage) -> bytes | None:
    """The bytes of a message; None when no more come."""
    match message.type:
        case WSMsgType.BINARY:
            return bytes(message.data)
        case WSMsgType.TEXT:
            return str(message.data).encode()
        case _:
            return None
