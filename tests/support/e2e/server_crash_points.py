"""API client that crashes its owner at a given write, as if killed there.

Each write up to the limit is made; after the last one no request of that process is sent.
"""

import asyncio
import math
from typing import Any

from winpod.k8s.client import ApiClient
from winpod.k8s.kubeconfig import RestConfig


class DyingServer(ApiClient):
    def __init__(self, access: RestConfig, writes: float = math.inf) -> None:
        super().__init__(access)
        self.died = asyncio.Event()
        self._writes_left = writes

    async def request(self, method: str, path: str, body: object = None, **more: Any) -> bytes:
        await self._alive()
        answer = await super().request(method, path, body, **more)
        if method != "GET":
            self._writes_left -= 1
            if self._writes_left == 0:
                self.died.set()
        await self._alive()
        return answer

    async def _alive(self) -> None:
        if self.died.is_set():
            await asyncio.Future()
