"""One SPDY/3.1 connection with its streams, on whatever carries its bytes.

The server side only: streams are opened by the client. Windows are kept both ways as the protocol
says, with one difference: what we send is held to the client's windows only once it has sent a
WINDOW_UPDATE or an initial window size. The library all Kubernetes clients use does neither, and
would wait for ever after 64 KiB. So back pressure rests on the connection: we write no more while
the client does not read, and read no more while the runtime does not. A stream that is stuck can
thus hold up others of its connection, never the memory of the server.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Protocol

from winpod.cri.streaming import spdy_frames as frames
from winpod.cri.streaming.api import CHUNK
from winpod.cri.streaming.backlog import Backlog, Inbox
from winpod.cri.streaming.idle import IdleWatch
from winpod.cri.streaming.lost import LINGER, ClientGone
from winpod.cri.streaming.spdy_frames import Leaving, Reset

INITIAL_WINDOW = 64 * 1024
MAX_STREAMS = 4096
PROBE_INTERVAL = 5.0
GOODBYE_TIMEOUT = 2.0


class Pipe(Protocol):
    """What carries the bytes of a connection: TCP, or the messages of a WebSocket."""

    async def read(self) -> bytes:
        """Some bytes; none when the other side is gone."""

    async def write(self, *parts: bytes) -> None:
        """Returns when there is room for more. Raises ConnectionError when nobody reads."""

    async def flush(self) -> None:
        """Returns when all that was written has left this process."""

    def abort(self) -> None:
        """Drops the connection and what was not sent yet; who waits in a write fails."""


class StreamReset(ConnectionError):
    """The client took this stream back."""


class SpdyStream:
    """One stream: read, write, half-close and reset."""

    def __init__(self, connection: "SpdyConnection", opened: frames.SynStream, window: int) -> None:
        self.stream_id = opened.stream_id
        self.headers: Mapping[str, str] = opened.headers
        self.window = window
        self.inbox = Inbox(connection.backlog)
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
            count = await self._connection.allowance(self, min(len(view), CHUNK))
            self._check_writable()
            head = frames.data_head(self.stream_id, count)
            await self._connection.send(head, bytes(view[:count]))
            view = view[count:]

    async def close(self) -> None:
        if not self.finished_by_us and self.failure is None:
            self.finished_by_us = True
            self._connection.forget_if_over(self)
            with contextlib.suppress(ConnectionError):
                await self._connection.send(frames.data_head(self.stream_id, 0, fin=True))

    async def reset(self, status: Reset = Reset.CANCEL) -> None:
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
        self._connection.forget_if_over(self)

    def _check_writable(self) -> None:
        if self.failure is not None:
            raise self.failure
        if self.finished_by_us:
            raise BrokenPipeError("The stream was closed for writing.")


class SpdyConnection:
    """Reads until the client is gone; hands out the streams it opens.

    Use as `async with SpdyConnection.open(pipe, ...)`: reading goes on inside.
    """

    def __init__(self, pipe: Pipe, *, max_streams: int, idle_timeout: float) -> None:
        self.backlog = Backlog()
        self._pipe = pipe
        self._max_streams = max_streams
        self._writer = frames.FrameWriter()
        self._streams: dict[int, SpdyStream] = {}
        self._opened: asyncio.Queue[SpdyStream] = asyncio.Queue()
        self._last_stream_id = 0
        self._gone = asyncio.Event()
        self._accepting = True
        self._idle = IdleWatch(idle_timeout)
        self._client_keeps_windows = False
        self._initial_window = INITIAL_WINDOW
        self._window = INITIAL_WINDOW
        self._grown = asyncio.Event()
        self._unacknowledged = 0

    @classmethod
    @contextlib.asynccontextmanager
    async def open(
        cls, pipe: Pipe, *, idle_timeout: float, max_streams: int = MAX_STREAMS
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
        """The next stream that the client opens."""
        opened = asyncio.ensure_future(self._opened.get())
        gone = asyncio.ensure_future(self._gone.wait())
        try:
            await asyncio.wait((opened, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            if not opened.done():
                opened.cancel()
        if opened.cancelled() or not opened.done():
            raise ClientGone("The client closed the connection.")
        return opened.result()

    async def refuse_more(self) -> None:
        """Streams that nobody has accepted, and those that the client opens later, are refused."""
        self._accepting = False
        while not self._opened.empty():
            await self._opened.get_nowait().reset(Reset.REFUSED_STREAM)

    async def lost(self) -> None:
        """Returns when the client is gone."""
        await self._gone.wait()

    async def finish(self) -> None:
        """Says goodbye after everything written, and lets the client be the one who closes.

        Closing first could lose what the client has not read yet.
        """
        await self.refuse_more()
        for stream in list(self._streams.values()):
            stream.discard()
        with contextlib.suppress(ConnectionError, TimeoutError):
            await self.send(frames.goaway(self._last_stream_id, Leaving.OK))
            await self._pipe.flush()
            async with asyncio.timeout(LINGER):
                await self.lost()

    async def send(self, *parts: bytes) -> None:
        self._idle.touch()
        await self._pipe.write(*parts)

    async def allowance(self, stream: SpdyStream, wanted: int) -> int:
        """How much of `wanted` the stream may send now; waits for at least one byte."""
        while self._client_keeps_windows and stream.failure is None:
            room = min(stream.window, self._window)
            if room > 0:
                wanted = min(wanted, room)
                break
            self._grown.clear()
            await self._grown.wait()
        stream.window -= wanted
        self._window -= wanted
        return wanted

    def windows_changed(self) -> None:
        self._grown.set()

    async def acknowledge(self, stream: SpdyStream, count: int) -> None:
        """Gives the client back the room that was read, on the stream and on the connection."""
        self._unacknowledged += count
        if not stream.finished_by_client and stream.failure is None:
            await self.send(frames.window_update(stream.stream_id, count))
        if self._unacknowledged >= INITIAL_WINDOW // 2:
            count, self._unacknowledged = self._unacknowledged, 0
            await self.send(frames.window_update(0, count))

    def forget_if_over(self, stream: SpdyStream) -> None:
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
                    await self._wait_for_room()
        except frames.SpdyError:
            with contextlib.suppress(ConnectionError, TimeoutError):
                async with asyncio.timeout(GOODBYE_TIMEOUT):
                    await self.send(frames.goaway(self._last_stream_id, Leaving.PROTOCOL_ERROR))
                    await self._pipe.flush()
        except (ConnectionError, TimeoutError):
            pass
        finally:
            self._gone.set()
            self._pipe.abort()
            for stream in list(self._streams.values()):
                stream.fail(ClientGone("The client closed the connection."))

    async def _wait_for_room(self) -> None:
        """A client that dies while nobody reads it is noticed by writing to it."""
        while self.backlog.full and not await self.backlog.shrink(PROBE_INTERVAL):
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
            raise frames.SpdyError(f"Stream {opened.stream_id} is not the client's to open now.")
        self._last_stream_id = opened.stream_id
        crowd = max(len(self._streams), self._opened.qsize())
        if not self._accepting or crowd >= self._max_streams:
            await self.send(frames.rst_stream(opened.stream_id, Reset.REFUSED_STREAM))
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
            stream.inbox.end()
            self.forget_if_over(stream)

    async def _grow_window(self, update: frames.WindowUpdate) -> None:
        self._client_keeps_windows = True
        if update.stream_id == 0:
            self._window += update.delta
            if self._window > frames.MAX_WINDOW:
                raise frames.SpdyError("The client made the window of the connection too large.")
        elif stream := self._streams.get(update.stream_id):
            stream.window += update.delta
            if stream.window > frames.MAX_WINDOW:
                await stream.reset(Reset.FLOW_CONTROL_ERROR)
        self.windows_changed()

    def _apply(self, settings: frames.Settings) -> None:
        size = settings.values.get(frames.INITIAL_WINDOW_SIZE)
        if size is None:
            return
        if size > frames.MAX_WINDOW:
            raise frames.SpdyError(f"The client wants windows of {size} bytes, which cannot be.")
        self._client_keeps_windows = True
        for stream in self._streams.values():
            stream.window += size - self._initial_window
        self._initial_window = size
        self.windows_changed()
