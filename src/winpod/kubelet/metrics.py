"""Latency metrics of the node agent, under the kubelet's names where it has them.

Nodes that do not expose their own metrics may share an instance.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.metrics_core import Metric

from winpod.cri.rpc import function_name

_CALL_BUCKETS = (0.005, 0.0125, 0.03125, 0.078, 0.195, 0.488, 1.22, 3.05, 7.63, 19.1, 47.7, 119.0)
_POD_BUCKETS = (0.1, 0.25, 0.5, 1, 2, 3, 4, 6, 8, 10, 20, 30, 45, 60, 120, 300, 600)
_STATUS_BUCKETS = (0.01, 0.05, 0.1, 0.5, 1, 5, 10, 20, 30, 45, 60)


class KubeletMetrics:
    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._calls = Histogram(
            "kubelet_runtime_operations_duration_seconds",
            "Duration of runtime operations, by operation type.",
            ("operation_type",),
            registry=self._registry,
            buckets=_CALL_BUCKETS,
        )
        self._failures = Counter(
            "kubelet_runtime_operations_errors",
            "Failed runtime operations, by operation type.",
            ("operation_type",),
            registry=self._registry,
        )
        self._volumes = Histogram(
            "winpod_node_pod_volumes_duration_seconds",
            "Duration of mounting or unmounting all volumes of a pod.",
            ("operation_type",),
            registry=self._registry,
            buckets=_CALL_BUCKETS,
        )
        self._starts = Histogram(
            "kubelet_pod_start_duration_seconds",
            "Duration from first seeing a pod to the pod running.",
            registry=self._registry,
            buckets=_POD_BUCKETS,
        )
        self._status_updates = Histogram(
            "kubelet_pod_status_sync_duration_seconds",
            "Duration from a status change of a pod to its update in the API server.",
            registry=self._registry,
            buckets=_STATUS_BUCKETS,
        )

    def families(self) -> Iterable[Metric]:
        return self._registry.collect()

    @contextmanager
    def time_runtime_call(self, name: str) -> Iterator[None]:
        kind = _operation(name)
        started_at = time.perf_counter()
        try:
            yield
        except BaseException:  # also of calls that were cancelled or timed out
            self._failures.labels(kind).inc()
            raise
        finally:
            self._calls.labels(kind).observe(time.perf_counter() - started_at)

    @contextmanager
    def time_volume_operation(self, operation: str) -> Iterator[None]:
        started_at = time.perf_counter()
        try:
            yield
        finally:
            self._volumes.labels(operation).observe(time.perf_counter() - started_at)

    def observe_pod_start(self, seconds: float) -> None:
        self._starts.observe(seconds)

    def observe_status_update(self, seconds: float) -> None:
        self._status_updates.observe(seconds)


@cache
def _operation(name: str) -> str:
    """Return the operation type under which the kubelet reports this call."""
    return function_name(name).replace("pod_sandbox", "podsandbox")
