"""Objects of one kind, as they are and as they change: a list, then a watch, for good.

A watch that breaks off is taken up where it was; where the server no longer knows that place, or
could not take it up for long, everything is listed again. A server that does not answer is asked
again, less and less often.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Mapping, Sequence
from typing import Generic, Protocol, TypeVar

from lightkube.core.dictmixin import DictMixin

from winpod.node.api import ApiServer, Change, Refused
from winpod.windows.errors import Unavailable, WinpodError

T = TypeVar("T", bound=DictMixin)
T_contra = TypeVar("T_contra", bound=DictMixin, contravariant=True)
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 30.0
_WATCH_SECONDS = (300, 600)
_SHORT_SECONDS = 1.0
_GONE = 410
_log = logging.getLogger(__name__)


class Follower(Protocol[T_contra]):
    """Who is told. `listed` has all there are; what it does not have is gone."""

    async def listed(self, objects: Sequence[T_contra]) -> None: ...

    def changed(self, obj: T_contra) -> None: ...

    def deleted(self, obj: T_contra) -> None: ...


class Following(Generic[T]):
    def __init__(
        self,
        api: ApiServer,
        kind: type[T],
        path: str,
        follower: Follower[T],
        selector: Mapping[str, str] | None = None,
    ) -> None:
        self._api = api
        self._kind = kind
        self._path = path
        self._follower = follower
        self._selector = dict(selector or {})
        self._version = ""
        self._wait = _FIRST_WAIT
        self.is_known = asyncio.Event()

    async def run(self) -> None:
        while True:
            try:
                if not self._version:
                    await self._list()
                await self._watch()
            except Refused as error:
                if error.status == _GONE and self._version:
                    _log.info("%s is listed again: %s", self._path, error)
                    self._version = ""
                    continue
                await self._pause(error)
            except Unavailable as error:
                await self._pause(error)

    async def _list(self) -> None:
        found = await self._api.list(self._kind, self._path, self._selector)
        await self._follower.listed(found.items)
        self._version = found.version
        self._wait = _FIRST_WAIT
        self.is_known.set()

    async def _watch(self) -> None:
        seconds = random.uniform(*_WATCH_SECONDS)  # noqa: S311 - so that not all come at once
        params = {
            **self._selector,
            "resourceVersion": self._version,
            "timeoutSeconds": str(round(seconds)),
        }
        began, has_changed = time.monotonic(), False
        async for change in self._api.watch(self._kind, self._path, params):
            self._take(change)
            self._wait, has_changed = _FIRST_WAIT, True
        if not has_changed and time.monotonic() < began + _SHORT_SECONDS:
            raise Unavailable("the watch ended as soon as it had begun.")

    def _take(self, change: Change[T]) -> None:
        if change.object is not None and change.kind == "DELETED":
            self._follower.deleted(change.object)
        elif change.object is not None:
            self._follower.changed(change.object)
        self._version = change.version or self._version

    async def _pause(self, error: WinpodError) -> None:
        _log.info("%s is not followed: %s", self._path, error)
        is_back = await self._api.pause(self._wait * random.uniform(0.5, 1))  # noqa: S311
        if self._wait == _LONGEST_WAIT:
            self._version = ""
        self._wait = _FIRST_WAIT if is_back else min(self._wait * 2, _LONGEST_WAIT)


class Known(Generic[T]):
    """All objects of one kind, kept up to date; they are read by whoever waits for them once."""

    def __init__(
        self,
        api: ApiServer,
        kind: type[T],
        path: str,
        selector: Mapping[str, str] | None = None,
    ) -> None:
        self._objects: dict[tuple[str, str], T] = {}
        self._following = Following(api, kind, path, self, selector)

    async def run(self) -> None:
        await self._following.run()

    async def wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._following.is_known.wait()
        except TimeoutError:
            raise Unavailable("the API server has not told what there is.") from None

    def get(self, namespace: str, name: str) -> T | None:
        return self._objects.get((namespace, name))

    def of_namespace(self, namespace: str) -> list[T]:
        return [obj for (where, _), obj in self._objects.items() if where == namespace]

    async def listed(self, objects: Sequence[T]) -> None:
        self._objects = {_key(obj): obj for obj in objects}

    def changed(self, obj: T) -> None:
        self._objects[_key(obj)] = obj

    def deleted(self, obj: T) -> None:
        self._objects.pop(_key(obj), None)


def _key(obj: DictMixin) -> tuple[str, str]:
    metadata = getattr(obj, "metadata", None)
    return (getattr(metadata, "namespace", None) or "", getattr(metadata, "name", None) or "")
