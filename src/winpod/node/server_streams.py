"""`/exec`, `/attach`, `/portForward` and `/run`: what happens inside, through the runtime.

The runtime is asked for a URL, and the client's connection is joined to it: whatever the two speak
passes byte for byte, SPDY or WebSocket, and either's end is the end.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from aiohttp import hdrs, web
from yarl import URL

from winpod.cri.proto import api_pb2 as api
from winpod.cri.streaming import tcp
from winpod.cri.streaming.api import CHUNK
from winpod.node.pods import all_containers
from winpod.node.server_parts import (
    CONTAINER,
    CONTAINER_UID,
    POD,
    POD_UID,
    Parts,
    container_of,
    pod_of,
)
from winpod.windows.errors import InvalidInput, NotFound, Unavailable

_OWN_HEADERS = frozenset(("host", "authorization", "content-length", "transfer-encoding"))
_HOP_HEADERS = frozenset(
    ("connection", "content-length", "transfer-encoding", "content-type", "date", "server")
)
_BODY_LIMIT = 1 << 20
_Header = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Asked:
    """The streams that a client wants, in a query's words."""

    stdin: bool
    stdout: bool
    stderr: bool
    tty: bool


def asked(query: dict[str, str]) -> Asked:
    """A terminal has one stream of output."""
    tty = query.get("tty") == "1"
    streams = Asked(
        query.get("input") == "1", query.get("output") == "1", query.get("error") == "1", tty
    )
    if not (streams.stdin or streams.stdout or streams.stderr):
        raise InvalidInput("you must specify at least 1 of stdin, stdout, stderr")
    return streams


class StreamPages:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def routes(self) -> list[web.RouteDef]:
        paths = {
            f"/exec/{CONTAINER}": self._exec,
            f"/exec/{CONTAINER_UID}": self._exec,
            f"/attach/{CONTAINER}": self._attach,
            f"/attach/{CONTAINER_UID}": self._attach,
            f"/portForward/{POD}": self._port_forward,
            f"/portForward/{POD_UID}": self._port_forward,
        }
        routes = [
            web.route(method, path, handler)
            for path, handler in paths.items()
            for method in (hdrs.METH_GET, hdrs.METH_POST)
        ]
        return [
            *routes,
            web.post(f"/run/{CONTAINER}", self._run),
            web.post(f"/run/{CONTAINER_UID}", self._run),
        ]

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        streams = asked(dict(request.query))
        wish = api.ExecRequest(
            container_id=self._running(request),
            cmd=request.query.getall("command", []),
            stdin=streams.stdin,
            stdout=streams.stdout,
            stderr=streams.stderr and not streams.tty,
            tty=streams.tty,
        )
        return await _joined(request, (await self._parts.client.call("Exec", wish)).url)

    async def _attach(self, request: web.Request) -> web.StreamResponse:
        """Whether there is a terminal was decided when the container was made."""
        streams = asked(dict(request.query))
        container = self._running(request)
        tty = self._has_terminal(request)
        wish = api.AttachRequest(
            container_id=container,
            stdin=streams.stdin,
            stdout=streams.stdout,
            stderr=streams.stderr and not tty,
            tty=tty,
        )
        return await _joined(request, (await self._parts.client.call("Attach", wish)).url)

    async def _port_forward(self, request: web.Request) -> web.StreamResponse:
        newest = pod_of(request, self._parts.pods).seen.newest
        if newest is None or not newest.is_ready:
            raise NotFound(f'pod "{request.match_info["pod"]}" is not running')
        try:
            ports = [int(port) for port in request.query.getall("port", [])]
        except ValueError as error:
            raise InvalidInput(f"a port is not a number: {error}.") from None
        wish = api.PortForwardRequest(pod_sandbox_id=newest.id, port=ports)
        return await _joined(request, (await self._parts.client.call("PortForward", wish)).url)

    async def _run(self, request: web.Request) -> web.StreamResponse:
        wish = api.ExecSyncRequest(
            container_id=self._running(request), cmd=request.query.get("cmd", "").split(" ")
        )
        answer = await self._parts.client.call("ExecSync", wish)
        output = answer.stdout + answer.stderr
        if answer.exit_code:
            words = f"command terminated with exit code {answer.exit_code}\n".encode()
            return web.Response(status=500, body=output + words, content_type="text/plain")
        return web.Response(body=output, content_type="text/plain")

    def _running(self, request: web.Request) -> str:
        found = pod_of(request, self._parts.pods)
        last = found.seen.last(container_of(request, found))
        if last is None or not last.is_running:
            raise NotFound(f'container not found ("{request.match_info["container"]}")')
        return last.id

    def _has_terminal(self, request: web.Request) -> bool:
        name = request.match_info["container"]
        pod = pod_of(request, self._parts.pods).pod
        return any(one.tty for one in all_containers(pod) if one.name == name)


async def _joined(request: web.Request, url: str) -> web.StreamResponse:
    """The client's connection, joined to the runtime's at that URL."""
    if "upgrade" not in request.headers.get(hdrs.CONNECTION, "").lower():
        raise InvalidInput("Upgrade request required")
    where = URL(url)
    try:
        reader, writer = await asyncio.open_connection(where.host, where.port, limit=CHUNK)
    except OSError as error:
        raise Unavailable(f"the runtime does not answer at {where.authority}: {error}.") from None
    try:
        writer.write(_head(request, where))
        try:
            status, headers = _parse_head(await reader.readuntil(b"\r\n\r\n"))
        except (OSError, EOFError, ValueError) as error:
            raise Unavailable(f"the runtime broke off at {where.authority}: {error}.") from None
        if status != 101:
            body = await _body(reader, headers)
            return web.Response(status=status, headers=_passed_on(headers), body=body)
        response, client = await tcp.upgrade(request, dict(_passed_on(headers)))
        await _splice(client, reader, writer)
        return response
    finally:
        writer.transport.abort()


def _head(request: web.Request, where: URL) -> bytes:
    """The client's own request, for the runtime; whom the client is, is none of its business."""
    lines = [f"{request.method} {where.raw_path_qs} HTTP/1.1".encode()]
    lines.append(f"Host: {where.authority}".encode())
    lines += [
        name + b": " + value
        for name, value in request.raw_headers
        if name.decode("latin-1").lower() not in _OWN_HEADERS
    ]
    return b"\r\n".join([*lines, b"", b""])


def _parse_head(head: bytes) -> tuple[int, list[_Header]]:
    first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    headers = ((name, value.strip()) for name, _, value in (line.partition(":") for line in lines))
    return int(first.split(" ")[1]), list(headers)


def _passed_on(headers: list[_Header]) -> list[_Header]:
    return [(name, value) for name, value in headers if name.lower() not in _HOP_HEADERS]


async def _body(reader: asyncio.StreamReader, headers: list[_Header]) -> bytes:
    sizes = (value for name, value in headers if name.lower() == "content-length")
    try:
        return await reader.readexactly(min(int(next(sizes, "0")), _BODY_LIMIT))
    except asyncio.IncompleteReadError as error:
        return error.partial


async def _splice(
    client: tcp.TcpPipe, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    async def up() -> None:
        while data := await client.read():
            writer.write(data)
            await writer.drain()

    async def down() -> None:
        while data := await reader.read(CHUNK):
            await client.write(data)
        await client.flush()

    tasks = {asyncio.create_task(up()), asyncio.create_task(down())}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
