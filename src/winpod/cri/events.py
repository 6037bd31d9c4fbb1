"""Container events, for everybody who listens at the time they happen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from winpod.cri.proto import api_pb2 as api

_BACKLOG = 1000


class Events:
    """A listener that does not keep up loses the oldest events, and the runtime loses nothing."""

    def __init__(self) -> None:
        self._listeners: set[asyncio.Queue[api.ContainerEventResponse | None]] = set()

    @property
    def has_listeners(self) -> bool:
        return bool(self._listeners)

    def tell(self, event: api.ContainerEventResponse | None) -> None:
        for listener in self._listeners:
            if listener.full():
                listener.get_nowait()
            listener.put_nowait(event)

    def close(self) -> None:
        """Nobody waits for events any longer."""
        self.tell(None)

    async def listen(self) -> AsyncIterator[api.ContainerEventResponse]:
        queue: asyncio.Queue[api.ContainerEventResponse | None] = asyncio.Queue(_BACKLOG)
        self._listeners.add(queue)
        try:
            while event := await queue.get():
                yield event
        finally:
            self._listeners.discard(queue)
