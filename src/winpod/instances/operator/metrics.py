"""Numbers about instances, counted when Prometheus asks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from winpod.instances.cluster.resource import WindowsInstance
from winpod.instances.operator.telling import CONTAINERD_RUNNING, REACHABLE, condition_of


class InstanceMetrics(Collector):
    """Of the replica that leads; the others follow no instances."""

    def __init__(
        self, instances: Callable[[], Iterable[WindowsInstance]], bad: Callable[[], int]
    ) -> None:
        self._instances = instances
        self._bad = bad

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        known = list(self._instances())
        counts: Counter[tuple[str, ...]] = Counter(
            (one.status.phase or "Pending", one.status.version) for one in known
        )
        yield _family("winpod_instances", "Windows Server instances.", ("phase", "version"), counts)
        for name, kind, words in (
            ("winpod_instances_reachable", REACHABLE, "Whether instances answer."),
            ("winpod_instances_containerd_running", CONTAINERD_RUNNING, "Whether containerd runs."),
        ):
            found: Counter[tuple[str, ...]] = Counter(
                (status,)
                for one in known
                if (status := condition_of(one.status.conditions, kind).lower())
            )
            yield _family(name, words, ("status",), found)
        yield GaugeMetricFamily(
            "winpod_instance_entries_bad",
            "Entries of the ConfigMap that are not understood.",
            value=float(self._bad()),
        )


def _family(
    name: str, words: str, labels: tuple[str, ...], counts: Counter[tuple[str, ...]]
) -> Metric:
    family = GaugeMetricFamily(name, words, labels=labels)
    for values, count in sorted(counts.items()):
        family.add_metric(values, count)
    return family
