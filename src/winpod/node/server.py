"""The node's own HTTPS API, which the API server and those it vouches for ask.

Nobody is answered before the gate has let them in.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from aiohttp import web

from winpod.cri.rpc import RemoteError
from winpod.node.server_auth import Gate
from winpod.node.server_listening import Listening, ServingFiles, socket_at
from winpod.node.server_logs import LogPages
from winpod.node.server_metrics import Counted, MetricPages
from winpod.node.server_pages import Pages
from winpod.node.server_parts import Parts
from winpod.node.server_streams import StreamPages
from winpod.node.summary import Summary
from winpod.node.usage import NodeUsage
from winpod.node.volume_usage import VolumeUsage
from winpod.windows.errors import WinpodError

PORT = 10250
_CLOSE_SECONDS = 1.0
_STATUS = {"NOT_FOUND": 404, "INVALID_ARGUMENT": 400, "RESOURCE_EXHAUSTED": 429, "UNAVAILABLE": 503}
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_log = logging.getLogger(__name__)


class NodeServer:
    """`more` is for `/metrics`: what others have counted."""

    def __init__(self, parts: Parts, gate: Gate, more: Counted = tuple) -> None:
        usage, volumes = NodeUsage(parts.facts), VolumeUsage(parts.facts, parts.objects)
        self._gate = gate
        self._metrics = MetricPages(parts, usage, volumes, more)
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
        self._listening: Listening | None = None
        self.port = 0

    async def start(self, files: ServingFiles, host: str = "0.0.0.0", port: int = PORT) -> None:  # noqa: S104
        """Listens; port 0 is any that is free."""
        await self._runner.setup()
        try:
            self._listening = Listening(self._runner, files, socket_at(host, port))
            await self._listening.start()
        except WinpodError:
            await self.close()
            raise
        self.port = self._listening.port

    async def close(self) -> None:
        if self._listening:
            self._listening.close()
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
