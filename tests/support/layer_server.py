"""Stand-in for a registry that serves ranges of blobs, and can corrupt a response."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

from tests.support.registries import StandIn, serve
from winpod.images.manifests import ImageBundle

Spoil = Callable[[web.Request, bytes, int], Awaitable[web.StreamResponse | None]]
"""Function of a request, the blob's content and the start; returns None for a valid response."""


class LayerServer(StandIn):
    def __init__(self, image: ImageBundle, spoil: Spoil | None = None, digest: str = "") -> None:
        super().__init__(image, self._spoiled)
        self._spoil = spoil
        self._digest = digest

    def ranges(self, digest: str) -> list[str]:
        """Return the requested ranges of a blob; empty for the complete blob."""
        return [
            request.headers.get("Range", "")
            for request in self.requests
            if request.method == "GET" and request.path.endswith(digest)
        ]

    async def _spoiled(self, request: web.Request) -> web.StreamResponse | None:
        target = request.path.rpartition("/")[2]
        blobs = {d.digest: content for d, content in self.image.blobs}
        content = blobs.get(target)
        if request.method != "GET" or not isinstance(content, bytes):
            return None
        byte_range = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("Range", ""))
        start = int(byte_range[1]) if byte_range else 0
        if self._spoil and self._digest in ("", target):
            answer = await self._spoil(request, content, start)
            if answer:
                return answer
        if byte_range is None:
            return web.Response(body=content)
        return part(content, start, int(byte_range[2] or len(content) - 1) + 1)


def part(content: bytes, start: int, end: int) -> web.Response:
    end = min(end, len(content))
    headers = {"Content-Range": f"bytes {start}-{end - 1}/{len(content)}"}
    return web.Response(status=206, body=content[start:end], headers=headers)


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


async def broken_off(
    request: web.Request, content: bytes, start: int, end: int, kept: Path
) -> web.StreamResponse:
    """Announce the complete content, and close once the client has stored a part of it.

    A client may discard received data when the connection closes, so wait until it is stored.
    """
    response = web.StreamResponse(status=206 if start else 200)
    response.content_length = len(content) - start
    if start:
        response.headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
    await response.prepare(request)
    await response.write(content[start:end])
    for _ in range(6000):
        if end >= len(content) or _size(kept) >= end:
            break
        await asyncio.sleep(0.02)
    if request.transport:
        request.transport.abort()
    return response


@asynccontextmanager
async def serving(
    image: ImageBundle, spoil: Spoil | None = None, digest: str = ""
) -> AsyncIterator[tuple[LayerServer, str]]:
    server = LayerServer(image, spoil, digest)
    async with serve(server) as address:
        yield server, address
