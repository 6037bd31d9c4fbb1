"""The connection itself, over a pipe in memory that stands in for the network."""

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cri.streaming.frame_strategies import encoded, frame_values
from winpod.cri.streaming import spdy_frames as frames
from winpod.cri.streaming.lost import ClientGone
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
    """Accepts and writes to all streams until the client is gone."""
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
def test_any_frames_leave_a_connection_that_ends_in_order(sent: list[frames.Frame]) -> None:
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


async def test_a_stream_closed_for_writing_takes_no_more() -> None:
    pipe = StandInPipe()
    async with SpdyConnection.open(pipe, idle_timeout=5) as connection:
        stream = await open_stream(pipe, connection)
        await stream.close()
        with pytest.raises(BrokenPipeError):
            await stream.write(b"late")


async def test_a_reset_reaches_who_waits_for_a_window() -> None:
    pipe = StandInPipe()
    async with SpdyConnection.open(pipe, idle_timeout=5) as connection:
        pipe.incoming.put_nowait(frames.settings({frames.INITIAL_WINDOW_SIZE: 0}))
        stream = await open_stream(pipe, connection)
        writing = asyncio.create_task(stream.write(b"no room"))
        await asyncio.sleep(0.01)
        assert not writing.done()
        pipe.incoming.put_nowait(frames.rst_stream(1, frames.Reset.CANCEL))
        with pytest.raises(StreamReset):
            await writing


async def test_what_came_before_the_end_can_still_be_read() -> None:
    pipe = StandInPipe()
    async with SpdyConnection.open(pipe, idle_timeout=5) as connection:
        stream = await open_stream(pipe, connection)
        pipe.incoming.put_nowait(frames.data_head(1, 4, fin=True) + b"last")
        assert [await stream.read(), await stream.read()] == [b"last", b""]


async def test_after_goaway_the_client_opens_no_more_streams() -> None:
    pipe, writer = StandInPipe(), frames.FrameWriter()
    async with SpdyConnection.open(pipe, idle_timeout=5):
        pipe.incoming.put_nowait(frames.goaway(0, frames.Leaving.OK))
        pipe.incoming.put_nowait(writer.syn_stream(1, {}))
        refused = frames.RstStream(1, frames.Reset.REFUSED_STREAM)
        await until(lambda: refused in answers_in(pipe))


async def test_streams_beyond_a_number_are_refused() -> None:
    pipe, writer = StandInPipe(), frames.FrameWriter()
    async with SpdyConnection.open(pipe, idle_timeout=5, max_streams=2):
        for stream_id in (1, 3, 5):
            pipe.incoming.put_nowait(writer.syn_stream(stream_id, {}))
        await until(lambda: len(answers_in(pipe)) == 3)
        answers = answers_in(pipe)
    assert answers == [
        frames.SynReply(1, {}),
        frames.SynReply(3, {}),
        frames.RstStream(5, frames.Reset.REFUSED_STREAM),
    ]
