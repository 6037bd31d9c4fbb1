"""Reflector and informer: list and watch objects of one kind.

A broken watch resumes at its last version. If the server no longer has that version, or the watch
could not be resumed for long, the objects are listed again. Failures are retried with backoff.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Mapping, Sequence
from typing import Generic, Protocol, TypeVar

import msgspec

from winpod.concurrency import Backoff
from winpod.errors import Unavailable, WinpodError
from winpod.k8s.client import ApiClient, ApiError, WatchEvent

T = TypeVar("T", bound=msgspec.Struct)
T_contra = TypeVar("T_contra", bound=msgspec.Struct, contravariant=True)
_FIRST_WAIT, _MAX_WAIT = 0.5, 30.0
_WATCH_SECONDS = (300, 600)
_MIN_WATCH_SECONDS = 1.0
_GONE = 410
_log = logging.getLogger(__name__)


class EventHandler(Protocol[T_contra]):
    """Receives changes. `on_list` gets all objects; objects missing from it are deleted."""

    async def on_list(self, objects: Sequence[T_contra]) -> None: ...

    def on_change(self, obj: T_contra) -> None: ...

    def on_delete(self, obj: T_contra) -> None: ...


class Reflector(Generic[T]):
    def __init__(
        self,
        api: ApiClient,
        kind: type[T],
        path: str,
        handler: EventHandler[T],
        selector: Mapping[str, str] | None = None,
    ) -> None:
        self._api = api
        self._kind = kind
        self._path = path
        self._handler = handler
        self._selector = dict(selector or {})
        self._version = ""
        self._backoff = Backoff(_FIRST_WAIT, _MAX_WAIT)
        self.is_known = asyncio.Event()

    async def run(self) -> None:
        while True:
            try:
                if not self._version:
                    await self._list()
                await self._watch()
            except ApiError as error:
                if error.status == _GONE and self._version:
                    _log.info("Watch of %s expired, listing again: %s", self._path, error)
                    self._version = ""
                    continue
                await self._pause(error)
            except Unavailable as error:
                await self._pause(error)

    async def _list(self) -> None:
        listed = await self._api.list(self._kind, self._path, self._selector)
        await self._handler.on_list(listed.items)
        self._version = listed.version
        self._backoff.reset()
        self.is_known.set()

    async def _watch(self) -> None:
        seconds = random.uniform(*_WATCH_SECONDS)  # noqa: S311 - spread out reconnects
        params = {
            **self._selector,
            "resourceVersion": self._version,
            "timeoutSeconds": str(round(seconds)),
        }
        started_at, has_changed = time.monotonic(), False
        async for change in self._api.watch(self._kind, self._path, params):
            self._handle(change)
            self._backoff.reset()
            has_changed = True
        if not has_changed and time.monotonic() < started_at + _MIN_WATCH_SECONDS:
            raise Unavailable("the watch ended immediately.")

    def _handle(self, change: WatchEvent[T]) -> None:
        if change.object is not None and change.kind == "DELETED":
            self._handler.on_delete(change.object)
        elif change.object is not None:
            self._handler.on_change(change.object)
        self._version = change.version or self._version

    async def _pause(self, error: WinpodError) -> None:
        _log.info("Failed to list and watch %s: %s", self._path, error)
        wait = self._backoff.next()
        is_back = await self._api.wait_before_retry(wait * random.uniform(0.5, 1))  # noqa: S311
        if wait == _MAX_WAIT:
            self._version = ""
        if is_back:
            self._backoff.reset()


class Informer(Generic[T]):
    """Cache of all objects of one kind, kept up to date by a reflector."""

    def __init__(
        self,
        api: ApiClient,
        kind: type[T],
        path: str,
        selector: Mapping[str, str] | None = None,
    ) -> None:
        self._objects: dict[tuple[str, str], T] = {}
        self._reflector = Reflector(api, kind, path, self, selector)

    async def run(self) -> None:
        await self._reflector.run()

    async def wait_synced(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._reflector.is_known.wait()
        except TimeoutError:
            raise Unavailable("the objects have not been listed from the API server yet.") from None

    def get(self, namespace: str, name: str) -> T | None:
        return self._objects.get((namespace, name))

    def list_namespace(self, namespace: str) -> list[T]:
        return [
            obj for (key_namespace, _), obj in self._objects.items() if key_namespace == namespace
        ]

    async def on_list(self, objects: Sequence[T]) -> None:
        self._objects = {_key(obj): obj for obj in objects}

    def on_change(self, obj: T) -> None:
        self._objects[_key(obj)] = obj

    def on_delete(self, obj: T) -> None:
        self._objects.pop(_key(obj), None)


def _key(obj: msgspec.Struct) -> tuple[str, str]:
    metadata = getattr(obj, "metadata", None)
    return (getattr(metadata, "namespace", None) or "", getattr(metadata, "name", None) or "")
