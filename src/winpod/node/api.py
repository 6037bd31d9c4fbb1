"""One API server: requests in its own words, answers as typed objects, watches as they come.

What the server says no to is `Refused`; that it does not answer, or cannot now, is `Unavailable`,
and the same request may go through later.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import aiohttp
import msgspec
from lightkube.core.dictmixin import DictMixin
from lightkube.models import meta_v1

from winpod import __version__
from winpod.node.access import Access
from winpod.windows.errors import InvalidInput, Unavailable, WinpodError

T = TypeVar("T", bound=DictMixin)
STRATEGIC = "application/strategic-merge-patch+json"
_JSON = "application/json"
_REQUEST_SECONDS = 30
_CONNECT_SECONDS = 10
_SILENCE_SECONDS = 90
"""A watch that nothing comes on for longer is dead: bookmarks come every minute."""
_UNKNOWN_CLIENT = 401
_LATER = frozenset((_UNKNOWN_CLIENT, 408, 429, 500, 502, 503, 504))
_CONNECTIONS = 64
_PAGE = 500
_STATUSES_AT_ONCE, _EVENTS_AT_ONCE = 16, 4


class Refused(WinpodError):
    """The server's own no; `status` and `reason` are its words for it."""

    code = "FAILED_PRECONDITION"

    def __init__(self, status: int, reason: str, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.reason = reason

    @property
    def is_missing(self) -> bool:
        return self.status == 404

    @property
    def is_forbidden(self) -> bool:
        """A server that has just started forbids what it will allow once it knows everything."""
        return self.status == 403

    @property
    def is_conflict(self) -> bool:
        return self.status == 409


@dataclass(frozen=True, slots=True)
class Listed(Generic[T]):
    items: list[T]
    version: str


@dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """`object` is None for a bookmark, which only says how far the watch has come."""

    kind: str
    object: T | None
    version: str


class _Metadata(msgspec.Struct):
    resourceVersion: str = ""  # noqa: N815 - the API's word
    rest: str = msgspec.field(default="", name="continue")


class _Bare(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)


class _Items(msgspec.Struct):
    items: list[msgspec.Raw] | None = None
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class ApiServer:
    """Close it at the end. Connections are kept and shared.

    Who tells what may be out of date when it is heard takes a turn first: statuses have more than
    events, and what changes while it waits is told once.
    """

    def __init__(self, access: Access) -> None:
        self.status_turns = asyncio.Semaphore(_STATUSES_AT_ONCE)
        self.event_turns = asyncio.Semaphore(_EVENTS_AT_ONCE)
        self._access = access
        self._is_back = asyncio.Event()
        self._is_back.set()
        self._session: aiohttp.ClientSession | None = None

    @property
    def url(self) -> str:
        return self._access.url

    async def pause(self, seconds: float) -> bool:
        """Before the next try; shorter, and True, where a server that was away answers others."""
        if self._is_back.is_set():
            await asyncio.sleep(seconds)
            return False
        try:
            async with asyncio.timeout(seconds):
                await self._is_back.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        if self._session:
            await self._session.close()
            self._session = None

    async def get(self, kind: type[T], path: str) -> T | None:
        """None where there is no such object."""
        try:
            return msgspec.json.decode(await self.request("GET", path), type=kind)
        except Refused as error:
            if error.is_missing:
                return None
            raise

    async def list(self, kind: type[T], path: str, params: Mapping[str, str]) -> Listed[T]:
        """In pages, so that of many objects only some are here whole at a time."""
        items: list[T] = []
        asked = {**params, "limit": str(_PAGE)}
        while True:
            page = msgspec.json.decode(await self.request("GET", path, params=asked), type=_Items)
            items += [msgspec.json.decode(item, type=kind) for item in page.items or ()]
            if not page.metadata.rest:
                return Listed(items, page.metadata.resourceVersion)
            asked = {**params, "limit": str(_PAGE), "continue": page.metadata.rest}
            asked.pop("resourceVersion", None)

    async def create(self, path: str, body: T) -> T:
        answer = await self.request("POST", path, body)
        return msgspec.json.decode(answer, type=type(body))

    async def replace(self, path: str, body: T) -> T:
        answer = await self.request("PUT", path, body)
        return msgspec.json.decode(answer, type=type(body))

    async def patch(self, kind: type[T], path: str, body: Mapping[str, Any]) -> T:
        """A strategic merge, which leaves alone what others wrote into the same lists."""
        answer = await self.request("PATCH", path, body, content=STRATEGIC)
        return msgspec.json.decode(answer, type=kind)

    async def delete(self, path: str, options: Mapping[str, Any]) -> None:
        await self.request("DELETE", path, options)

    async def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        params: Mapping[str, str] | None = None,
        content: str = _JSON,
    ) -> bytes:
        data = None if body is None else msgspec.json.encode(body)
        timeout = aiohttp.ClientTimeout(_REQUEST_SECONDS, sock_connect=_CONNECT_SECONDS)
        async with self._asked(method, path, data, params, content, timeout) as response:
            return await response.read()

    async def watch(
        self, kind: type[T], path: str, params: Mapping[str, str]
    ) -> AsyncIterator[Change[T]]:
        """Until the server ends it; `Refused` with status 410 where the version is too old."""
        timeout = aiohttp.ClientTimeout(
            None, sock_connect=_CONNECT_SECONDS, sock_read=_SILENCE_SECONDS
        )
        params = {**params, "watch": "true", "allowWatchBookmarks": "true"}
        async with self._asked("GET", path, None, params, _JSON, timeout) as response:
            async for line in _lines(response):
                yield _change(kind, line)

    @asynccontextmanager
    async def _asked(
        self,
        method: str,
        path: str,
        data: bytes | None,
        params: Mapping[str, str] | None,
        content: str,
        limits: aiohttp.ClientTimeout,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        if _leads_astray(path):
            raise InvalidInput(f'"{path}" is not the path of an object.')
        headers = {"Content-Type": content, "Accept": _JSON, **await self._access.headers()}
        try:
            async with self._open().request(
                method,
                self._access.url + path,
                data=data,
                params=params,
                headers=headers,
                timeout=limits,
            ) as response:
                self._is_back.set()
                if response.status == _UNKNOWN_CLIENT and self._access.read_again():
                    self.reconnect()
                if response.status >= 400:
                    raise _refusal(response.status, await response.read(), path)
                yield response
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            self._is_back.clear()
            what = str(error) or type(error).__name__
            raise Unavailable(
                f"the API server at {self._access.url} does not answer: {what}."
            ) from error

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(ssl=self._access.trust, limit=_CONNECTIONS)
            self._session = aiohttp.ClientSession(
                connector=connector, headers={"User-Agent": f"winpod/{__version__}"}
            )
        return self._session

    def reconnect(self) -> None:
        """Requests to come use the access as it is now; those under way end as they are."""
        old, self._session = self._session, None
        if old:
            _ending.add(task := asyncio.create_task(_close_later(old)))
            task.add_done_callback(_ending.discard)


_ending: set[asyncio.Task[None]] = set()


async def _close_later(session: aiohttp.ClientSession) -> None:
    await asyncio.sleep(2 * _REQUEST_SECONDS)
    await session.close()


def _leads_astray(path: str) -> bool:
    """A name in it that somebody made up could lead to another object than it seems to."""
    return not {"..", "."}.isdisjoint(path.split("/")) or not {"?", "#", "%"}.isdisjoint(path)


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Of any length, which an object's may be."""
    rest = bytearray()
    async for chunk in response.content.iter_any():
        rest += chunk
        while (end := rest.find(b"\n")) >= 0:
            yield bytes(rest[:end])
            del rest[: end + 1]


def _change(kind: type[T], line: bytes) -> Change[T]:
    event = msgspec.json.decode(line, type=_Event)
    if event.type == "ERROR":
        raise _refusal(500, bytes(event.object), "the watch")
    version = msgspec.json.decode(event.object, type=_Bare).metadata.resourceVersion
    if event.type == "BOOKMARK":
        return Change(event.type, None, version)
    return Change(event.type, msgspec.json.decode(event.object, type=kind), version)


def _refusal(status: int, body: bytes, path: str) -> WinpodError:
    try:
        told = msgspec.json.decode(body, type=meta_v1.Status)
    except msgspec.DecodeError:
        told = meta_v1.Status()
    status = told.code or status
    message = told.message or f"{path} was answered with {status}"
    if status in _LATER:
        return Unavailable(f"the API server cannot now: {message}.")
    return Refused(status, told.reason or "", f"the API server refused: {message}.")
