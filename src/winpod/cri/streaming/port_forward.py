"""Port-forward: each connection has a data stream and an error stream."""

import asyncio
import contextlib
import logging
import socket
import struct
from collections.abc import Coroutine, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from winpod.cri.streaming.api import CHUNK, Duplex, PortForwardRequest, StreamingBackend
from winpod.cri.streaming.connection import ClientGone, cancel_on_disconnect
from winpod.cri.streaming.spdy import SpdyConnection, SpdyStream
from winpod.cri.streaming.websocket import ChannelProtocol, WebSocketConnection
from winpod.errors import WinpodError

log = logging.getLogger(__name__)

SPDY_PROTOCOL = "portforward.k8s.io"
TUNNEL_PROTOCOL = f"SPDY/3.1+{SPDY_PROTOCOL}"
PAIR_TIMEOUT = 30.0
MAX_PORTS = 127  # two channels each, and the channel number is one byte

WEBSOCKET_PROTOCOLS = {
    protocol.name: protocol
    for protocol in (
        ChannelProtocol("v4.channel.k8s.io", 4),
        ChannelProtocol("v4.base64.channel.k8s.io", 4, base64=True),
        ChannelProtocol("", 4),
    )
}


class _StreamPair:
    """Data and error stream of a connection, which arrive in any order."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.streams: dict[str, SpdyStream] = {}
        self.complete = asyncio.Event()

    async def add(self, kind: str, stream: SpdyStream) -> None:
        if kind in self.streams:
            await stream.reset()
            return
        self.streams[kind] = stream
        if len(self.streams) == 2:
            self.complete.set()


async def serve_spdy(
    connection: SpdyConnection, request: PortForwardRequest, backend: StreamingBackend
) -> None:
    """Forward connections, each in its own task, until the client disconnects."""
    pairs: dict[str, _StreamPair] = {}
    async with _TaskScope() as tasks:
        with contextlib.suppress(ClientGone):
            while True:
                stream = await connection.accept()
                port, kind = _port(stream.headers), stream.headers.get("streamtype", "")
                if port is None or kind not in ("data", "error"):
                    await stream.reset()
                    continue
                key = _pair_key(stream)
                if key not in pairs:
                    pairs[key] = _StreamPair(port)
                    tasks.start(_serve_pair(pairs, key, request.sandbox_id, backend))
                await pairs[key].add(kind, stream)


async def _serve_pair(
    pairs: dict[str, _StreamPair], key: str, sandbox_id: str, backend: StreamingBackend
) -> None:
    pair = pairs[key]
    try:
        async with asyncio.timeout(PAIR_TIMEOUT):
            await pair.complete.wait()
    except TimeoutError:
        for stream in pair.streams.values():
            await stream.reset()
        return
    finally:
        del pairs[key]
    await _forward(sandbox_id, pair.port, pair.streams["data"], pair.streams["error"], backend)


async def serve_websocket(
    connection: WebSocketConnection, request: PortForwardRequest, backend: StreamingBackend
) -> None:
    """Forward one connection per requested port until all end or the client disconnects."""
    forwards = []
    for index, port in enumerate(request.ports):
        data, error = connection.channels[2 * index : 2 * index + 2]
        forwards.append(_forward_channel(request.sandbox_id, port, data, error, backend))
    if await cancel_on_disconnect(connection, _gather(forwards)):
        await connection.finish()


async def _gather(forwards: Sequence[Coroutine[Any, Any, None]]) -> bool:
    await asyncio.gather(*forwards)
    return True


async def _forward_channel(
    sandbox_id: str, port: int, data: Duplex, error: Duplex, backend: StreamingBackend
) -> None:
    with contextlib.suppress(ConnectionError):
        for channel in (data, error):
            await channel.write(port.to_bytes(2, "little"))
        await _forward(sandbox_id, port, data, error, backend)


def _port(headers: Mapping[str, str]) -> int | None:
    text = headers.get("port", "")
    if not (text.isascii() and text.isdigit() and len(text) <= 5):
        return None
    port = int(text)
    return port if 0 < port < 65536 else None


def _pair_key(stream: SpdyStream) -> str:
    """Return the key of a pair. Without a request ID the data stream follows the error stream."""
    if request_id := stream.headers.get("requestid"):
        return request_id
    is_data = stream.headers["streamtype"] == "data"
    return f"stream {stream.stream_id - 2 if is_data else stream.stream_id}"


async def _forward(
    sandbox_id: str, port: int, data: Duplex, error: Duplex, backend: StreamingBackend
) -> None:
    error.discard()
    try:
        reader, writer = await backend.connect(sandbox_id, port)
    except (WinpodError, OSError) as failure:
        await _report_failure(sandbox_id, port, str(failure), data, error)
        return
    except Exception:
        log.exception("Error forwarding port %d to pod %s", port, sandbox_id)
        await _report_failure(
            sandbox_id, port, "internal error, see the runtime's log.", data, error
        )
        return
    sending = asyncio.create_task(_send(data, writer))
    try:
        await _receive(reader, data)
        await data.close()
        await error.close()
        with contextlib.suppress(ConnectionError):
            await sending
    except ConnectionError:
        await data.reset()
        await error.close()
    finally:
        sending.cancel()
        with contextlib.suppress(asyncio.CancelledError, ConnectionError):
            await sending
        writer.close()


async def _report_failure(
    sandbox_id: str, port: int, reason: str, data: Duplex, error: Duplex
) -> None:
    message = f"error forwarding port {port} to pod {sandbox_id}, uid : {reason}"
    with contextlib.suppress(ConnectionError):
        await error.write(message.encode())
    await error.close()
    await data.reset()


async def _send(data: Duplex, writer: asyncio.StreamWriter) -> None:
    """Copy data from the client to the pod, and propagate EOF and resets."""
    try:
        while chunk := await data.read():
            writer.write(chunk)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except ConnectionError:
        _reset(writer)
        raise


def _reset(writer: asyncio.StreamWriter) -> None:
    """Reset a connection (RST), so that the pod does not see a regular EOF."""
    if (connected := writer.get_extra_info("socket")) is not None:
        with contextlib.suppress(OSError):
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def _receive(reader: asyncio.StreamReader, data: Duplex) -> None:
    while chunk := await reader.read(CHUNK):
        await data.write(chunk)


class _TaskScope:
    """Tasks cancelled at the end of the block. A failing task does not affect the others."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            log.error("Port-forward connection failed", exc_info=failure)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        running = tuple(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
