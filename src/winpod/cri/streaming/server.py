"""The HTTP server that clients of exec, attach and port-forward connect to.

kubelet and crictl ask the CRI for a URL and connect to it. A URL without a token that was issued
does nothing, and whatever happens, a client gets a sentence and never a traceback.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from ipaddress import ip_address

from aiohttp import hdrs, web
from yarl import URL

from winpod.cri.streaming import commands, port_forward, tcp, websocket
from winpod.cri.streaming.api import (
    AttachRequest,
    Backend,
    ExecRequest,
    PortForwardRequest,
    Request,
)
from winpod.cri.streaming.spdy import SpdyConnection
from winpod.cri.streaming.tokens import TIME_TO_LIVE, Tokens
from winpod.cri.streaming.websocket import ChannelProtocol, WebSocketConnection, WebSocketPipe
from winpod.windows.errors import InvalidInput, Unavailable

log = logging.getLogger(__name__)

IDLE_TIMEOUT = 4 * 60 * 60.0
MAX_SESSIONS = 1000
SPDY = "SPDY/3.1"
PROTOCOL_VERSION = "X-Stream-Protocol-Version"
ACCEPTED_VERSIONS = "X-Accepted-Stream-Protocol-Versions"
COMMAND_STREAMS = 16

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class StreamingServer:
    """Start it, ask it for URLs, close it. Closing ends every session it serves."""

    def __init__(
        self,
        backend: Backend,
        *,
        idle_timeout: float = IDLE_TIMEOUT,
        max_sessions: int = MAX_SESSIONS,
        during: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """`during` is entered for as long as a session goes on."""
        self._backend = backend
        self._during = during
        self._idle_timeout = idle_timeout
        self._max_sessions = max_sessions
        self._tokens = Tokens()
        self._sessions: set[asyncio.Task[object]] = set()
        self._runner: web.AppRunner | None = None
        self._base: URL | None = None

    async def start(self, host: str = "127.0.0.1", port: int = 0, *, advertise: str = "") -> None:
        """Listens; `advertise` is the host in URLs where it is not the one listened on."""
        if not advertise and ip_address(host).is_unspecified:
            raise InvalidInput(
                f"The streaming server cannot listen on {host} without a host for its URLs.",
                "Give the address that its clients reach it at.",
            )
        application = web.Application()
        kinds = {"exec": ExecRequest, "attach": AttachRequest, "portforward": PortForwardRequest}
        for name, kind in kinds.items():
            for method in (hdrs.METH_GET, hdrs.METH_POST):
                application.router.add_route(method, f"/{name}/{{token}}", self._handler(kind))
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        try:
            await site.start()
        except OSError as error:
            await self.close()
            raise Unavailable(
                f"The streaming server cannot listen on {host} port {port}: {error.strerror}.",
                "Free the port or choose another.",
            ) from error
        bound = self._runner.addresses[0][1]
        self._base = URL.build(scheme="http", host=advertise or host, port=bound)

    async def close(self) -> None:
        sessions = tuple(self._sessions)
        for session in sessions:
            session.cancel()
        await asyncio.gather(*sessions, return_exceptions=True)
        if self._runner is not None:
            await self._runner.cleanup()
        self._runner = self._base = None

    def exec_url(
        self,
        container_id: str,
        command: Sequence[str],
        *,
        stdin: bool = False,
        stdout: bool = False,
        stderr: bool = False,
        tty: bool = False,
    ) -> str:
        """Where a client can run `command`, once, within a minute."""
        _check_streams(container_id, stdin, stdout, stderr, tty)
        request = ExecRequest(container_id, tuple(command), stdin, stdout, stderr, tty)
        return self._url("exec", request)

    def attach_url(
        self,
        container_id: str,
        *,
        stdin: bool = False,
        stdout: bool = False,
        stderr: bool = False,
        tty: bool = False,
    ) -> str:
        """Where a client can attach to the container's own process, once, within a minute."""
        _check_streams(container_id, stdin, stdout, stderr, tty)
        return self._url("attach", AttachRequest(container_id, stdin, stdout, stderr, tty))

    def port_forward_url(self, sandbox_id: str, ports: Iterable[int] = ()) -> str:
        """Where a client can reach ports of the pod, once, within a minute.

        `ports` are those of the older WebSocket protocol; with SPDY the client names them later.
        """
        if not sandbox_id:
            raise InvalidInput("missing required pod_sandbox_id: a port-forward names its pod.")
        ports = tuple(ports)
        if len(ports) > port_forward.MAX_PORTS or not all(0 < port < 65536 for port in ports):
            raise InvalidInput(
                f"The ports to forward must be from 1 to 65535, {port_forward.MAX_PORTS} at most."
            )
        return self._url("portforward", PortForwardRequest(sandbox_id, ports))

    def _url(self, name: str, request: Request) -> str:
        if self._base is None:
            raise Unavailable("The streaming server is not running.")
        return str(self._base / name / self._tokens.issue(request))

    def _handler(self, kind: type[Request]) -> Handler:
        async def handle(http: web.Request) -> web.StreamResponse:
            request = self._tokens.redeem(http.match_info["token"])
            if not isinstance(request, kind):
                return web.Response(status=404, text="404 page not found\n")
            if len(self._sessions) >= self._max_sessions:
                headers = {"Retry-After": f"{TIME_TO_LIVE:.0f}"}
                words = "maximum number of in-flight requests exceeded\n"
                return web.Response(status=429, text=words, headers=headers)
            session = asyncio.create_task(self._serve(http, request))
            self._sessions.add(session)
            session.add_done_callback(self._sessions.discard)
            with self._during():
                return await session

        return handle

    async def _serve(self, http: web.Request, request: Request) -> web.StreamResponse:
        try:
            if _asks_for(http, "websocket"):
                return await self._serve_websocket(http, request)
            return await self._serve_spdy(http, request)
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception:
            log.exception("a streaming session failed")
            _abort(http)
            return web.Response(status=500, text="internal error\n")

    async def _serve_spdy(self, http: web.Request, request: Request) -> web.StreamResponse:
        offered = _offered(http.headers.getall(PROTOCOL_VERSION, ()))
        if not offered:
            words = f"unable to upgrade: header {PROTOCOL_VERSION} does not exist in request\n"
            return web.Response(status=400, text=words)
        if isinstance(request, PortForwardRequest):
            known: Iterable[str] = (port_forward.SPDY_PROTOCOL,)
        else:
            known = commands.SPDY_PROTOCOLS
        chosen = _choose(offered, known)
        if chosen is None:
            return _none_in_common(offered, known)
        if not _asks_for(http, SPDY):
            words = "unable to upgrade: missing upgrade headers in request\n"
            return web.Response(status=400, text=words)
        response, pipe = await tcp.upgrade(http, {"Upgrade": SPDY, PROTOCOL_VERSION: chosen})
        if isinstance(request, PortForwardRequest):
            async with SpdyConnection.open(pipe, idle_timeout=self._idle_timeout) as connection:
                await port_forward.serve_spdy(connection, request, self._backend)
        else:
            version = commands.SPDY_PROTOCOLS[chosen]
            async with SpdyConnection.open(
                pipe, idle_timeout=self._idle_timeout, max_streams=COMMAND_STREAMS
            ) as connection:
                await commands.serve_spdy(connection, request, self._backend, version)
        return response

    async def _serve_websocket(self, http: web.Request, request: Request) -> web.StreamResponse:
        offered = _offered(http.headers.getall(hdrs.SEC_WEBSOCKET_PROTOCOL, ()))
        if isinstance(request, PortForwardRequest):
            if port_forward.TUNNEL_PROTOCOL in offered:
                return await self._serve_tunnel(http, request)
            if not request.ports:
                words = "a WebSocket port-forward needs the ports in its PortForward request\n"
                return web.Response(status=400, text=words)
            known: Mapping[str, ChannelProtocol] = port_forward.WEBSOCKET_PROTOCOLS
            channels = 2 * len(request.ports)
            readable = set(range(0, channels, 2))
        else:
            known, channels = commands.WEBSOCKET_PROTOCOLS, 5
            readable = commands.readable_channels(request)
        chosen = _choose(offered or [""], known)
        if chosen is None:
            return _none_in_common(offered, known)
        socket = await websocket.accept(http, chosen)
        async with WebSocketConnection.open(
            socket,
            known[chosen],
            channels=channels,
            readable=readable,
            idle_timeout=self._idle_timeout,
            abort=lambda: _abort(http),
        ) as connection:
            if isinstance(request, PortForwardRequest):
                await port_forward.serve_websocket(connection, request, self._backend)
            else:
                version = known[chosen].version
                await commands.serve_websocket(connection, request, self._backend, version)
        return socket

    async def _serve_tunnel(
        self, http: web.Request, request: PortForwardRequest
    ) -> web.StreamResponse:
        socket = await websocket.accept(http, port_forward.TUNNEL_PROTOCOL)
        pipe = WebSocketPipe(socket, lambda: _abort(http))
        async with SpdyConnection.open(pipe, idle_timeout=self._idle_timeout) as connection:
            await port_forward.serve_spdy(connection, request, self._backend)
        return socket


