import asyncio

import pytest

from winpod.cri.streaming.backlog import Backlog, Inbox
from winpod.cri.streaming.idle import IdleWatch


async def test_bytes_are_read_in_order_and_to_the_end() -> None:
    inbox = Inbox(Backlog())
    inbox.put(b"abc")
    inbox.put(b"d")
    inbox.end()
    inbox.put(b"too late")
    assert [await inbox.read(2) for _ in range(4)] == [b"ab", b"c", b"d", b""]


async def test_a_full_backlog_waits_for_readers_as_long_as_told() -> None:
    backlog = Backlog(limit=4)
    inbox = Inbox(backlog)
    inbox.put(b"12345")
    assert backlog.full
    assert not await backlog.shrink(0.01)
    waiting = asyncio.create_task(backlog.shrink(5))
    await inbox.read(3)
    assert await waiting
    inbox.put(b"12345")
    inbox.discard()
    assert not backlog.full


async def test_a_failure_reaches_who_waits_and_who_comes_later() -> None:
    inbox = Inbox(Backlog())
    reading = asyncio.create_task(inbox.read(1))
    await asyncio.sleep(0)
    inbox.fail(ConnectionResetError("gone"))
    for read in (reading, inbox.read(1)):
        with pytest.raises(ConnectionResetError, match="gone"):
            await read


async def test_idleness_ends_the_block_and_traffic_does_not() -> None:
    watch = IdleWatch(2.0)

    async def work() -> None:
        async with watch:
            for _ in range(6):
                await asyncio.sleep(0.4)
                watch.touch()
            touched.set()
            await asyncio.sleep(60)

    touched = asyncio.Event()
    with pytest.raises(TimeoutError):
        await work()
    assert touched.is_set()
    watch.touch()
