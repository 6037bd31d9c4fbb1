import asyncio
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from winpod.cri.streaming import StreamTerminalSize
from winpod.cri.streaming.connection import ReceiveWindow, StreamBuffer
from winpod.cri.streaming.remote_command import InvalidTerminalSize, ResizeQueue, SizeDecoder


class Stream:
    def __init__(self) -> None:
        self.inbox = StreamBuffer(ReceiveWindow())

    async def read(self, limit: int = 65536) -> bytes:
        return await self.inbox.read(limit)


def test_sizes_are_decoded_across_chunks() -> None:
    decoder = SizeDecoder()
    text = b'{"Width":80,"Height":24}{"Height":30,"Width":100}\n{"Width":0,"Height":5}'
    got = [size for byte in text for size in decoder.feed(bytes([byte]))]
    assert got == [StreamTerminalSize(80, 24), StreamTerminalSize(100, 30)]


@given(st.binary(max_size=400))
def test_any_bytes_are_sizes_or_an_error(data: bytes) -> None:
    with contextlib.suppress(InvalidTerminalSize):
        SizeDecoder().feed(data)


@pytest.mark.parametrize(
    "data", [b"1}", b'{"Width":"80","Height":24}', b'{"Width":80}', b" " * 300, b"[" * 300 + b"}"]
)
def test_invalid_size_is_rejected(data: bytes) -> None:
    with pytest.raises(InvalidTerminalSize):
        SizeDecoder().feed(data)


async def test_late_reader_gets_the_latest_size() -> None:
    stream, sizes = Stream(), ResizeQueue()
    stream.inbox.put(b'{"Width":80,"Height":24}{"Width":100,"Height":30}')
    following = asyncio.create_task(sizes.read_from(stream))
    assert await anext(sizes) == StreamTerminalSize(100, 30)
    stream.inbox.finish()
    await following
    assert [size async for size in sizes] == []
