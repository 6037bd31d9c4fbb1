"""One change of a thing at a time: who comes second waits, and finds it done."""

from __future__ import annotations

import asyncio
from weakref import WeakValueDictionary


class Turns:
    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def of(self, id_: str) -> asyncio.Lock:
        """Held by whoever changes the thing, and only as long."""
        return self._locks.setdefault(id_, asyncio.Lock())
