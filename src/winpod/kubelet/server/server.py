"""The kubelet's HTTPS API, used by the API server and other authorized clients.

Every request is authorized before it is handled.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from aiohttp import web

from winpod.cri.rpc import RemoteError
from winpod.errors import WinpodError
from winpod.k8s.auth import RequestAuthorizer
from winpod.k8s.tls import bind_socket
from winpod.kubelet.server.container_logs import LogHandlers
from winpod.kubelet.server.context import ServerContext
from winpod.kubelet.server.handlers import ServerHandlers
from winpod.kubelet.server.metrics import FamilySource, MetricsHandlers
from winpod.kubelet.server.stats_summary import StatsSummary
from winpod.kubelet.server.streaming import StreamHandlers
from winpod.kubelet.server.tls import TlsFiles, TlsListener
from winpod.kubelet.stats import NodeUsageReader
from winpod.kubelet.volumes.usage import VolumeStatsReader

PORT = 10250
_CLOSE_SECONDS = 1.0
_STATUS = {"NOT_FOUND": 404, "INVALID_ARGUMENT": 400, "RESOURCE_EXHAUSTED": 429, "UNAVAILABLE": 503}
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_log = logging.getLogger(__name__)


class KubeletServer:
    """HTTPS server of the kubelet API. `extra_metrics` extends `/metrics`."""

    def __init__(
        self,
        context: ServerContext,
        authorizer: RequestAuthorizer,
        extra_metrics: FamilySource = tuple,
    ) -> None:
        usage, volumes = (
            NodeUsageReader(context.node_config),
            VolumeStatsReader(context.node_config, context.objects),
        )
        self._authorizer = authorizer
        self._metrics = MetricsHandlers(context, usage, volumes, extra_metrics)
        application = web.Application(middlewares=[self._handle])
        for handlers in (
            ServerHandlers(context, StatsSummary(context, usage, volumes)),
            LogHandlers(context),
            StreamHandlers(context),
            self._metrics,
        ):
            application.router.add_routes(handlers.routes())
        self._runner = web.AppRunner(
            application,
            access_log=None,
            handler_cancellation=True,
            shutdown_timeout=_CLOSE_SECONDS,
        )
        self._listener: TlsListener | None = None
        self.port = 0

    async def start(self, files: TlsFiles, host: str = "0.0.0.0", port: int = PORT) -> None:  # noqa: S104
        """Start listening; port 0 selects a free port."""
        await self._runner.setup()
        try:
            self._listener = TlsListener(
                self._runner, files, bind_socket("The kubelet API", host, port)
            )
            await self._listener.start()
        except WinpodError:
            await self.close()
            raise
        self.port = self._listener.port

    async def close(self) -> None:
        if self._listener:
            self._listener.close()
        await self._runner.cleanup()

    @web.middleware
    async def _handle(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        status = 500
        try:
            await self._authorizer.authorize(request)
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
            _log.exception("Request %s failed", request.path)
            return web.Response(status=status, text="internal error\n")
        finally:
            path = (
                request.path.split("/", 2)[1] if request.match_info.http_exception is None else ""
            )
            self._metrics.count_request(request.method, path, status)


def _status_of(error: WinpodError) -> int:
    code = error.status.name if isinstance(error, RemoteError) else error.code
    return _STATUS.get(code, 500)
