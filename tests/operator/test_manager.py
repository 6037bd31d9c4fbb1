"""Tests of the operator's manager with a stand-in API server."""

from __future__ import annotations

import asyncio
import ssl

import pytest
from aiohttp import web

from tests.support.fake_api_server import StandInApi
from tests.support.registries import serve
from winpod.k8s.kubeconfig import RestConfig
from winpod.operator.cluster_cache import CLASSES, NODES, PODS
from winpod.operator.manager import OperatorManager, OperatorOptions

NAMESPACE = "winpod-system"
OWN = f"/api/v1/namespaces/{NAMESPACE}"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/winpod-operator"
CERTIFICATES = f"{OWN}/secrets/winpod-webhook"


class RecordingApi(StandInApi):
    """An empty cluster that records requested paths."""

    def __init__(self) -> None:
        super().__init__({NODES: [], CLASSES: [], PODS: [], f"{OWN}/configmaps": []})
        self._paths: dict[str, asyncio.Event] = {}

    def is_asked_for(self, path: str) -> asyncio.Event:
        return self._paths.setdefault(path, asyncio.Event())

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        self.is_asked_for(request.path).set()
        return await super().__call__(request)


@pytest.mark.parametrize("has_webhook", [True, False])
async def test_certificates_are_managed_only_with_the_webhook(
    has_webhook: bool,
) -> None:
    api = RecordingApi()
    async with serve(api) as address, asyncio.timeout(60):
        access = RestConfig(f"http://{address}", ssl.create_default_context())
        place = OperatorOptions(NAMESPACE, "one", "127.0.0.1", 0, has_webhook, 0, page_port=0)
        running = asyncio.create_task(OperatorManager(access, place).run())
        try:
            await api.is_asked_for(LEASE).wait()
            if has_webhook:
                await api.is_asked_for(CERTIFICATES).wait()
            assert api.is_asked_for(CERTIFICATES).is_set() == has_webhook
        finally:
            running.cancel()
            await asyncio.wait((running,))
