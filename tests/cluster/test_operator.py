"""The operator as a whole, with a stand-in API server: which parts it has."""

from __future__ import annotations

import asyncio
import ssl

import pytest
from aiohttp import web

from tests.cluster.api_stand_in import StandInApi
from tests.images.registries import serve
from winpod.cluster.operator import Operator, Place
from winpod.cluster.view import CLASSES, NODES, PODS
from winpod.node.access import Access

NAMESPACE = "winpod-system"
OWN = f"/api/v1/namespaces/{NAMESPACE}"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/winpod-operator"
CERTIFICATES = f"{OWN}/secrets/winpod-webhook"


class Asked(StandInApi):
    """An empty cluster that remembers which paths it was asked for."""

    def __init__(self) -> None:
        super().__init__({NODES: [], CLASSES: [], PODS: [], f"{OWN}/configmaps": []})
        self._paths: dict[str, asyncio.Event] = {}

    def is_asked_for(self, path: str) -> asyncio.Event:
        return self._paths.setdefault(path, asyncio.Event())

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        self.is_asked_for(request.path).set()
        return await super().__call__(request)


@pytest.mark.parametrize("has_webhook", [True, False])
async def test_certificates_are_looked_after_only_where_there_is_a_webhook(
    has_webhook: bool,
) -> None:
    api = Asked()
    async with serve(api) as address, asyncio.timeout(60):
        access = Access(f"http://{address}", ssl.create_default_context())
        place = Place(NAMESPACE, "one", "127.0.0.1", 0, has_webhook, 0, page_port=0)
        running = asyncio.create_task(Operator(access, place).run())
        try:
            await api.is_asked_for(LEASE).wait()
            if has_webhook:
                await api.is_asked_for(CERTIFICATES).wait()
            assert api.is_asked_for(CERTIFICATES).is_set() == has_webhook
        finally:
            running.cancel()
            await asyncio.wait((running,))
