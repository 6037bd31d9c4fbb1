"""The node's own HTTPS API, which the API server and those it vouches for ask.

Nobody is answered before the gate has let them in. A certificate that is replaced on disk is the
one that new connections see.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from winpod.cri.rpc import RemoteError
from winpod.node.server_auth import Gate
from winpod.node.server_logs import LogPages
from winpod.node.server_metrics import MetricPages
from winpod.node.server_pages import Pages
from winpod.node.server_parts import Parts
from winpod.node.server_streams import StreamPages
from winpod.node.summary import Summary
from winpod.node.usage import NodeUsage
from winpod.node.volume_usage import VolumeUsage
from winpod.windows.errors import InvalidInput, Unavailable, WinpodError

PORT = 10250
_LOOK_SECONDS = 1.0
_CLOSE_SECONDS = 1.0
_STATUS = {"NOT_FOUND": 404, "INVALID_ARGUMENT": 400, "RESOURCE_EXHAUSTED": 429, "UNAVAILABLE": 503}
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServingFiles:
    """The certificate and its key, and the authority that clients' certificates are of."""

    certificate: Path
    key: Path
    client_authority: Path | None = None


class NodeServer:
    def __init__(self, parts: Parts, gate: Gate) -> None:
        usage, volumes = NodeUsage(parts.facts), VolumeUsage(parts.facts, parts.objects)
        self._gate = gate
        self._metrics = MetricPages(parts, usage, volumes)
        application = web.Application(middlewares=[self._answer])
        for pages in (
            Pages(parts, Summary(parts, usage, volumes)),
            LogPages(parts),
            StreamPages(parts),
            self._metrics,
        ):
            application.router.add_routes(pages.routes())
        self._runner = web.AppRunner(
            application,
            access_log=None,
            handler_cancellation=True,
            shutdown_timeout=_CLOSE_SECONDS,
        )
        self._watching: asyncio.Task[None] | None = None
        self.port = 0

    async def start(self, files: ServingFiles, host: str = "0.0.0.0", port: int = PORT) -> None:  # noqa: S104
        """Listens; port 0 is any that is free."""
        context = _context(files)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port, ssl_context=context)
        try:
            await site.start()
        except OSError as error:
            await self.close()
            raise Unavailable(
                f"The node's API cannot listen on {host} port {port}: {error.strerror}.",
                "Free the port or choose another.",
            ) from error
        self.port = self._runner.addresses[0][1]
        self._watching = asyncio.create_task(_reload_when_replaced(context, files))

    async def close(self) -> None:
        if self._watching:
            self._watching.cancel()
        await self._runner.cleanup()

    @web.middleware
    async def _answer(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        status = 500
        try:
            await self._gate.admit(request)
            response = await handler(request)
            status = response.status
            return response
        except web.HTTPException as error:
            status = error.status
            raise
        except WinpodError as error:
            status = _status_of(error)
            return web.Response(status=status, text=f"{error}\n")
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception:
            _log.exception("%s failed", request.path)
            return web.Response(status=status, text="internal error\n")
        finally:
            path = (
                request.path.split("/", 2)[1] if request.match_info.http_exception is None else ""
            )
            self._metrics.count_request(request.method, path, status)


def _status_of(error: WinpodError) -> int:
    code = error.status.name if isinstance(error, RemoteError) else error.code
    return _STATUS.get(code, 500)


def _context(files: ServingFiles) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(files.certificate, files.key)
        if files.client_authority:
            context.load_verify_locations(files.client_authority)
            context.verify_mode = ssl.CERT_OPTIONAL
    except OSError as error:
        raise InvalidInput(
            f"The node's API has no certificate to serve with: {files.certificate}: {error}.",
            "Give a certificate and its key in PEM form.",
        ) from None
    return context


async def _reload_when_replaced(context: ssl.SSLContext, files: ServingFiles) -> None:
    loaded = _version(files.certificate)
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        try:
            if (found := _version(files.certificate)) != loaded:
                context.load_cert_chain(files.certificate, files.key)
                loaded = found
        except OSError as error:
            _log.warning("the new certificate %s cannot be used: %s", files.certificate, error)


def _version(file: Path) -> tuple[int, int]:
    found = file.stat()
    return found.st_mtime_ns, found.st_ino
