"""Client for one API server: typed requests and watches, and unstructured objects.

A request that the server rejects raises `ApiError`. If the server is unreachable, or temporarily
cannot answer, `Unavailable` is raised, and the same request may succeed later.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Generic, NoReturn, TypeVar

import aiohttp
import msgspec

from winpod import __version__
from winpod.errors import InvalidInput, Unavailable, WinpodError
from winpod.k8s.kubeconfig import RestConfig
from winpod.k8s.models import meta_v1

T = TypeVar("T")
STRATEGIC = "application/strategic-merge-patch+json"
_JSON = "application/json"
_REQUEST_SECONDS = 30
_CONNECT_SECONDS = 10
_WATCH_TIMEOUT = 90
"""A watch without events for longer is dead, as bookmarks are sent every minute."""
_UNAUTHORIZED = 401
_RETRIABLE = frozenset((_UNAUTHORIZED, 408, 429, 500, 502, 503, 504))
_CONNECTIONS = 64
_PAGE_SIZE = 500
_MAX_STATUS_UPDATES, _MAX_EVENT_UPDATES = 16, 4


class ApiError(WinpodError):
    """The API server rejected a request; `status` and `reason` are those of its Status."""

    code = "FAILED_PRECONDITION"
    has_context = False
    """Whether the message names the action that failed."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message, reason=reason)
        self.status = status

    @property
    def is_not_found(self) -> bool:
        return self.status == 404

    @property
    def is_unauthorized(self) -> bool:
        return self.status == _UNAUTHORIZED

    @property
    def is_forbidden(self) -> bool:
        """Whether access is denied; temporarily also while a server that just started syncs."""
        return self.status == 403

    @property
    def is_conflict(self) -> bool:
        return self.status == 409


def forbidden_labels(error: WinpodError) -> set[str]:
    """Return the labels that the NodeRestriction admission plugin does not let a node set.

    They are parsed from the plugin's message, because its Status names them nowhere else.
    """
    if not (isinstance(error, ApiError) and error.is_forbidden):
        return set()
    _, found, names = error.message.partition("not allowed to set the following labels: ")
    return {name.strip() for name in names.rstrip(".").split(",")} if found else set()


@dataclass(frozen=True, slots=True)
class ObjectList(Generic[T]):
    items: list[T]
    version: str


@dataclass(frozen=True, slots=True)
class WatchEvent(Generic[T]):
    """A watch event; `object` is None for a bookmark, which only advances the version."""

    kind: str
    object: T | None
    version: str


class _Metadata(msgspec.Struct):
    resourceVersion: str = ""  # noqa: N815 - name of the API field
    rest: str = msgspec.field(default="", name="continue")


class _ObjectHead(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)


class _Items(msgspec.Struct):
    items: list[msgspec.Raw] | None = None
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class ApiClient:
    """API client with shared, persistent connections. Close it at the end.

    Senders of statuses and events acquire `status_turns` or `event_turns` first. This limits
    concurrency, and updates that change while they wait are sent once.
    """

    def __init__(self, access: RestConfig) -> None:
        self.status_turns = asyncio.Semaphore(_MAX_STATUS_UPDATES)
        self.event_turns = asyncio.Semaphore(_MAX_EVENT_UPDATES)
        self._access = access
        self._is_reachable = asyncio.Event()
        self._is_reachable.set()
        self._session: aiohttp.ClientSession | None = None

    @property
    def url(self) -> str:
        return self._access.url

    async def wait_before_retry(self, seconds: float) -> bool:
        """Wait before a retry.

        Return True early if a server that was unreachable answers another request.
        """
        if self._is_reachable.is_set():
            await asyncio.sleep(seconds)
            return False
        try:
            async with asyncio.timeout(seconds):
                await self._is_reachable.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        if self._session:
            await self._session.close()
            self._session = None

    async def get(self, kind: type[T], path: str) -> T | None:
        """Return the object, or None if it does not exist."""
        try:
            return msgspec.json.decode(await self.request("GET", path), type=kind)
        except ApiError as error:
            if error.is_not_found:
                return None
            raise

    async def list(self, kind: type[T], path: str, params: Mapping[str, str]) -> ObjectList[T]:
        """Return all objects, read in pages."""
        items: list[T] = []
        version = ""
        async for page in self.list_pages(kind, path, params):
            items += page.items
            version = page.version
        return ObjectList(items, version)

    async def list_pages(
        self, kind: type[T], path: str, params: Mapping[str, str]
    ) -> AsyncIterator[ObjectList[T]]:
        """List in pages, which limits the memory for encoded objects."""
        page_params = {**params, "limit": str(_PAGE_SIZE)}
        while True:
            page = msgspec.json.decode(
                await self.request("GET", path, params=page_params), type=_Items
            )
            items = [msgspec.json.decode(item, type=kind) for item in page.items or ()]
            yield ObjectList(items, page.metadata.resourceVersion)
            if not page.metadata.rest:
                return
            page_params = {**params, "limit": str(_PAGE_SIZE), "continue": page.metadata.rest}
            page_params.pop("resourceVersion", None)

    async def create(self, path: str, body: T) -> T:
        answer = await self.request("POST", path, body)
        return msgspec.json.decode(answer, type=type(body))

    async def replace(self, path: str, body: T) -> T:
        answer = await self.request("PUT", path, body)
        return msgspec.json.decode(answer, type=type(body))

    async def patch(self, kind: type[T], path: str, body: Mapping[str, Any]) -> T:
        """Apply a strategic merge patch, which keeps list entries of other writers."""
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
        async with self._send(method, path, data, params, content, timeout) as response:
            return await response.read()

    async def watch(
        self, kind: type[T], path: str, params: Mapping[str, str]
    ) -> AsyncIterator[WatchEvent[T]]:
        """Yield events until the server ends the watch.

        Raises `ApiError` with status 410 if the version is too old.
        """
        timeout = aiohttp.ClientTimeout(
            None, sock_connect=_CONNECT_SECONDS, sock_read=_WATCH_TIMEOUT
        )
        params = {**params, "watch": "true", "allowWatchBookmarks": "true"}
        async with self._send("GET", path, None, params, _JSON, timeout) as response:
            async for line in _lines(response):
                yield _decode_event(kind, line)

    @asynccontextmanager
    async def _send(
        self,
        method: str,
        path: str,
        data: bytes | None,
        params: Mapping[str, str] | None,
        content: str,
        limits: aiohttp.ClientTimeout,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        if _is_unsafe_path(path):
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
                server_hostname=self._access.tls_server_name or None,
                proxy=self._access.proxy or None,
            ) as response:
                self._is_reachable.set()
                if response.status == _UNAUTHORIZED and self._access.reload():
                    self.reconnect()
                if response.status >= 400:
                    _raise_error(response.status, await response.read(), path)
                yield response
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            self._is_reachable.clear()
            reason = str(error) or type(error).__name__
            raise Unavailable(
                f"the API server at {self._access.url} does not answer: {reason}."
            ) from error

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(ssl=self._access.ssl_context, limit=_CONNECTIONS)
            self._session = aiohttp.ClientSession(
                connector=connector, headers={"User-Agent": f"winpod/{__version__}"}
            )
        return self._session

    def reconnect(self) -> None:
        """Use new connections for future requests; requests in flight finish."""
        old, self._session = self._session, None
        if old:
            _closing.add(task := asyncio.create_task(_close_later(old)))
            task.add_done_callback(_closing.discard)


