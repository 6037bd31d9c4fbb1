"""The operator: what it sees of a cluster, what every replica answers, what one of them does.

Each part is made here and given what it needs; parts know nothing of each other. A part that breaks
off begins again, and the others go on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web
from prometheus_client import CollectorRegistry

from winpod.cluster.admission.metrics import AdmissionMetrics
from winpod.cluster.admission.server import Listening, WebhookServer
from winpod.cluster.cluster_metrics import ClusterMetrics, LeaderMetrics, metrics_route
from winpod.cluster.health import health_routes
from winpod.cluster.judging import Judging
from winpod.cluster.leading import Leading
from winpod.cluster.live_settings import LiveSettings, SettingsProblems
from winpod.cluster.page.gates import LoopbackGate, TokenGate
from winpod.cluster.page.happenings import Happenings
from winpod.cluster.page.page import Page, Sights
from winpod.cluster.page.state import RefusedPod
from winpod.cluster.reconciling import Reconciling
from winpod.cluster.telling import Telling, refused
from winpod.cluster.upgrade.controller import Upgrades
from winpod.cluster.upgrade.survey import RecentImages, Survey
from winpod.cluster.view import View
from winpod.node.access import Access
from winpod.node.agent import for_good
from winpod.node.api import ApiServer
from winpod.node.event_series import Event
from winpod.windows.errors import Unavailable

Part = tuple[str, Callable[[], Awaitable[None]]]
_LOOPBACK = "127.0.0.1"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Place:
    """Where an operator is: its namespace, its own name, and where it listens.

    Without a webhook nobody is answered about pods, and nothing of one is written anywhere.
    """

    namespace: str
    identity: str
    address: str = "0.0.0.0"  # noqa: S104 - probes come from the node
    port: int = 8080
    has_webhook: bool = True
    webhook_port: int = 8443
    webhook_client_ca: Path | None = None
    page_port: int = 8081


@dataclass(frozen=True, slots=True)
class Shared:
    """What parts that are made elsewhere are made of."""

    access: Access
    api: ApiServer
    place: Place
    settings: LiveSettings
    tell: Callable[[Event], None]
    numbers: CollectorRegistry


class Operator:
    """`always` run in every replica, `when_leading` in the one that leads, with those of `more`.

    `routes` are at `port`, and the page is on loopback, at `page_port`.
    """

    def __init__(
        self, access: Access, place: Place, more: Iterable[Callable[[Shared], Part]] = ()
    ) -> None:
        self._place = place
        self._api = ApiServer(access)
        self._settings = LiveSettings(self._api, place.namespace)
        self._view = View(self._api)
        self._leading = Leading(self._api, place.namespace, place.identity)
        self._numbers = CollectorRegistry()
        self._telling = Telling(self._api, place.identity)
        leader_metrics = LeaderMetrics(self._numbers)
        self._tell = leader_metrics.counted(self._telling.tell)
        self._problems = SettingsProblems(self._settings, self._tell)
        self._classes = Reconciling(
            self._api, self._view, self._settings, self._tell, leader_metrics.count_look
        )
        self._admission = WebhookServer(
            self._api,
            self._view,
            self._settings,
            AdmissionMetrics(self._numbers),
            Listening(place.namespace, place.address, place.webhook_port, place.webhook_client_ca),
            lambda one: self._tell(refused(one.namespace, one.name, one.sentence)),
        )
        self._judging = Judging(
            self._view,
            self._admission.images,
            self._admission.secrets,
            self._tell,
            lambda: self._leading.is_leader,
        )
        survey = Survey(
            self._api, lambda: self._settings.now, RecentImages(self._admission.images).look_up
        )
        self._upgrades = Upgrades(self._api, survey, self._tell)
        self._happenings = Happenings(self._api)
        self._numbers.register(
            ClusterMetrics(
                self._view, self._settings, self._leading, self._judging, self._happenings
            )
        )
        sights = Sights(
            place.identity,
            self._view,
            self._settings,
            self._leading,
            self._judging,
            self._happenings,
            self._refused,
        )
        self._always: list[Part] = [
            ("the view", self._view.run),
            ("the settings", self._settings.run),
            ("events", self._telling.run),
            ("verdicts", self._judging.run),
            ("upgrades and refusals", self._happenings.run),
        ]
        if place.has_webhook:
            self._always.append(("the webhook", self._admission.run))
        self._when_leading: list[Part] = [
            ("problems of the settings", self._problems.run),
            ("classes and labels", self._classes.run),
            ("upgrades", self._upgrades.run),
        ]
        shared = Shared(access, self._api, place, self._settings, self._tell, self._numbers)
        self._when_leading += [make(shared) for make in more]
        self._routes: list[web.RouteDef] = [
            *health_routes(self._view, self._settings, self._leading),
            metrics_route(self._numbers),
            *Page(sights, TokenGate(self._api, lambda: self._settings.now)).routes(),
        ]
        self._page = Page(sights, LoopbackGate()).routes()

    def _refused(self) -> Iterator[RefusedPod]:
        for one in self._admission.webhook.refusals:
            yield RefusedPod(one.at, one.namespace, one.name, one.sentence)

    async def run(self) -> None:
        try:
            async with self._serving(), asyncio.TaskGroup() as group:
                for name, work in self._always:
                    group.create_task(for_good(name, work))
                group.create_task(self._lead_when_known())
        finally:
            await self._admission.images.close()
            await self._api.close()

    async def _lead_when_known(self) -> None:
        """Who knows neither cluster nor settings leaves the lease to those who do."""
        telling = asyncio.create_task(self._problems.run())
        try:
            await self._settings.until_known()
        finally:
            telling.cancel()
        await self._view.until_known()
        await self._leading.run(self._lead)

    async def _lead(self) -> None:
        async with asyncio.TaskGroup() as group:
            for name, work in self._when_leading:
                group.create_task(for_good(name, work))

    @asynccontextmanager
    async def _serving(self) -> AsyncIterator[None]:
        place = self._place
        async with (
            _listening(self._routes, place.address, place.port, "port"),
            _listening(self._page, _LOOPBACK, place.page_port, "page_port"),
        ):
            yield


@asynccontextmanager
async def _listening(
    routes: Iterable[web.RouteDef], address: str, port: int, name: str
) -> AsyncIterator[None]:
    """`name` is what the log calls the port, which may be any that is free."""
    application = web.Application()
    application.add_routes(routes)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, address, port).start()
        except OSError as error:
            where = f"{address}, port {port}"
            raise Unavailable(f"nobody can listen at {where}: {error.strerror}.") from error
        port = runner.addresses[0][1]
        _log.info("listening at %s, port %s", address, port, extra={name: port})
        yield
    finally:
        await runner.cleanup()
