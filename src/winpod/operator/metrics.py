"""Prometheus metrics of the cluster, collected on scrape, and of the leader's controllers."""

from __future__ import annotations

from collections import Counter as Counting
from collections.abc import Callable, Iterator

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from winpod.k8s.event_recorder import Event
from winpod.k8s.leader_election import LeaderElector
from winpod.operator.cluster_cache import ClusterCache
from winpod.operator.dashboard.feeds import DashboardFeeds
from winpod.operator.pod_evaluator import PodEvaluator
from winpod.operator.runtimeclasses.node_labels import isolation_of
from winpod.operator.settings_watcher import SettingsWatcher

_RECONCILE_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30)


class LeaderMetrics:
    """Reconciliations of RuntimeClasses and labels, and events recorded."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._reconciles = Counter(
            "winpod_reconciliations",
            "Reconciliations of RuntimeClasses and node labels, by result.",
            ("result",),
            registry=registry,
        )
        self._reconcile_times = Histogram(
            "winpod_reconciliation_duration_seconds",
            "Duration of reconciliations.",
            registry=registry,
            buckets=_RECONCILE_BUCKETS,
        )
        self._events = Counter(
            "winpod_events",
            "Events recorded by the operator, by kind of object and reason.",
            ("kind", "reason"),
            registry=registry,
        )

    def observe_reconcile(self, seconds: float, succeeded: bool) -> None:
        self._reconciles.labels("done" if succeeded else "failed").inc()
        self._reconcile_times.observe(seconds)

    def count_events(self, record: Callable[[Event], None]) -> Callable[[Event], None]:
        def record_and_count(event: Event) -> None:
            self._events.labels(event.subject.kind, event.reason).inc()
            record(event)

        return record_and_count


class ClusterMetrics(Collector):
    def __init__(
        self,
        cache: ClusterCache,
        settings: SettingsWatcher,
        elector: LeaderElector,
        evaluator: PodEvaluator,
        feeds: DashboardFeeds,
    ) -> None:
        self._cache = cache
        self._settings = settings
        self._elector = elector
        self._evaluator = evaluator
        self._feeds = feeds

    def collect(self) -> Iterator[Metric]:
        yield _gauge(
            "winpod_leader", "Whether this replica is the leader.", self._elector.is_leader
        )
        yield _gauge(
            "winpod_settings_good",
            "Whether the latest settings are valid.",
            not self._settings.problem,
        )
        if not self._cache.is_synced:
            return
        yield self._nodes()
        yield from self._classes()
        yield self._pods()
        yield self._steps()

    def describe(self) -> list[Metric]:
        """Return nothing, since the cluster is not synced when this is registered."""
        return []

    def _nodes(self) -> Metric:
        labels = ("os", "build", "isolation", "runtime", "ready")
        counts: Counting[tuple[str, ...]] = Counting()
        for cached in self._cache.nodes:
            node = cached.node
            build = str(node.build) if node.os == "windows" and node.build else ""
            ready = str(cached.is_ready).lower()
            counts[(node.os, build, isolation_of(node), node.runtime, ready)] += 1
        return _counted_gauge("winpod_nodes", "Nodes of the cluster.", labels, counts)

    def _classes(self) -> Iterator[Metric]:
        counts: Counting[tuple[str, ...]] = Counting()
        users = GaugeMetricFamily(
            "winpod_runtime_class_pods", "Pods that use a class.", labels=("runtime_class",)
        )
        for name, cached in self._cache.classes.items():
            counts[(str(cached.is_managed).lower(), str(bool(cached.retiring)).lower())] += 1
            users.add_metric((name,), self._cache.pods_using_class(name))
        help_text = "RuntimeClasses; `ours` are those managed by winpod."
        yield _counted_gauge("winpod_runtime_classes", help_text, ("ours", "retiring"), counts)
        yield users

    def _pods(self) -> Metric:
        verdicts = self._evaluator.verdicts().values()
        counts: Counting[tuple[str, ...]] = Counting(
            (str(verdict.outcome),) for verdict in verdicts
        )
        help_text = "Non-terminal pods by verdict."
        return _counted_gauge("winpod_pods", help_text, ("verdict",), counts)

    def _steps(self) -> Metric:
        counts: Counting[tuple[str, ...]] = Counting(
            (upgrade.name, upgrade.status.phase, step.state)
            for upgrade in self._feeds.upgrades
            for step in upgrade.status.steps
        )
        labels = ("upgrade", "phase", "state")
        return _counted_gauge("winpod_upgrade_steps", "Steps of upgrades.", labels, counts)


def metrics_route(registry: CollectorRegistry) -> web.RouteDef:
    async def record(_: web.Request) -> web.Response:
        headers = {"Content-Type": CONTENT_TYPE_LATEST}
        return web.Response(body=generate_latest(registry), headers=headers)

    return web.get("/metrics", record)


def _gauge(name: str, help_text: str, value: bool) -> Metric:
    return GaugeMetricFamily(name, help_text, value=float(value))


def _counted_gauge(
    name: str, help_text: str, labels: tuple[str, ...], counts: Counting[tuple[str, ...]]
) -> Metric:
    family = GaugeMetricFamily(name, help_text, labels=labels)
    for values, count in sorted(counts.items()):
        family.add_metric(values, count)
    return family
