"""Numbers about the cluster, counted when Prometheus asks, and about what the leader does."""

from __future__ import annotations

from collections import Counter as Counting
from collections.abc import Callable, Iterator

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from winpod.cluster.judging import Judging
from winpod.cluster.leading import Leading
from winpod.cluster.live_settings import LiveSettings
from winpod.cluster.node_labels import isolation_of
from winpod.cluster.page.happenings import Happenings
from winpod.cluster.view import View
from winpod.node.event_series import Event

_LOOK_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30)


class LeaderMetrics:
    """What the leader did: looks at classes and labels, and everything that it told."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._looks = Counter(
            "winpod_reconciliations",
            "Looks at the cluster's classes and labels, by how they ended.",
            ("result",),
            registry=registry,
        )
        self._look_times = Histogram(
            "winpod_reconciliation_duration_seconds",
            "How long a look took, with what it changed.",
            registry=registry,
            buckets=_LOOK_BUCKETS,
        )
        self._told = Counter(
            "winpod_events",
            "What was told of objects: classes made, labels filled in, pods refused, and so on.",
            ("kind", "reason"),
            registry=registry,
        )

    def count_look(self, seconds: float, is_well: bool) -> None:
        self._looks.labels("done" if is_well else "failed").inc()
        self._look_times.observe(seconds)

    def counted(self, tell: Callable[[Event], None]) -> Callable[[Event], None]:
        def tell_and_count(event: Event) -> None:
            self._told.labels(event.subject.kind, event.reason).inc()
            tell(event)

        return tell_and_count


class ClusterMetrics(Collector):
    def __init__(
        self,
        view: View,
        settings: LiveSettings,
        leading: Leading,
        judging: Judging,
        happenings: Happenings,
    ) -> None:
        self._view = view
        self._settings = settings
        self._leading = leading
        self._judging = judging
        self._happenings = happenings

    def collect(self) -> Iterator[Metric]:
        yield _one("winpod_leader", "Whether this replica leads.", self._leading.is_leader)
        yield _one(
            "winpod_settings_good",
            "Whether the newest settings can be used.",
            not self._settings.problem,
        )
        if not self._view.is_known:
            return
        yield self._nodes()
        yield from self._classes()
        yield self._pods()
        yield self._steps()

    def describe(self) -> list[Metric]:
        """Nothing is known of a cluster when this is registered."""
        return []

    def _nodes(self) -> Metric:
        labels = ("os", "build", "isolation", "runtime", "ready")
        counts: Counting[tuple[str, ...]] = Counting()
        for seen in self._view.nodes:
            node = seen.node
            build = str(node.build) if node.os == "windows" and node.build else ""
            ready = str(seen.is_ready).lower()
            counts[(node.os, build, isolation_of(node), node.runtime, ready)] += 1
        return _counted("winpod_nodes", "Nodes of the cluster.", labels, counts)

    def _classes(self) -> Iterator[Metric]:
        counts: Counting[tuple[str, ...]] = Counting()
        users = GaugeMetricFamily(
            "winpod_runtime_class_pods", "Pods that use a class.", labels=("runtime_class",)
        )
        for name, seen in self._view.classes.items():
            counts[(str(seen.is_ours).lower(), str(bool(seen.retiring)).lower())] += 1
            users.add_metric((name,), self._view.users(name))
        words = "RuntimeClasses; ours are those that winpod made."
        yield _counted("winpod_runtime_classes", words, ("ours", "retiring"), counts)
        yield users

    def _pods(self) -> Metric:
        verdicts = self._judging.verdicts().values()
        counts: Counting[tuple[str, ...]] = Counting((str(one.fate),) for one in verdicts)
        words = "Pods that have not ended, by what becomes of them."
        return _counted("winpod_pods", words, ("verdict",), counts)

    def _steps(self) -> Metric:
        counts: Counting[tuple[str, ...]] = Counting(
            (upgrade.name, upgrade.status.phase, step.state)
            for upgrade in self._happenings.upgrades
            for step in upgrade.status.steps
        )
        labels = ("upgrade", "phase", "state")
        return _counted("winpod_upgrade_steps", "Steps of upgrades.", labels, counts)


def metrics_route(registry: CollectorRegistry) -> web.RouteDef:
    async def tell(_: web.Request) -> web.Response:
        headers = {"Content-Type": CONTENT_TYPE_LATEST}
        return web.Response(body=generate_latest(registry), headers=headers)

    return web.get("/metrics", tell)


def _one(name: str, words: str, value: bool) -> Metric:
    return GaugeMetricFamily(name, words, value=float(value))


def _counted(
    name: str, words: str, labels: tuple[str, ...], counts: Counting[tuple[str, ...]]
) -> Metric:
    family = GaugeMetricFamily(name, words, labels=labels)
    for values, count in sorted(counts.items()):
        family.add_metric(values, count)
    return family
