"""`/exec`, `/attach`, `/portForward` and `/run`, proxied to the runtime's streaming server.

The runtime returns a URL, and the client's connection is spliced with a connection to it. SPDY and
WebSocket pass through unchanged; when either side closes, both are closed.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from aiohttp import hdrs, web
from yarl import URL

from winpod.cri.proto import api_pb2 as api
from winpod.cri.streaming import spdy
from winpod.cri.streaming.api import CHUNK
from winpod.errors import InvalidInput, NotFound, Unavailable
from winpod.k8s.pods import all_containers
from winpod.kubelet.server.context import (
    CONTAINER,
    CONTAINER_UID,
    POD,
    POD_UID,
    ServerContext,
    container_of,
    pod_of,
)

_DROPPED_HEADERS = frozenset(("host", "authorization", "content-length", "transfer-encoding"))
_HOP_HEADERS = frozenset(
    ("connection", "content-length", "transfer-encoding", "content-type", "date", "server")
)
_BODY_LIMIT = 1 << 20
_Header = tuple[str, str]


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """The streams requested by a client."""

    stdin: bool
    stdout: bool
    stderr: bool
    tty: bool


def parse_stream_options(query: dict[str, str]) -> StreamOptions:
    """Parse the query of an exec or attach request."""
    tty = query.get("tty") == "1"
    streams = StreamOptions(
        query.get("input") == "1", query.get("output") == "1", query.get("error") == "1", tty
    )
    if not (streams.stdin or streams.stdout or streams.stderr):
        raise InvalidInput("you must specify at least 1 of stdin, stdout, stderr")
    return streams


class StreamHandlers:
    def __init__(self, context: ServerContext) -> None:
        self._context = context

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
        streams = parse_stream_options(dict(request.query))
        cri_request = api.ExecRequest(
            container_id=self._running(request),
            cmd=request.query.getall("command", []),
            stdin=streams.stdin,
            stdout=streams.stdout,
            stderr=streams.stderr and not streams.tty,
            tty=streams.tty,
        )
        return await _proxy(request, (await self._context.runtime.call("Exec", cri_request)).url)

    async def _attach(self, request: web.Request) -> web.StreamResponse:
        """Attach to a container; its spec decides about the TTY, not the request."""
        streams = parse_stream_options(dict(request.query))
        container = self._running(request)
        tty = self._has_terminal(request)
        cri_request = api.AttachRequest(
            container_id=container,
            stdin=streams.stdin,
            stdout=streams.stdout,
            stderr=streams.stderr and not tty,
            tty=tty,
        )
        return await _proxy(request, (await self._context.runtime.call("Attach", cri_request)).url)

    async def _port_forward(self, request: web.Request) -> web.StreamResponse:
        newest = pod_of(request, self._context.pods).runtime_pod.newest_sandbox
        if newest is None or not newest.is_ready:
            raise NotFound(f'pod "{request.match_info["pod"]}" is not running')
        try:
            ports = [int(port) for port in request.query.getall("port", [])]
        except ValueError as error:
            raise InvalidInput(f"The port is not a number: {error}.") from None
        cri_request = api.PortForwardRequest(pod_sandbox_id=newest.id, port=ports)
        return await _proxy(
            request, (await self._context.runtime.call("PortForward", cri_request)).url
        )

    async def _run(self, request: web.Request) -> web.StreamResponse:
        cri_request = api.ExecSyncRequest(
            container_id=self._running(request), cmd=request.query.get("cmd", "").split(" ")
        )
        answer = await self._context.runtime.call("ExecSync", cri_request, seconds=None)
        output = answer.stdout + answer.stderr
        if answer.exit_code:
            message = f"command terminated with exit code {answer.exit_code}\n".encode()
            return web.Response(status=500, body=output + message, content_type="text/plain")
        return web.Response(body=output, content_type="text/plain")

    def _running(self, request: web.Request) -> str:
        entry = pod_of(request, self._context.pods)
        last = entry.runtime_pod.latest_container(container_of(request, entry))
        if last is None or not last.is_running:
            raise NotFound(f'container not found ("{request.match_info["container"]}")')
        return last.id

    def _has_terminal(self, request: web.Request) -> bool:
        name = request.match_info["container"]
        pod = pod_of(request, self._context.pods).pod
        return any(c.tty for c in all_containers(pod) if c.name == name)


async def _proxy(request: web.Request, url: str) -> web.StreamResponse:
    """Proxy the client's connection to the runtime's streaming URL."""
    if "upgrade" not in request.headers.get(hdrs.CONNECTION, "").lower():
        raise InvalidInput("Upgrade request required")
    target = URL(url)
    try:
        reader, writer = await asyncio.open_connection(target.host, target.port, limit=CHUNK)
    except OSError as error:
        raise Unavailable(
            f"Failed to connect to the runtime at {target.authority}: {error}."
        ) from None
    try:
        writer.write(_head(request, target))
        try:
            status, headers = _parse_head(await reader.readuntil(b"\r\n\r\n"))
        except (OSError, EOFError, ValueError) as error:
            raise Unavailable(
                f"The runtime at {target.authority} closed the connection: {error}."
            ) from None
        if status != 101:
            body = await _body(reader, headers)
            return web.Response(status=status, headers=_forwarded_headers(headers), body=body)
        response, client = await spdy.upgrade(request, dict(_forwarded_headers(headers)))
        await _splice(client, reader, writer)
        return response
    finally:
        writer.transport.abort()


def _head(request: web.Request, target: URL) -> bytes:
    """Return the client's request for the runtime, without its credentials."""
    lines = [f"{request.method} {target.raw_path_qs} HTTP/1.1".encode()]
    lines.append(f"Host: {target.authority}".encode())
    lines += [
        name + b": " + value
        for name, value in request.raw_headers
        if name.decode("latin-1").lower() not in _DROPPED_HEADERS
    ]
    return b"\r\n".join([*lines, b"", b""])


def _parse_head(head: bytes) -> tuple[int, list[_Header]]:
    first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    headers = ((name, value.strip()) for name, _, value in (line.partition(":") for line in lines))
    return int(first.split(" ")[1]), list(headers)


def _forwarded_headers(headers: list[_Header]) -> list[_Header]:
    return [(name, value) for name, value in headers if name.lower() not in _HOP_HEADERS]


async def _body(reader: asyncio.StreamReader, headers: list[_Header]) -> bytes:
    sizes = (value for name, value in headers if name.lower() == "content-length")
    try:
        return await reader.readexactly(min(int(next(sizes, "0")), _BODY_LIMIT))
    except asyncio.IncompleteReadError as error:
        return error.partial


async def _splice(
    client: spdy.TcpTransport, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
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
