"""Stand-in for an API server: lists given objects, and sends given watch events."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from tests.support.registries import Handler, serve
from winpod.k8s.client import ApiClient
from winpod.k8s.kubeconfig import RestConfig


class StandInApi:
    """API with `objects` by the path of their list; other paths are not found.

    Requests for a path in `silent` are not answered until its event is set.
    """

    def __init__(self, objects: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        self.objects = objects
        self.silent: dict[str, asyncio.Event] = {}
        self._watches: list[tuple[str, asyncio.Queue[bytes]]] = []

    def tell(self, path: str, kind: str, obj: Mapping[str, Any]) -> None:
        for watched, queue in self._watches:
            if watched == path:
                queue.put_nowait(json.dumps({"type": kind, "object": obj}).encode() + b"\n")

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        if resumed := self.silent.get(request.path):
            await resumed.wait()
        if request.path not in self.objects:
            return web.json_response({"kind": "Status", "message": "there is none"}, status=404)
        if "watch" in request.query:
            return await self._watch(request)
        items = self.objects[request.path]
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": list(items)})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        self._watches.append((request.path, queue))
        while True:
            await response.write(await queue.get())


@asynccontextmanager
async def reached(stand_in: Handler) -> AsyncIterator[ApiClient]:
    async with serve(stand_in) as address:
        api = ApiClient(RestConfig(f"http://{address}", ssl.create_default_context()))
        try:
            yield api
        finally:
            await api.close()
