"""The kubelet's client of the container runtime: timeouts, metrics and logs of every call."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

import grpc
from google.protobuf.message import Message

from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import CriClient, RemoteError
from winpod.errors import Unavailable, WinpodError
from winpod.kubelet.metrics import KubeletMetrics

CALL_TIMEOUT = 120.0
NETWORK = "NetworkReady"
_READY_CACHE_SECONDS = 5.0
_log = logging.getLogger(__name__)


def unready_conditions(conditions: Iterable[api.RuntimeCondition]) -> Iterator[str]:
    """Yield the runtime conditions that are false, worded as the kubelet words them."""
    for condition in conditions:
        if not condition.status:
            component = (
                "container runtime network" if condition.type == NETWORK else "container runtime"
            )
            detail = f"{condition.type}=false reason:{condition.reason} message:{condition.message}"
            yield f"{component} not ready: {detail}"


class RuntimeCallTimeout(Unavailable):
    def __init__(self, name: str, seconds: float) -> None:
        super().__init__(f"the runtime did not answer {name} in {seconds:g} s.")


class RuntimeClient:
    def __init__(self, client: CriClient, metrics: KubeletMetrics) -> None:
        self._client = client
        self._metrics = metrics
        self._network_ready_until = 0.0
        self._network_lock = asyncio.Lock()

    async def call(self, name: str, request: Message, seconds: float | None = CALL_TIMEOUT) -> Any:
        """Call the runtime. `seconds` is None for calls whose duration the caller cannot know.

        Requests are not logged: they contain credentials and environments.
        """
        started_at = time.perf_counter()
        try:
            with self._metrics.time_runtime_call(name):
                return await self._call_with_timeout(name, request, seconds)
        except WinpodError as error:
            duration = time.perf_counter() - started_at
            _log.log(_level(error), "%s failed after %.3f s: %s", name, duration, error)
            raise

    async def _call_with_timeout(self, name: str, request: Message, seconds: float | None) -> Any:
        try:
            async with asyncio.timeout(seconds):
                return await self._client.call(name, request)
        except TimeoutError:
            if seconds is None:
                raise
            raise RuntimeCallTimeout(name, seconds) from None

    def stream(self, name: str, request: Message) -> AsyncIterator[Any]:
        """Call a streaming method. It has no timeout and is not measured."""
        return self._client.stream(name, request)

    async def network_unready_reason(self) -> str:
        """Return why the pod network is not ready, or "".

        Concurrent callers share one call, and a ready network is cached for a few seconds.
        """
        async with self._network_lock:
            if time.monotonic() < self._network_ready_until:
                return ""
            answer = await self.call("Status", api.StatusRequest())
            network_conditions = (c for c in answer.status.conditions if c.type == NETWORK)
            reason = next(unready_conditions(network_conditions), "")
            if not reason:
                self._network_ready_until = time.monotonic() + _READY_CACHE_SECONDS
            return reason


def _level(error: WinpodError) -> int:
    """Return the log level of a failed call.

    What does not exist is an expected answer, and an unreachable runtime fails every call until the
    PLEG, which logs it once, reaches it again.
    """
    if isinstance(error, RuntimeCallTimeout):
        return logging.WARNING
    if isinstance(error, RemoteError) and error.status is not grpc.StatusCode.NOT_FOUND:
        return logging.INFO
    return logging.DEBUG
