"""Work done for a client is dropped when the client is gone."""

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

LINGER = 60.0
"""How long a client may take to close after it was told that all is over."""


class ClientGone(ConnectionError):
    """The client closed the connection, or it broke."""


class Connection(Protocol):
    async def lost(self) -> None:
        """Returns when the client is gone."""

    async def finish(self) -> None:
        """Ends the connection so that the client still gets all that was written."""


async def unless_lost(connection: Connection, work: Coroutine[Any, Any, T]) -> T | None:
    """What `work` returns; None if the client was gone first, when `work` is cancelled."""
    working = asyncio.create_task(work)
    gone = asyncio.create_task(connection.lost())
    try:
        await asyncio.wait((working, gone), return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        gone.cancel()
        working.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await working
