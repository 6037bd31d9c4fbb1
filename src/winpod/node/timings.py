"""How long a node takes for what it does for pods, under a kubelet's names where it has one.

Nodes that have no metrics of their own to show may share them.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from google.protobuf.message import Message
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.metrics_core import Metric

from winpod.cri.rpc import Client, function_name
from winpod.windows.errors import WinpodError

_CALL_BUCKETS = (0.005, 0.0125, 0.03125, 0.078, 0.195, 0.488, 1.22, 3.05, 7.63, 19.1, 47.7, 119.0)
_POD_BUCKETS = (0.1, 0.25, 0.5, 1, 2, 3, 4, 6, 8, 10, 20, 30, 45, 60, 120, 300, 600)
_TOLD_BUCKETS = (0.01, 0.05, 0.1, 0.5, 1, 5, 10, 20, 30, 45, 60)


class Timings:
    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._calls = Histogram(
            "kubelet_runtime_operations_duration_seconds",
            "Calls of the runtime, by their kind.",
            ("operation_type",),
            registry=self._registry,
            buckets=_CALL_BUCKETS,
        )
        self._failures = Counter(
            "kubelet_runtime_operations_errors",
            "Calls of the runtime that failed.",
            ("operation_type",),
            registry=self._registry,
        )
        self._volumes = Histogram(
            "winpod_node_pod_volumes_duration_seconds",
            "All volumes of a pod, made or removed.",
            ("operation_type",),
            registry=self._registry,
            buckets=_CALL_BUCKETS,
        )
        self._starts = Histogram(
            "kubelet_pod_start_duration_seconds",
            "From the node seeing a pod for the first time to the pod running.",
            registry=self._registry,
            buckets=_POD_BUCKETS,
        )
        self._told = Histogram(
            "kubelet_pod_status_sync_duration_seconds",
            "From a change of a pod's status to the API server having it.",
            registry=self._registry,
            buckets=_TOLD_BUCKETS,
        )

    def families(self) -> Iterable[Metric]:
        return self._registry.collect()

    @contextmanager
    def call(self, name: str) -> Iterator[None]:
        kind = _operation(name)
        began = time.perf_counter()
        try:
            yield
        except WinpodError:
            self._failures.labels(kind).inc()
            raise
        finally:
            self._calls.labels(kind).observe(time.perf_counter() - began)

    @contextmanager
    def volumes(self, operation: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self._volumes.labels(operation).observe(time.perf_counter() - began)

    def pod_runs(self, seconds: float) -> None:
        self._starts.observe(seconds)

    def status_told(self, seconds: float) -> None:
        self._told.observe(seconds)


@cache
def _operation(name: str) -> str:
    """As kubelets call it."""
    return function_name(name).replace("pod_sandbox", "podsandbox")


class TimedRuntime(Client):
    """A client of the runtime whose calls are timed."""

    def __init__(self, client: Client, timings: Timings) -> None:
        self._client = client
        self._timings = timings

    async def call(self, name: str, request: Message) -> Any:
        with self._timings.call(name):
            return await self._client.call(name, request)

    async def stream(self, name: str, request: Message) -> AsyncIterator[Any]:
        async for message in self._client.stream(name, request):
            yield message

    async def close(self) -> None:
        await self._client.close()