def _check_streams(container_id: str, stdin: bool, stdout: bool, stderr: bool, tty: bool) -> None:
    if not container_id:
        raise InvalidInput("missing required container_id: exec and attach name their container.")
    if tty and stderr:
        raise InvalidInput(
            "tty and stderr cannot both be true: a terminal has one stream of output.",
            "Ask for stdout only, or for no tty.",
        )
    if not (stdin or stdout or stderr):
        raise InvalidInput("one of stdin, stdout, or stderr must be set.")


def _asks_for(http: web.Request, protocol: str) -> bool:
    connection = ",".join(http.headers.getall(hdrs.CONNECTION, ())).lower()
    return "upgrade" in connection and protocol.lower() in http.headers.get("Upgrade", "").lower()


def _offered(values: Iterable[str]) -> list[str]:
    """What a header offers, in the client's order, whether repeated or with commas."""
    words = (word.strip() for value in values for word in value.split(","))
    return [word for word in words if word]


def _choose(offered: Iterable[str], known: Iterable[str]) -> str | None:
    """The first that the client offers of those that we know."""
    names = set(known)
    return next((name for name in offered if name in names), None)


def _none_in_common(offered: Iterable[str], known: Iterable[str]) -> web.Response:
    accepted = [name for name in known if name]
    words = (
        "unable to upgrade: unable to negotiate protocol:"
        f" client supports [{' '.join(offered)}], server accepts [{' '.join(accepted)}]\n"
    )
    response = web.Response(status=403, text=words)
    for name in accepted:
        response.headers.add(ACCEPTED_VERSIONS, name)
    return response


def _abort(http: web.Request) -> None:
    if http.transport is not None:
        http.transport.abort()
