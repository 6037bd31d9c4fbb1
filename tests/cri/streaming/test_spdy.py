"""SPDY connections over an in-memory transport."""

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.spdy_frame_strategies import encoded, frame_values
from winpod.cri.streaming import spdy_frames as frames
from winpod.cri.streaming.connection import ClientGone
from winpod.cri.streaming.spdy import SpdyConnection, SpdyStream, StreamReset


class StandInPipe:
    def __init__(self) -> None:
        self.incoming: asyncio.Queue[bytes] = asyncio.Queue()
        self.written = bytearray()
        self.aborted = False

    async def read(self) -> bytes:
        return await self.incoming.get()

    async def write(self, *parts: bytes) -> None:
        if self.aborted:
            raise ConnectionResetError("aborted")
        self.written += b"".join(parts)

    async def flush(self) -> None: ...

    def abort(self) -> None:
        self.aborted = True


async def serve_to_the_end(pipe: StandInPipe) -> None:
    """Accept and write to all streams until the client disconnects."""
    writing = []
    async with SpdyConnection.open(pipe, idle_timeout=5) as connection:
        try:
            while True:
                writing.append(asyncio.create_task(write_something(await connection.accept())))
        except ClientGone:
            await asyncio.gather(*writing)


async def write_something(stream: SpdyStream) -> None:
    try:
        await stream.write(b"some output")
        await stream.read()
    except ConnectionError:
        await stream.reset()
    await stream.close()


@given(st.lists(frame_values(st.integers(1, 9)), max_size=12))
def test_any_frames_end_the_connection_cleanly(sent: list[frames.Frame]) -> None:
    async def run() -> bytes:
        pipe, writer = StandInPipe(), frames.FrameWriter()
        for frame in sent:
            pipe.incoming.put_nowait(encoded(writer, frame))
        pipe.incoming.put_nowait(b"")
        async with asyncio.timeout(120):
            await serve_to_the_end(pipe)
        assert pipe.aborted
        return bytes(pipe.written)

    list(frames.FrameParser().feed(asyncio.run(run())))


def answers_in(pipe: StandInPipe) -> list[frames.Frame]:
    return list(frames.FrameParser().feed(bytes(pipe.written)))


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_so():  # noqa: ASYNC110 - a pipe, which tells nobody
            await asyncio.sleep(0.01)


async def open_stream(pipe: StandInPipe, connection: SpdyConnection) -> SpdyStream:
    pipe.incoming.put_nowait(frames.FrameWriter().syn_stream(1, {}))
    return await connection.accept()


async def test_write_to_closed_stream_fails() -> None:
    pipe = StandInPipe()
    async with SpdyConnection.open(pipe, idle_timeout=5) as connection:
        stream = await open_stream(pipe, connection)
        await stream.close()
        with pytest.raises(BrokenPipeError):
            await stream.write(b"late")


async def test_reset_fails_a_writer_waiting_for_window() -> None:
    pipe = StandInPipe()
    async with SpdyConnection.open(pipe, idle_timeout=5) as connection:
        pipe.incoming.put_nowait(frames.settings({frames.INITIAL_WINDOW_SIZE: 0}))
        stream = await open_stream(pipe, connection)
        writing = asyncio.create_task(stream.write(b"no room"))
        await asyncio.sleep(0.01)
        assert not writing.done()
        pipe.incoming.put_nowait(frames.rst_stream(1, frames.ResetStatus.CANCEL))
        with pytest.raises(StreamReset):
            await writing


async def test_data_before_the_end_can_be_read() -> None:
    pipe = StandInPipe()
    async with SpdyConnection.open(pipe, idle_timeout=5) as connection:
        stream = await open_stream(pipe, connection)
        pipe.incoming.put_nowait(frames.data_frame_header(1, 4, fin=True) + b"last")
        assert [await stream.read(), await stream.read()] == [b"last", b""]


async def test_streams_after_goaway_are_refused() -> None:
    pipe, writer = StandInPipe(), frames.FrameWriter()
    async with SpdyConnection.open(pipe, idle_timeout=5):
        pipe.incoming.put_nowait(frames.goaway(0, frames.GoAwayStatus.OK))
        pipe.incoming.put_nowait(writer.syn_stream(1, {}))
        refused = frames.RstStream(1, frames.ResetStatus.REFUSED_STREAM)
        await until(lambda: refused in answers_in(pipe))


async def test_streams_above_the_limit_are_refused() -> None:
    pipe, writer = StandInPipe(), frames.FrameWriter()
    async with SpdyConnection.open(pipe, idle_timeout=5, max_streams=2):
        for stream_id in (1, 3, 5):
            pipe.incoming.put_nowait(writer.syn_stream(stream_id, {}))
        await until(lambda: len(answers_in(pipe)) == 3)
        answers = answers_in(pipe)
    assert answers == [
        frames.SynReply(1, {}),
        frames.SynReply(3, {}),
        frames.RstStream(5, frames.ResetStatus.REFUSED_STREAM),
    ]
