"""Server side of a SPDY/3.1 connection over any byte transport.

Flow control follows the protocol with one exception: the client's windows are respected only after
it has sent a WINDOW_UPDATE or an initial window size. The library of all Kubernetes clients sends
neither, and would block after 64 KiB. Back pressure is therefore applied to the whole connection: a
stuck stream can block others of its connection, but never grows the memory of the server.

aiohttp supports no upgrade other than WebSocket, so `upgrade` takes over its connection. Clients
send SPDY only after they received the 101 response, so no data is in flight at that point.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Protocol

from aiohttp import web

from winpod.cri.streaming import spdy_frames as frames
from winpod.cri.streaming.api import CHUNK
from winpod.cri.streaming.connection import (
    LINGER,
    ClientGone,
    IdleWatch,
    ReceiveWindow,
    StreamBuffer,
)
from winpod.cri.streaming.spdy_frames import GoAwayStatus, ResetStatus

INITIAL_WINDOW = 64 * 1024
MAX_STREAMS = 4096
PROBE_INTERVAL = 5.0
GOODBYE_TIMEOUT = 2.0


class ByteTransport(Protocol):
    """Byte transport of a connection: TCP, or WebSocket messages."""

    async def read(self) -> bytes:
        """Read some bytes; empty if the peer disconnected."""

    async def write(self, *parts: bytes) -> None:
        """Write, and return when there is buffer space. Raises ConnectionError if disconnected."""

    async def flush(self) -> None:
        """Wait until all written data has been sent."""

    def abort(self) -> None:
        """Drop the connection and unsent data; pending writes fail."""


class StreamReset(ConnectionError):
    """The stream was reset."""


class SpdyStream:
    """A SPDY stream: read, write, half-close and reset."""

    def __init__(self, connection: "SpdyConnection", opened: frames.SynStream, window: int) -> None:
        self.stream_id = opened.stream_id
        self.headers: Mapping[str, str] = opened.headers
        self.window = window
        self.inbox = StreamBuffer(connection.backlog)
        self.finished_by_client = False
        self.finished_by_us = False
        self.failure: ConnectionError | None = None
        self._connection = connection
        self._unacknowledged = 0

    async def read(self, limit: int = CHUNK) -> bytes:
        data = await self.inbox.read(limit)
        self._unacknowledged += len(data)
        if self._unacknowledged >= INITIAL_WINDOW // 2:
            count, self._unacknowledged = self._unacknowledged, 0
            with contextlib.suppress(ConnectionError):
                await self._connection.acknowledge(self, count)
        return data

    async def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            count = await self._connection.wait_send_window(self, min(len(view), CHUNK))
            self._check_writable()
            head = frames.data_frame_header(self.stream_id, count)
            await self._connection.send(head, bytes(view[:count]))
            view = view[count:]

    async def close(self) -> None:
        if not self.finished_by_us and self.failure is None:
            self.finished_by_us = True
            self._connection.remove_if_closed(self)
            with contextlib.suppress(ConnectionError):
                await self._connection.send(frames.data_frame_header(self.stream_id, 0, fin=True))

    async def reset(self, status: ResetStatus = ResetStatus.CANCEL) -> None:
        if self.failure is None and not (self.finished_by_us and self.finished_by_client):
            self.fail(StreamReset("The stream was reset by this side."))
            with contextlib.suppress(ConnectionError):
                await self._connection.send(frames.rst_stream(self.stream_id, status))

    def discard(self) -> None:
        self.inbox.discard()

    def fail(self, failure: ConnectionError) -> None:
        self.failure = failure
        self.inbox.fail(failure)
        self._connection.windows_changed()
        self._connection.remove_if_closed(self)

    def _check_writable(self) -> None:
        if self.failure is not None:
            raise self.failure
        if self.finished_by_us:
            raise BrokenPipeError("The stream was closed for writing.")


class SpdyConnection:
    """A SPDY connection. `accept` returns the streams that the client opens.

    Use as `async with SpdyConnection.open(pipe, ...)`: frames are read inside the block.
    """

    def __init__(self, pipe: ByteTransport, *, max_streams: int, idle_timeout: float) -> None:
        self.backlog = ReceiveWindow()
        self._pipe = pipe
        self._max_streams = max_streams
        self._writer = frames.FrameWriter()
        self._streams: dict[int, SpdyStream] = {}
        self._opened: asyncio.Queue[SpdyStream] = asyncio.Queue()
        self._last_stream_id = 0
        self._disconnected = asyncio.Event()
        self._accepting = True
        self._idle = IdleWatch(idle_timeout)
        self._client_uses_windows = False
        self._initial_window = INITIAL_WINDOW
        self._window = INITIAL_WINDOW
        self._window_grown = asyncio.Event()
        self._unacknowledged = 0

    @classmethod
    @contextlib.asynccontextmanager
    async def open(
        cls, pipe: ByteTransport, *, idle_timeout: float, max_streams: int = MAX_STREAMS
    ) -> AsyncIterator["SpdyConnection"]:
        connection = cls(pipe, max_streams=max_streams, idle_timeout=idle_timeout)
        reading = asyncio.create_task(connection._read())
        try:
            yield connection
        finally:
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reading

    async def accept(self) -> SpdyStream:
        """Return the next stream that the client opens."""
        opened = asyncio.ensure_future(self._opened.get())
        gone = asyncio.ensure_future(self._disconnected.wait())
        try:
            await asyncio.wait((opened, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            if not opened.done():
                opened.cancel()
        if opened.cancelled() or not opened.done():
            raise ClientGone("The client closed the connection.")
        return opened.result()

    async def reject_new_streams(self) -> None:
        """Refuse streams that were not accepted yet, and new ones."""
        self._accepting = False
        while not self._opened.empty():
            await self._opened.get_nowait().reset(ResetStatus.REFUSED_STREAM)

    async def wait_disconnected(self) -> None:
        """Wait until the client disconnects."""
        await self._disconnected.wait()

    async def finish(self) -> None:
        """Send GOAWAY after all data, and wait for the client to close the connection.

        Closing it here could lose data that the client has not read yet.
        """
        await self.reject_new_streams()
        for stream in list(self._streams.values()):
            stream.discard()
        with contextlib.suppress(ConnectionError, TimeoutError):
            await self.send(frames.goaway(self._last_stream_id, GoAwayStatus.OK))
            await self._pipe.flush()
            async with asyncio.timeout(LINGER):
                await self.wait_disconnected()

    async def send(self, *parts: bytes) -> None:
        self._idle.touch()
        await self._pipe.write(*parts)

    async def wait_send_window(self, stream: SpdyStream, requested: int) -> int:
        """Wait for send window; return how many of `requested` bytes the stream may send now."""
        while self._client_uses_windows and stream.failure is None:
            available = min(stream.window, self._window)
            if available > 0:
                requested = min(requested, available)
                break
            self._window_grown.clear()
            await self._window_grown.wait()
        stream.window -= requested
        self._window -= requested
        return requested

    def windows_changed(self) -> None:
        self._window_grown.set()

    async def acknowledge(self, stream: SpdyStream, count: int) -> None:
        """Send WINDOW_UPDATE for bytes that were read, for the stream and the connection."""
        self._unacknowledged += count
        if not stream.finished_by_client and stream.failure is None:
            await self.send(frames.window_update(stream.stream_id, count))
        if self._unacknowledged >= INITIAL_WINDOW // 2:
            count, self._unacknowledged = self._unacknowledged, 0
            await self.send(frames.window_update(0, count))

    def remove_if_closed(self, stream: SpdyStream) -> None:
        if stream.failure is not None or (stream.finished_by_us and stream.finished_by_client):
            self._streams.pop(stream.stream_id, None)

    async def _read(self) -> None:
        parser = frames.FrameParser()
        try:
            async with self._idle:
                while data := await self._pipe.read():
                    self._idle.touch()
                    for frame in parser.feed(data):
                        await self._handle(frame)
                    await self._wait_for_space()
        except frames.SpdyError:
            with contextlib.suppress(ConnectionError, TimeoutError):
                async with asyncio.timeout(GOODBYE_TIMEOUT):
                    await self.send(
                        frames.goaway(self._last_stream_id, GoAwayStatus.PROTOCOL_ERROR)
                    )
                    await self._pipe.flush()
        except (ConnectionError, TimeoutError):
            pass
        finally:
            self._disconnected.set()
            self._pipe.abort()
            for stream in list(self._streams.values()):
                stream.fail(ClientGone("The client closed the connection."))

    async def _wait_for_space(self) -> None:
        """Wait for buffer space. Pings detect a client that dies while it is not read."""
        while self.backlog.full and not await self.backlog.wait_for_space(PROBE_INTERVAL):
            await self.send(frames.ping(2))

    async def _handle(self, frame: frames.Frame) -> None:
        match frame:
            case frames.SynStream():
                await self._open_stream(frame)
            case frames.Data():
                self._receive(frame)
            case frames.RstStream():
                if stream := self._streams.get(frame.stream_id):
                    stream.fail(StreamReset("The client reset the stream."))
            case frames.Ping():
                if frame.ping_id % 2:
                    await self.send(frames.ping(frame.ping_id))
            case frames.WindowUpdate():
                await self._grow_window(frame)
            case frames.Settings():
                self._apply(frame)
            case frames.Headers() | frames.SynReply():
                if frame.fin:
                    self._receive(frames.Data(frame.stream_id, b"", fin=True))
            case frames.GoAway():
                self._accepting = False

    async def _open_stream(self, opened: frames.SynStream) -> None:
        if opened.stream_id % 2 == 0 or opened.stream_id <= self._last_stream_id:
            raise frames.SpdyError(f"The client opened the invalid stream id {opened.stream_id}.")
        self._last_stream_id = opened.stream_id
        open_streams = max(len(self._streams), self._opened.qsize())
        if not self._accepting or open_streams >= self._max_streams:
            await self.send(frames.rst_stream(opened.stream_id, ResetStatus.REFUSED_STREAM))
            return
        stream = SpdyStream(self, opened, self._initial_window)
        self._streams[opened.stream_id] = stream
        if opened.fin:
            self._receive(frames.Data(opened.stream_id, b"", fin=True))
        await self.send(self._writer.syn_reply(opened.stream_id, {}))
        self._opened.put_nowait(stream)

    def _receive(self, frame: frames.Data) -> None:
        stream = self._streams.get(frame.stream_id)
        if stream is None or stream.finished_by_client:
            return
        stream.inbox.put(frame.data)
        if frame.fin:
            stream.finished_by_client = True
            stream.inbox.finish()
            self.remove_if_closed(stream)

    async def _grow_window(self, update: frames.WindowUpdate) -> None:
        self._client_uses_windows = True
        if update.stream_id == 0:
            self._window += update.delta
            if self._window > frames.MAX_WINDOW:
                raise frames.SpdyError("The client exceeded the maximum connection window.")
        elif stream := self._streams.get(update.stream_id):
            stream.window += update.delta
            if stream.window > frames.MAX_WINDOW:
                await stream.reset(ResetStatus.FLOW_CONTROL_ERROR)
        self.windows_changed()

    def _apply(self, settings: frames.Settings) -> None:
        size = settings.values.get(frames.INITIAL_WINDOW_SIZE)
        if size is None:
            return
        if size > frames.MAX_WINDOW:
            raise frames.SpdyError(
                f"The client set an invalid initial window size of {size} bytes."
            )
        self._client_uses_windows = True
        for stream in self._streams.values():
            stream.window += size - self._initial_window
        self._initial_window = size
        self.windows_changed()


class TcpTransport:
    """Transport over a TCP connection taken over from aiohttp."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self) -> bytes:
        return await self._reader.read(CHUNK)

    async def write(self, *parts: bytes) -> None:
        self._writer.writelines(parts)
        await self._writer.drain()

    async def flush(self) -> None:
        self._writer.transport.set_write_buffer_limits(high=0)
        await self._writer.drain()

    def abort(self) -> None:
        self._writer.transport.abort()


class _Protocol(asyncio.StreamReaderProtocol):
    """Forwards connection_lost to aiohttp, which otherwise waits for it forever."""

    def __init__(self, reader: asyncio.StreamReader, previous: asyncio.BaseProtocol) -> None:
        super().__init__(reader)
        self._previous = previous

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._previous.connection_lost(exc)


async def upgrade(
    request: web.Request, headers: Mapping[str, str]
) -> tuple[web.StreamResponse, TcpTransport]:
    """Answer 101 and take over the connection. The handler must return the response."""
    transport = request.transport
    if transport is None:
        raise ConnectionResetError("The client closed the connection.")
    previous = transport.get_protocol()
    reader = asyncio.StreamReader(limit=CHUNK)
    protocol = _Protocol(reader, previous)
    transport.set_protocol(protocol)
    protocol.connection_made(transport)
    if not transport.is_reading():
        transport.resume_reading()
    response = web.StreamResponse(status=101, headers={"Connection": "Upgrade", **headers})
    response.force_close()
    with contextlib.suppress(ConnectionError):
        await response.prepare(request)
    writer = asyncio.StreamWriter(transport, protocol, reader, asyncio.get_running_loop())
    return response, TcpTransport(reader, writer)
