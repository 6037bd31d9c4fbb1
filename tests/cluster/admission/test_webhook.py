"""What the webhook answers to whatever is asked of it, over HTTP, with a stand-in API server."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from tests.cluster.api_stand_in import StandInApi, reached
from tests.e2e.objects import (
    BUILD_2019,
    BUILD_2022,
    PROCESS,
    linux_node,
    runtime_class,
    windows_node,
)
from tests.images.registries import StandIn, serve
from tests.images.samples import index, windows
from winpod.cluster.admission.looking_up import Images
from winpod.cluster.admission.metrics import AdmissionMetrics
from winpod.cluster.admission.pull_secrets import PullSecrets
from winpod.cluster.admission.webhook import MUTATE_PODS, VALIDATE_PODS, Webhook
from winpod.cluster.live_settings import LiveSettings
from winpod.cluster.view import CLASSES, NODES, PODS, View

NAMESPACE = "winpod-system"
CONFIG_MAPS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
V2022 = windows(f"{BUILD_2022}.1")
Object = dict[str, Any]


def cluster() -> dict[str, list[Object]]:
    return {
        NODES: [
            windows_node("old", BUILD_2019),
            windows_node("new", BUILD_2022),
            linux_node("linux"),
        ],
        CLASSES: [
            runtime_class("windows-2019", PROCESS, BUILD_2019),
            runtime_class("windows-2022", PROCESS, BUILD_2022),
        ],
        PODS: [],
        CONFIG_MAPS: [],
    }


def configured(text: str) -> Object:
    return {"metadata": {"name": "winpod-operator"}, "data": {"config.yaml": text}}


@dataclass
class Answered:
    status: int
    text: str
    seconds: float

    @property
    def response(self) -> Object:
        assert self.status == 200, self.text
        return dict(json.loads(self.text)["response"])

    @property
    def patches(self) -> dict[str, Any]:
        patch = json.loads(base64.b64decode(self.response.get("patch", "W10=")))
        return {one["path"]: one["value"] for one in patch}


class Asking:
    """A webhook that listens, with all that it knows."""

    def __init__(self, url: str, session: aiohttp.ClientSession, webhook: Webhook) -> None:
        self.webhook = webhook
        self._url = url
        self._session = session

    async def post(self, path: str, body: bytes, patience: str = "10s") -> Answered:
        began = time.monotonic()
        async with self._session.post(f"{self._url}{path}?timeout={patience}", data=body) as answer:
            return Answered(answer.status, await answer.text(), time.monotonic() - began)

    async def review(self, path: str, obj: Object | None, **request: Any) -> Answered:
        patience = request.pop("patience", "10s")
        told = {"uid": "u", "namespace": "apps", "object": obj, "operation": "CREATE", **request}
        return await self.post(path, json.dumps({"request": told}).encode(), patience)


@asynccontextmanager
async def asking(api: StandInApi) -> AsyncIterator[Asking]:
    async with reached(api) as server:
        view, settings = View(server), LiveSettings(server, NAMESPACE)
        metrics = AdmissionMetrics(CollectorRegistry())
        images = Images(lambda: settings.now.admission.tag_seconds, metrics)
        webhook = Webhook(view, images, PullSecrets(server), settings, metrics, NAMESPACE)
        application = web.Application(client_max_size=16 * 1024**2)
        application.add_routes(webhook.routes())
        runner = web.AppRunner(application, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        following = [asyncio.create_task(part.run()) for part in (view, settings)]
        try:
            async with aiohttp.ClientSession() as session:
                yield Asking(f"http://127.0.0.1:{runner.addresses[0][1]}", session, webhook)
        finally:
            for task in following:
                task.cancel()
            await asyncio.gather(*following, return_exceptions=True)
            await images.close()
            await runner.cleanup()


def pod(image: str, **spec: Any) -> Object:
    spec = {"containers": [{"name": "app", "image": image}], **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}


class TestAnOperatorThatHasJustBegun:
    """What it does not know yet: the settings, which may exempt a namespace, or its nodes."""

    @pytest.mark.parametrize("missing", [CONFIG_MAPS, NODES])
    async def test_waits_for_what_it_does_not_know_and_answers_by_it(self, missing: str) -> None:
        api = StandInApi(cluster() | {CONFIG_MAPS: [configured("classes: {enabled: false}")]})
        api.silent[missing] = asyncio.Event()
        async with serve(StandIn(index(V2022))) as registry, asking(api) as webhook:
            asked = asyncio.create_task(webhook.review(MUTATE_PODS, pod(f"{registry}/app:1")))
            await asyncio.sleep(0.2)
            assert not asked.done()
            api.silent[missing].set()
            patches = (await asked).patches
            assert "/spec/nodeSelector" in patches
            assert "/spec/runtimeClassName" not in patches

    async def test_leaves_it_to_the_failure_policy_before_the_api_server_stops_waiting(
        self,
    ) -> None:
        api = StandInApi(cluster())
        api.silent[CONFIG_MAPS] = asyncio.Event()
        async with asking(api) as webhook:
            answered = await webhook.review(VALIDATE_PODS, pod("app:1"), patience="1s")
            assert (answered.status, answered.seconds < 1) == (503, True)
            api.silent[CONFIG_MAPS].set()
