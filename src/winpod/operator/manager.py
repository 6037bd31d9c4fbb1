"""The operator's manager: builds the caches, controllers and servers, and runs them.

Some tasks run in every replica, such as the webhook; controllers run only in the leader. Tasks are
independent of each other and are supervised: one that fails is restarted while the others go on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from aiohttp import web
from prometheus_client import CollectorRegistry

from winpod.concurrency import supervise
from winpod.errors import Unavailable
from winpod.k8s.client import ApiClient
from winpod.k8s.event_recorder import Event
from winpod.k8s.kubeconfig import RestConfig
from winpod.k8s.leader_election import LeaderElector
from winpod.labels import OPERATOR_LEASE
from winpod.operator.admission.metrics import AdmissionMetrics
from winpod.operator.admission.server import WebhookOptions, WebhookServer
from winpod.operator.cluster_cache import ClusterCache
from winpod.operator.dashboard.dashboard import (
    Dashboard,
    DashboardContext,
    LoopbackAuthorizer,
    TokenAuthorizer,
)
from winpod.operator.dashboard.feeds import DashboardFeeds
from winpod.operator.dashboard.state import RefusedPod
from winpod.operator.events import OperatorEventRecorder, refused_event
from winpod.operator.metrics import ClusterMetrics, LeaderMetrics, metrics_route
from winpod.operator.pod_evaluator import PodEvaluator
from winpod.operator.runtimeclasses.runtimeclass_controller import RuntimeClassController
from winpod.operator.settings_watcher import SettingsEventReporter, SettingsWatcher
from winpod.operator.upgrade.controller import UpgradeController
from winpod.operator.upgrade.snapshot import SnapshotReader, recent_lookup


def health_routes(
    cache: ClusterCache, settings: SettingsWatcher, elector: LeaderElector
) -> list[web.RouteDef]:
    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        if settings.is_unusable:
            return web.Response(status=503, text="the settings are invalid, see the log\n")
        if not (cache.is_synced and settings.is_synced):
            return web.Response(status=503, text="the cache is not synced yet\n")
        return web.Response(text="leader\n" if elector.is_leader else "standby\n")

    return [web.get("/healthz", healthz), web.get("/readyz", readyz)]


ManagedTask = tuple[str, Callable[[], Awaitable[None]]]
_LOOPBACK = "127.0.0.1"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OperatorOptions:
    """The operator's namespace, identity and listen addresses.

    Without the webhook, pods are not reviewed and no certificates are written.
    """

    namespace: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Namespace of the settings and the lease (default: the pod's namespace).",
        ),
    ] = ""
    identity: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Unique leader election identity (default: host name and a random suffix).",
        ),
    ] = ""
    address: Annotated[
        str, typer.Option(metavar="IP", help="Listen address for metrics and health.")
    ] = "0.0.0.0"  # noqa: S104 - probes come from the node
    port: Annotated[int, typer.Option(metavar="PORT", help="Port for metrics and health.")] = 8080
    has_webhook: Annotated[
        bool,
        typer.Option("--webhook/--no-webhook", help="Serve the pod admission webhook."),
    ] = True
    webhook_port: Annotated[
        int, typer.Option(metavar="PORT", help="Port of the admission webhook.")
    ] = 8443
    webhook_client_ca: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="CA for webhook client certificates (default: none required).",
        ),
    ] = None
    page_port: Annotated[
        int, typer.Option(metavar="PORT", help="Port of the dashboard, on loopback.")
    ] = 8081


@dataclass(frozen=True, slots=True)
class ManagerContext:
    """What additional leader tasks are built from."""

    rest_config: RestConfig
    api: ApiClient
    options: OperatorOptions
    settings: SettingsWatcher
    record_event: Callable[[Event], None]
    registry: CollectorRegistry


class OperatorManager:
    """Runs the operator; `more` builds additional tasks that run in the leader.

    Probes, metrics and the authenticated dashboard are served on `port`; the dashboard without
    authentication on loopback, on `page_port`.
    """

    def __init__(
        self,
        rest_config: RestConfig,
        options: OperatorOptions,
        more: Iterable[Callable[[ManagerContext], ManagedTask]] = (),
    ) -> None:
        self._options = options
        self._api = ApiClient(rest_config)
        self._settings = SettingsWatcher(self._api, options.namespace)
        self._cache = ClusterCache(self._api)
        self._elector = LeaderElector(
            self._api, options.namespace, OPERATOR_LEASE, options.identity
        )
        self._registry = CollectorRegistry()
        self._recorder = OperatorEventRecorder(self._api, options.identity)
        leader_metrics = LeaderMetrics(self._registry)
        self._record_event = leader_metrics.count_events(self._recorder.record)
        self._settings_events = SettingsEventReporter(self._settings, self._record_event)
        self._classes = RuntimeClassController(
            self._api,
            self._cache,
            self._settings,
            self._record_event,
            leader_metrics.observe_reconcile,
        )
        self._admission = WebhookServer(
            self._api,
            self._cache,
            self._settings,
            AdmissionMetrics(self._registry),
            WebhookOptions(
                options.namespace, options.address, options.webhook_port, options.webhook_client_ca
            ),
            lambda refusal: self._record_event(
                refused_event(refusal.namespace, refusal.name, refusal.message)
            ),
        )
        self._evaluator = PodEvaluator(
            self._cache,
            self._admission.images,
            self._admission.secrets,
            self._record_event,
            lambda: self._elector.is_leader,
        )
        snapshots = SnapshotReader(
            self._api, lambda: self._settings.now, recent_lookup(self._admission.images)
        )
        self._upgrades = UpgradeController(self._api, snapshots, self._record_event)
        self._feeds = DashboardFeeds(self._api)
        self._registry.register(
            ClusterMetrics(self._cache, self._settings, self._elector, self._evaluator, self._feeds)
        )
        dashboard = DashboardContext(
            options.identity,
            self._cache,
            self._settings,
            self._elector,
            self._evaluator,
            self._feeds,
            self._refused,
        )
        self._tasks: list[ManagedTask] = [
            ("cluster cache", self._cache.run),
            ("settings watcher", self._settings.run),
            ("event recorder", self._recorder.run),
            ("pod evaluator", self._evaluator.run),
            ("dashboard feeds", self._feeds.run),
        ]
        if options.has_webhook:
            self._tasks.append(("admission webhook", self._admission.run))
        self._leader_tasks: list[ManagedTask] = [
            ("settings events", self._settings_events.run),
            ("RuntimeClass controller", self._classes.run),
            ("upgrade controller", self._upgrades.run),
        ]
        shared = ManagerContext(
            rest_config, self._api, options, self._settings, self._record_event, self._registry
        )
        self._leader_tasks += [make(shared) for make in more]
        self._routes: list[web.RouteDef] = [
            *health_routes(self._cache, self._settings, self._elector),
            metrics_route(self._registry),
            *Dashboard(dashboard, TokenAuthorizer(self._api, lambda: self._settings.now)).routes(),
        ]
        self._loopback_routes = Dashboard(dashboard, LoopbackAuthorizer()).routes()

    def _refused(self) -> Iterator[RefusedPod]:
        for refusal in self._admission.webhook.refusals:
            yield RefusedPod(refusal.at, refusal.namespace, refusal.name, refusal.message)

    async def run(self) -> None:
        try:
            async with self._serve(), asyncio.TaskGroup() as group:
                for name, work in self._tasks:
                    group.create_task(supervise(name, work))
                group.create_task(self._lead_when_synced())
        finally:
            await self._admission.images.close()
            await self._api.close()

    async def _lead_when_synced(self) -> None:
        """Acquire the lease only after cluster and settings are synced."""
        reporting = asyncio.create_task(self._settings_events.run())
        try:
            await self._settings.wait_synced()
        finally:
            reporting.cancel()
        await self._cache.wait_synced()
        await self._elector.run(self._lead)

    async def _lead(self) -> None:
        async with asyncio.TaskGroup() as group:
            for name, work in self._leader_tasks:
                group.create_task(supervise(name, work))

    @asynccontextmanager
    async def _serve(self) -> AsyncIterator[None]:
        options = self._options
        async with (
            _listen(self._routes, options.address, options.port, "port"),
            _listen(self._loopback_routes, _LOOPBACK, options.page_port, "page_port"),
        ):
            yield


@asynccontextmanager
async def _listen(
    routes: Iterable[web.RouteDef], address: str, port: int, name: str
) -> AsyncIterator[None]:
    """Serve the routes; the log record has the bound port as attribute `name`."""
    application = web.Application()
    application.add_routes(routes)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, address, port).start()
        except OSError as error:
            raise Unavailable(
                f"failed to listen on {address}, port {port}: {error.strerror}."
            ) from error
        port = runner.addresses[0][1]
        _log.info("Listening on %s, port %s", address, port, extra={name: port})
        yield
    finally:
        await runner.cleanup()
