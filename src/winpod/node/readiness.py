"""Whether the runtime can connect pods: asked before a pod begins, and while it can, not often."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator

from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import Client
from winpod.node.view import call_in_time

_KEPT_SECONDS = 5.0
NETWORK = "NetworkReady"


def troubles(conditions: Iterable[api.RuntimeCondition]) -> Iterator[str]:
    """What does not hold of the runtime, in a kubelet's words."""
    for told in conditions:
        if not told.status:
            part = "container runtime network" if told.type == NETWORK else "container runtime"
            why = f"{told.type}=false reason:{told.reason} message:{told.message}"
            yield f"{part} not ready: {why}"


class Readiness:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._good_until = 0.0
        self._turn = asyncio.Lock()

    async def trouble(self) -> str:
        """Empty where pods can be connected. Many that begin at once ask once."""
        async with self._turn:
            if time.monotonic() < self._good_until:
                return ""
            answer = await call_in_time(self._client, "Status", api.StatusRequest())
            of_network = (c for c in answer.status.conditions if c.type == NETWORK)
            trouble = next(troubles(of_network), "")
            if not trouble:
                self._good_until = time.monotonic() + _KEPT_SECONDS
            return trouble
