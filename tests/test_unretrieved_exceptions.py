"""Exceptions of background tasks that are lost fail the tests."""

import asyncio
import gc

from tests.conftest import unretrieved


async def test_lost_exception_is_found() -> None:
    async def fail() -> None:
        raise ValueError("lost")

    task = asyncio.create_task(fail())
    await asyncio.wait((task,))
    del task
    gc.collect()
    found = [text for text in unretrieved.found if "ValueError: lost" in text]
    for text in found:
        unretrieved.found.remove(text)
    assert len(found) == 1
    assert "test_lost_exception_is_found" in found[0]
