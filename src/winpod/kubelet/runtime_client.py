"""Calls to the container runtime: timeouts, metrics, and its readiness condition.

Readiness is checked before a sandbox is created; a positive result is cached for a few seconds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

from google.protobuf.message import Message

from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import CriClient
from winpod.errors import Unavailable
from winpod.kubelet.metrics import KubeletMetrics

CALL_TIMEOUT = 120.0


_READY_CACHE_SECONDS = 5.0
NETWORK = "NetworkReady"


def unready_conditions(conditions: Iterable[api.RuntimeCondition]) -> Iterator[str]:
    """Yield the runtime conditions that are false, worded as the kubelet words them."""
    for condition in conditions:
        if not condition.status:
            component = (
                "container runtime network" if condition.type == NETWORK else "container runtime"
            )
            detail = f"{condition.type}=false reason:{condition.reason} message:{condition.message}"
            yield f"{component} not ready: {detail}"


class RuntimeReadiness:
    def __init__(self, client: CriClient) -> None:
        self._client = client
        self._ready_until = 0.0
        self._lock = asyncio.Lock()

    async def unavailable_reason(self) -> str:
        """Return why the pod network is not ready, or "". Concurrent callers share one call."""
        async with self._lock:
            if time.monotonic() < self._ready_until:
                return ""
            answer = await call_with_timeout(self._client, "Status", api.StatusRequest())
            network_conditions = (c for c in answer.status.conditions if c.type == NETWORK)
            reason = next(unready_conditions(network_conditions), "")
            if not reason:
                self._ready_until = time.monotonic() + _READY_CACHE_SECONDS
            return reason


class InstrumentedClient(CriClient):
    """CRI client that records the duration of each call."""

    def __init__(self, client: CriClient, metrics: KubeletMetrics) -> None:
        self._client = client
        self._metrics = metrics

    async def call(self, name: str, request: Message) -> Any:
        with self._metrics.time_runtime_call(name):
            return await self._client.call(name, request)

    async def stream(self, name: str, request: Message) -> AsyncIterator[Any]:
        async for message in self._client.stream(name, request):
            yield message

    async def close(self) -> None:
        await self._client.close()


async def call_with_timeout(
    client: CriClient, name: str, request: Message, seconds: float = CALL_TIMEOUT
) -> Any:
    """Call the runtime; a call that times out raises `Unavailable`."""
    try:
        async with asyncio.timeout(seconds):
            return await client.call(name, request)
    except TimeoutError:
        raise Unavailable(f"the runtime did not answer {name} in {seconds:g} s.") from None
