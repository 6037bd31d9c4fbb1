"""HTTP server for exec, attach and port-forward.

kubelet and crictl get a URL from the CRI and connect to it. The URL contains a token, which is the
only authorization: it is random, valid for a minute, and can be used once. Clients get an error
message and never a traceback.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from ipaddress import ip_address
from typing import NamedTuple

from aiohttp import hdrs, web
from yarl import URL

from winpod.cri.streaming import port_forward, remote_command, spdy, websocket
from winpod.cri.streaming.api import (
    AttachRequest,
    ExecRequest,
    PortForwardRequest,
    Request,
    StreamingBackend,
)
from winpod.cri.streaming.spdy import SpdyConnection
from winpod.cri.streaming.websocket import ChannelProtocol, WebSocketConnection, WebSocketTransport
from winpod.errors import InvalidInput, Unavailable, WinpodError

TIME_TO_LIVE = 60.0
MAX_PENDING = 1000


class TooManyRequests(WinpodError):
    """The limit of pending requests is reached."""

    code = "RESOURCE_EXHAUSTED"


class _PendingRequest(NamedTuple):
    request: Request
    expires_at: float


class RequestCache:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pending: dict[str, _PendingRequest] = {}  # in the order they expire

    def issue(self, request: Request) -> str:
        """Return a token that redeems `request` once within its time to live."""
        now = self._clock()
        self._remove_expired(now)
        if len(self._pending) >= MAX_PENDING:
            raise TooManyRequests(
                "maximum number of in-flight requests exceeded:"
                f" {MAX_PENDING} exec, attach and port-forward requests are pending.",
                f"Connect to their URLs, or retry in {TIME_TO_LIVE:.0f} seconds.",
            )
        token = secrets.token_urlsafe(16)
        self._pending[token] = _PendingRequest(request, now + TIME_TO_LIVE)
        return token

    def redeem(self, token: str) -> Request | None:
        """Return the request of a token; None if it is unknown, used or expired."""
        pending = self._pending.pop(token, None)
        if pending is None or pending.expires_at <= self._clock():
            return None
        return pending.request

    def _remove_expired(self, now: float) -> None:
        expired = [token for token, pending in self._pending.items() if pending.expires_at <= now]
        for token in expired:
            del self._pending[token]


log = logging.getLogger(__name__)

IDLE_TIMEOUT = 4 * 60 * 60.0
MAX_SESSIONS = 1000
SPDY = "SPDY/3.1"
PROTOCOL_VERSION = "X-Stream-Protocol-Version"
ACCEPTED_VERSIONS = "X-Accepted-Stream-Protocol-Versions"
COMMAND_STREAMS = 16

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class StreamingServer:
    """Streaming server. `close` ends every session."""

    def __init__(
        self,
        backend: StreamingBackend,
        *,
        idle_timeout: float = IDLE_TIMEOUT,
        max_sessions: int = MAX_SESSIONS,
        during: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """`during` is a context manager entered for the duration of each session."""
        self._backend = backend
        self._during = during
        self._idle_timeout = idle_timeout
        self._max_sessions = max_sessions
        self._tokens = RequestCache()
        self._sessions: set[asyncio.Task[object]] = set()
        self._runner: web.AppRunner | None = None
        self._base: URL | None = None

    async def start(self, host: str = "127.0.0.1", port: int = 0, *, advertise: str = "") -> None:
        """Listen. `advertise` is the host in URLs, if different from the listen address."""
        if not advertise and ip_address(host).is_unspecified:
            raise InvalidInput(
                f"The streaming server needs an advertised host to listen on {host}.",
                "Give an address that clients can reach.",
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
        """Return a URL to execute `command`, valid once within a minute."""
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
        """Return a URL to attach to the container, valid once within a minute."""
        _check_streams(container_id, stdin, stdout, stderr, tty)
        return self._url("attach", AttachRequest(container_id, stdin, stdout, stderr, tty))

    def port_forward_url(self, sandbox_id: str, ports: Iterable[int] = ()) -> str:
        """Return a URL to forward ports of the pod, valid once within a minute.

        `ports` are used by the older WebSocket protocol; with SPDY the client names them later.
        """
        if not sandbox_id:
            raise InvalidInput("missing required pod_sandbox_id.")
        ports = tuple(ports)
        if len(ports) > port_forward.MAX_PORTS or not all(0 < port < 65536 for port in ports):
            raise InvalidInput(
                f"Ports must be from 1 to 65535, at most {port_forward.MAX_PORTS} of them."
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
                text = "maximum number of in-flight requests exceeded\n"
                return web.Response(status=429, text=text, headers=headers)
            session = asyncio.create_task(self._serve(http, request))
            self._sessions.add(session)
            session.add_done_callback(self._sessions.discard)
            with self._during():
                return await session

        return handle

    async def _serve(self, http: web.Request, request: Request) -> web.StreamResponse:
        try:
            if _is_upgrade_to(http, "websocket"):
                return await self._serve_websocket(http, request)
            return await self._serve_spdy(http, request)
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception:
            log.exception("Streaming session failed")
            _abort(http)
            return web.Response(status=500, text="internal error\n")

    async def _serve_spdy(self, http: web.Request, request: Request) -> web.StreamResponse:
        offered = _offered(http.headers.getall(PROTOCOL_VERSION, ()))
        if not offered:
            text = f"unable to upgrade: header {PROTOCOL_VERSION} does not exist in request\n"
            return web.Response(status=400, text=text)
        if isinstance(request, PortForwardRequest):
            supported: Iterable[str] = (port_forward.SPDY_PROTOCOL,)
        else:
            supported = remote_command.SPDY_PROTOCOLS
        protocol = _choose(offered, supported)
        if protocol is None:
            return _negotiation_failed(offered, supported)
        if not _is_upgrade_to(http, SPDY):
            text = "unable to upgrade: missing upgrade headers in request\n"
            return web.Response(status=400, text=text)
        response, pipe = await spdy.upgrade(http, {"Upgrade": SPDY, PROTOCOL_VERSION: protocol})
        if isinstance(request, PortForwardRequest):
            async with SpdyConnection.open(pipe, idle_timeout=self._idle_timeout) as connection:
                await port_forward.serve_spdy(connection, request, self._backend)
        else:
            version = remote_command.SPDY_PROTOCOLS[protocol]
            async with SpdyConnection.open(
                pipe, idle_timeout=self._idle_timeout, max_streams=COMMAND_STREAMS
            ) as connection:
                await remote_command.serve_spdy(connection, request, self._backend, version)
        return response

    async def _serve_websocket(self, http: web.Request, request: Request) -> web.StreamResponse:
        offered = _offered(http.headers.getall(hdrs.SEC_WEBSOCKET_PROTOCOL, ()))
        if isinstance(request, PortForwardRequest):
            if port_forward.TUNNEL_PROTOCOL in offered:
                return await self._serve_tunnel(http, request)
            if not request.ports:
                text = "a WebSocket port-forward requires ports in its PortForward request\n"
                return web.Response(status=400, text=text)
            supported: Mapping[str, ChannelProtocol] = port_forward.WEBSOCKET_PROTOCOLS
            channels = 2 * len(request.ports)
            readable = set(range(0, channels, 2))
        else:
            supported, channels = remote_command.WEBSOCKET_PROTOCOLS, 5
            readable = remote_command.readable_channels(request)
        protocol = _choose(offered or [""], supported)
        if protocol is None:
            return _negotiation_failed(offered, supported)
        socket = await websocket.accept(http, protocol)
        async with WebSocketConnection.open(
            socket,
            supported[protocol],
            channels=channels,
            readable=readable,
            idle_timeout=self._idle_timeout,
            abort=lambda: _abort(http),
        ) as connection:
            if isinstance(request, PortForwardRequest):
                await port_forward.serve_websocket(connection, request, self._backend)
            else:
                version = supported[protocol].version
                await remote_command.serve_websocket(connection, request, self._backend, version)
        return socket

    async def _serve_tunnel(
        self, http: web.Request, request: PortForwardRequest
    ) -> web.StreamResponse:
        socket = await websocket.accept(http, port_forward.TUNNEL_PROTOCOL)
        pipe = WebSocketTransport(socket, lambda: _abort(http))
        async with SpdyConnection.open(pipe, idle_timeout=self._idle_timeout) as connection:
            await port_forward.serve_spdy(connection, request, self._backend)
        return socket


def _check_streams(container_id: str, stdin: bool, stdout: bool, stderr: bool, tty: bool) -> None:
    if not container_id:
        raise InvalidInput("missing required container_id.")
    if tty and stderr:
        raise InvalidInput(
            "tty and stderr cannot both be true: a terminal has one output stream.",
            "Request stdout only, or no tty.",
        )
    if not (stdin or stdout or stderr):
        raise InvalidInput("one of stdin, stdout, or stderr must be set.")


def _is_upgrade_to(http: web.Request, protocol: str) -> bool:
    connection = ",".join(http.headers.getall(hdrs.CONNECTION, ())).lower()
    return "upgrade" in connection and protocol.lower() in http.headers.get("Upgrade", "").lower()


def _offered(values: Iterable[str]) -> list[str]:
    """Return the protocols offered in repeated or comma-separated headers, in order."""
    names = (name.strip() for value in values for name in value.split(","))
    return [name for name in names if name]


def _choose(offered: Iterable[str], supported: Iterable[str]) -> str | None:
    """Return the first offered protocol that is supported."""
    names = set(supported)
    return next((name for name in offered if name in names), None)


def _negotiation_failed(offered: Iterable[str], supported: Iterable[str]) -> web.Response:
    accepted = [name for name in supported if name]
    text = (
        "unable to upgrade: unable to negotiate protocol:"
        f" client supports [{' '.join(offered)}], server accepts [{' '.join(accepted)}]\n"
    )
    response = web.Response(status=403, text=text)
    for name in accepted:
        response.headers.add(ACCEPTED_VERSIONS, name)
    return response


def _abort(http: web.Request) -> None:
    if http.transport is not None:
        http.transport.abort()
