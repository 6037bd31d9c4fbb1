"""Takes a connection from aiohttp for SPDY, once the request that upgrades it has been read.

aiohttp knows no upgrade but WebSocket's. A client speaks SPDY only after it has seen the reply, so
the connection can change hands between the two and nothing is in flight.
"""

import asyncio
import contextlib
from collections.abc import Mapping

from aiohttp import web

from winpod.cri.streaming.api import CHUNK


class TcpPipe:
    """The bytes of a connection that aiohttp no longer reads."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self) -> bytes:
        return await self._reader.read(CHUNK)

    async def write(self, *parts: bytes) -> None:
        self._writer.writelines(parts)
        await self._writer.drain()

    async def flush(self) -> None:
        self._writer.transport.set_write_buffer_limits(high=0)
        await self._writer.drain()

    def abort(self) -> None:
        self._writer.transport.abort()


class _Protocol(asyncio.StreamReaderProtocol):
    """Tells aiohttp of the connection's end, which it would wait for in vain."""

    def __init__(self, reader: asyncio.StreamReader, before: asyncio.BaseProtocol) -> None:
        super().__init__(reader)
        self._before = before

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._before.connection_lost(exc)


async def upgrade(
    request: web.Request, headers: Mapping[str, str]
) -> tuple[web.StreamResponse, TcpPipe]:
    """Answers 101 and takes the connection; the response is what the handler must return."""
    transport = request.transport
    if transport is None:
        raise ConnectionResetError("The client closed the connection.")
    before = transport.get_protocol()
    reader = asyncio.StreamReader(limit=CHUNK)
    protocol = _Protocol(reader, before)
    transport.set_protocol(protocol)
    protocol.connection_made(transport)
    if not transport.is_reading():
        transport.resume_reading()
    response = web.StreamResponse(status=101, headers={"Connection": "Upgrade", **headers})
    response.force_close()
    with contextlib.suppress(ConnectionError):
        await response.prepare(request)
    writer = asyncio.StreamWriter(transport, protocol, reader, asyncio.get_running_loop())
    return response, TcpPipe(reader, writer)
