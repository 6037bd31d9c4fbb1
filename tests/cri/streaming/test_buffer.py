import asyncio

import pytest

from winpod.cri.streaming.connection import IdleWatch, ReceiveWindow, StreamBuffer


async def test_bytes_are_read_in_order_and_to_the_end() -> None:
    inbox = StreamBuffer(ReceiveWindow())
    inbox.put(b"abc")
    inbox.put(b"d")
    inbox.finish()
    inbox.put(b"too late")
    assert [await inbox.read(2) for _ in range(4)] == [b"ab", b"c", b"d", b""]


async def test_full_window_waits_for_readers_until_timeout() -> None:
    backlog = ReceiveWindow(limit=4)
    inbox = StreamBuffer(backlog)
    inbox.put(b"12345")
    assert backlog.full
    assert not await backlog.wait_for_space(0.01)
    waiting = asyncio.create_task(backlog.wait_for_space(5))
    await inbox.read(3)
    assert await waiting
    inbox.put(b"12345")
    inbox.discard()
    assert not backlog.full


async def test_failure_reaches_pending_and_later_readers() -> None:
    inbox = StreamBuffer(ReceiveWindow())
    reading = asyncio.create_task(inbox.read(1))
    await asyncio.sleep(0)
    inbox.fail(ConnectionResetError("gone"))
    for read in (reading, inbox.read(1)):
        with pytest.raises(ConnectionResetError, match="gone"):
            await read


async def test_idle_watch_times_out_without_traffic() -> None:
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
