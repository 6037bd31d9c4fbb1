"""The operator: what it sees of a cluster, what every replica answers, what one of them does.

Each part is made here and given what it needs; parts know nothing of each other. A part that breaks
off begins again, and the others go on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiohttp import web
from prometheus_client import CollectorRegistry

from winpod.cluster.health import health_routes
from winpod.cluster.leading import Leading
from winpod.cluster.live_settings import LiveSettings
from winpod.cluster.metrics import AdmissionMetrics
from winpod.cluster.reconciling import Reconciling
from winpod.cluster.view import View
from winpod.cluster.webhook_server import Listening, WebhookServer
from winpod.node.access import Access
from winpod.node.agent import for_good
from winpod.node.api import ApiServer
from winpod.windows.errors import Unavailable

Part = tuple[str, Callable[[], Awaitable[None]]]
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Place:
    """Where an operator is: its namespace, its own name, and where it listens."""

    namespace: str
    identity: str
    address: str = "0.0.0.0"  # noqa: S104 - probes come from the node
    port: int = 8080
    webhook_port: int = 8443


class Operator:
    """`always` run in every replica, `leading` in the one that leads; `routes` are at `port`."""

    def __init__(self, access: Access, place: Place) -> None:
        self._place = place
        self._api = ApiServer(access)
        self._settings = LiveSettings(self._api, place.namespace)
        self._view = View(self._api)
        self._leading = Leading(self._api, place.namespace, place.identity)
        self._classes = Reconciling(self._api, self._view, self._settings)
        self._numbers = CollectorRegistry()
        self._admission = WebhookServer(
            self._api,
            self._view,
            self._settings,
            AdmissionMetrics(self._numbers),
            Listening(place.namespace, place.address, place.webhook_port),
        )
        self._always: list[Part] = [
            ("the view", self._view.run),
            ("the settings", self._settings.run),
            ("the webhook", self._admission.run),
        ]
        self._when_leading: list[Part] = [
            ("classes and labels", self._classes.run),
        ]
        self._routes: list[web.RouteDef] = [
            *health_routes(self._view, self._leading),
        ]

    async def run(self) -> None:
        try:
            async with self._serving(), asyncio.TaskGroup() as group:
                for name, work in self._always:
                    group.create_task(for_good(name, work))
                group.create_task(self._leading.run(self._lead))
        finally:
            await self._api.close()

    async def _lead(self) -> None:
        await self._view.until_known()
        await self._settings.until_known()
        async with asyncio.TaskGroup() as group:
            for name, work in self._when_leading:
                group.create_task(for_good(name, work))

    @asynccontextmanager
    async def _serving(self) -> AsyncIterator[None]:
        application = web.Application()
        application.add_routes(self._routes)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await self._listen(runner)
            yield
        finally:
            await runner.cleanup()

    async def _listen(self, runner: web.AppRunner) -> None:
        address, port = self._place.address, self._place.port
        try:
            await web.TCPSite(runner, address, port).start()
        except OSError as error:
            where = f"{address}, port {port}"
            raise Unavailable(f"nobody can listen at {where}: {error.strerror}.") from error
        port = runner.addresses[0][1]
        _log.info("listening at %s, port %s", address, port, extra={"port": port})
