import asyncio
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from winpod.cri.streaming import Size
from winpod.cri.streaming.backlog import Backlog, Inbox
from winpod.cri.streaming.resize import NotASize, SizeDecoder, Sizes


class Stream:
    def __init__(self) -> None:
        self.inbox = Inbox(Backlog())

    async def read(self, limit: int = 65536) -> bytes:
        return await self.inbox.read(limit)


def test_sizes_follow_each_other_and_are_cut_anywhere() -> None:
    decoder = SizeDecoder()
    text = b'{"Width":80,"Height":24}{"Height":30,"Width":100}\n{"Width":0,"Height":5}'
    got = [size for byte in text for size in decoder.feed(bytes([byte]))]
    assert got == [Size(80, 24), Size(100, 30)]


@given(st.binary(max_size=400))
def test_any_bytes_are_sizes_or_are_refused(data: bytes) -> None:
    with contextlib.suppress(NotASize):
        SizeDecoder().feed(data)


@pytest.mark.parametrize(
    "data", [b"1}", b'{"Width":"80","Height":24}', b'{"Width":80}', b" " * 300, b"[" * 300 + b"}"]
)
def test_what_is_no_size_is_refused(data: bytes) -> None:
    with pytest.raises(NotASize):
        SizeDecoder().feed(data)


async def test_who_looks_late_sees_the_newest_size() -> None:
    stream, sizes = Stream(), Sizes()
    stream.inbox.put(b'{"Width":80,"Height":24}{"Width":100,"Height":30}')
    following = asyncio.create_task(sizes.follow(stream))
    assert await anext(sizes) == Size(100, 30)
    stream.inbox.end()
    await following
    assert [size async for size in sizes] == []
