"""Stand-in for an API server: objects by their paths, in memory, with lists and watches.

It validates nothing and keeps all events. Requests can be set to fail a number of times.
"""

from __future__ import annotations

import asyncio
import copy
import json
import math
import ssl
from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec

from winpod.errors import WinpodError
from winpod.k8s.client import ApiClient, ApiError, WatchEvent
from winpod.k8s.kubeconfig import RestConfig


class MemoryApi(ApiClient):
    def __init__(self) -> None:
        super().__init__(RestConfig("https://127.0.0.1:1", ssl.create_default_context()))
        self.objects: dict[str, dict[str, Any]] = {}
        self.requests: list[tuple[str, str]] = []
        self._refusals: dict[str, tuple[WinpodError, float]] = {}
        self._events: list[tuple[str, str, dict[str, Any]]] = []
        self._changed = asyncio.Condition()
        self._version = 0

    def refuse(self, path: str, error: WinpodError, times: float = math.inf) -> None:
        """Fail requests for the path with the error, this many times."""
        self._refusals[path] = (error, times)

    async def put(self, path: str, obj: dict[str, Any]) -> None:
        kind = "MODIFIED" if path in self.objects else "ADDED"
        self._version += 1
        metadata = {
            "name": path.rpartition("/")[2],
            "uid": path,
            "creationTimestamp": "2026-11-17T00:00:00Z",
            **obj.get("metadata", {}),
            "resourceVersion": str(self._version),
        }
        self.objects[path] = {**obj, "metadata": metadata}
        await self._send_event(kind, path, self.objects[path])

    async def remove(self, path: str) -> None:
        await self._send_event("DELETED", path, self.objects.pop(path))

    async def wait_before_retry(self, seconds: float) -> bool:
        del seconds
        await asyncio.sleep(0.01)
        return False

    async def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        params: Mapping[str, str] | None = None,
        content: str = "",
    ) -> bytes:
        del content
        self.requests.append((method, path))
        self._raise_refusal(path)
        if method == "GET" and params is not None:
            items = [one for key, one in self.objects.items() if key.rpartition("/")[0] == path]
            listed = {"items": items, "metadata": {"resourceVersion": str(len(self._events))}}
            return json.dumps(listed).encode()
        path = path.removesuffix("/status")
        if path not in self.objects and method != "POST":
            raise ApiError(404, "NotFound", f"the API server refused: {path} is not found.")
        sent = json.loads(msgspec.json.encode(body))
        if method == "DELETE":
            await self.remove(path)
            return b"{}"
        if method == "PATCH":
            sent = _merged(self.objects[path], sent)
        if method == "POST":
            path = f"{path}/{sent['metadata']['name']}"
        if method != "GET":
            await self.put(path, sent)
        return json.dumps(self.objects[path]).encode()

    async def watch(self, kind: Any, path: str, params: Mapping[str, str]) -> AsyncIterator[Any]:
        seen = int(params["resourceVersion"])
        while True:
            async with self._changed:
                while len(self._events) == seen:
                    await self._changed.wait()
            for event, event_path, obj in self._events[seen:]:
                seen += 1
                if event_path.rpartition("/")[0] == path:
                    yield WatchEvent(event, msgspec.convert(obj, kind), str(seen))

    def _raise_refusal(self, path: str) -> None:
        error, times = self._refusals.get(path, (None, 0))
        if error is not None and times > 0:
            self._refusals[path] = (error, times - 1)
            raise error

    async def _send_event(self, kind: str, path: str, obj: dict[str, Any]) -> None:
        async with self._changed:
            self._events.append((kind, path, copy.deepcopy(obj)))
            self._changed.notify_all()


def _merged(known: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    found = dict(known)
    for key, value in change.items():
        both = isinstance(value, dict) and isinstance(known.get(key), dict)
        found[key] = _merged(known[key], value) if both else value
    return found