_closing: set[asyncio.Task[None]] = set()


async def _close_later(session: aiohttp.ClientSession) -> None:
    await asyncio.sleep(2 * _REQUEST_SECONDS)
    await session.close()


def _is_unsafe_path(path: str) -> bool:
    """Whether a path contains characters by which a crafted name could select another object."""
    return not {"..", "."}.isdisjoint(path.split("/")) or not {"?", "#", "%"}.isdisjoint(path)


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Yield lines of any length; a line is a whole object."""
    rest = bytearray()
    async for chunk in response.content.iter_any():
        rest += chunk
        while (end := rest.find(b"\n")) >= 0:
            yield bytes(rest[:end])
            del rest[: end + 1]


def _decode_event(kind: type[T], line: bytes) -> WatchEvent[T]:
    event = msgspec.json.decode(line, type=_Event)
    if event.type == "ERROR":
        _raise_error(500, bytes(event.object), "the watch")
    version = msgspec.json.decode(event.object, type=_ObjectHead).metadata.resourceVersion
    if event.type == "BOOKMARK":
        return WatchEvent(event.type, None, version)
    return WatchEvent(event.type, msgspec.json.decode(event.object, type=kind), version)


def _raise_error(status: int, body: bytes, path: str) -> NoReturn:
    """Raise `ApiError`, or `Unavailable` caused by it if the request can be retried."""
    try:
        response = msgspec.json.decode(body, type=meta_v1.Status)
    except msgspec.DecodeError:
        response = meta_v1.Status()
    status = response.code or status
    message = response.message or f"{path} returned status {status}"
    error = ApiError(status, response.reason or "", f"the API server refused: {message}.")
    if status in _RETRIABLE:
        raise Unavailable(f"the API server is temporarily unavailable: {message}.") from error
    raise error


MERGE_PATCH = "application/merge-patch+json"


class UnstructuredClient:
    """API objects as plain dictionaries; missing objects are None."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api

    async def get(self, path: str) -> dict[str, Any] | None:
        return await self._send("GET", path)

    async def merge_patch(self, path: str, body: Mapping[str, Any]) -> dict[str, Any] | None:
        """Patch an object and return the result."""
        return await self._send("PATCH", path, body)

    async def merge_patch_if_unchanged(
        self, path: str, current: Mapping[str, Any], body: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """Patch an object only if it still has the version that was read, else raise a conflict."""
        metadata = body.get("metadata", {})
        version = {"resourceVersion": current["metadata"]["resourceVersion"]}
        return await self.merge_patch(path, {**body, "metadata": {**metadata, **version}})

    async def create(self, path: str, obj: Mapping[str, Any]) -> None:
        await self._api.request("POST", path, obj)

    async def replace(self, path: str, obj: Mapping[str, Any]) -> None:
        await self._api.request("PUT", path, obj)

    async def delete(self, path: str, current: Mapping[str, Any]) -> None:
        """Delete this object, but not a newer one of the same name."""
        try:
            await self._api.delete(path, {"preconditions": {"uid": current["metadata"]["uid"]}})
        except ApiError as error:
            if not error.is_not_found:
                raise

    async def _send(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> dict[str, Any] | None:
        content = MERGE_PATCH if method == "PATCH" else "application/json"
        try:
            answer = await self._api.request(method, path, body, content=content)
        except ApiError as error:
            if error.is_not_found:
                return None
            raise
        obj: dict[str, Any] = json.loads(answer)
        return obj
