"""Tests of the webhook over HTTP, with a stand-in API server."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import aiohttp
import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from tests.support.e2e.objects import (
    BUILD_2019,
    BUILD_2022,
    PROCESS,
    linux_node,
    runtime_class,
    windows_node,
)
from tests.support.fake_api_server import StandInApi, reached
from tests.support.image_samples import index, windows
from tests.support.registries import StandIn, serve
from winpod.operator import cached_objects
from winpod.operator.admission.metrics import AdmissionMetrics
from winpod.operator.admission.webhook import MUTATE_PODS, VALIDATE_PODS, WARN_WORKLOADS, Webhook
from winpod.operator.cluster_cache import CLASSES, NODES, PODS, ClusterCache
from winpod.operator.image_lookup import operator_lookup
from winpod.operator.pull_secrets import PullSecrets
from winpod.operator.settings import AdmissionSettings
from winpod.operator.settings_watcher import SettingsWatcher

NAMESPACE = "winpod-system"
CONFIG_MAPS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
V2022 = windows(f"{BUILD_2022}.1")
LONG = AdmissionSettings().budget_seconds
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
class Response:
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


class RunningWebhook:
    """A listening webhook with its cache and settings."""

    def __init__(self, url: str, session: aiohttp.ClientSession, webhook: Webhook) -> None:
        self.webhook = webhook
        self._url = url
        self._session = session

    async def post(self, path: str, body: bytes, patience: str = "10s") -> Response:
        began = time.monotonic()
        async with self._session.post(f"{self._url}{path}?timeout={patience}", data=body) as answer:
            return Response(answer.status, await answer.text(), time.monotonic() - began)

    async def review(self, path: str, obj: Object | None, **request: Any) -> Response:
        patience = request.pop("patience", "10s")
        told = {"uid": "u", "namespace": "apps", "object": obj, "operation": "CREATE", **request}
        return await self.post(path, json.dumps({"request": told}).encode(), patience)


@asynccontextmanager
async def asking(api: StandInApi) -> AsyncIterator[RunningWebhook]:
    async with reached(api) as server:
        view, settings = ClusterCache(server), SettingsWatcher(server, NAMESPACE)
        metrics = AdmissionMetrics(CollectorRegistry())
        images = operator_lookup(lambda: settings.now.admission.tag_seconds, metrics)
        webhook = Webhook(view, images, PullSecrets(server), settings, metrics, NAMESPACE)
        application = web.Application(client_max_size=16 * 1024**2)
        application.add_routes(webhook.routes())
        runner = web.AppRunner(application, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        following = [asyncio.create_task(part.run()) for part in (view, settings)]
        try:
            async with aiohttp.ClientSession() as session:
                yield RunningWebhook(f"http://127.0.0.1:{runner.addresses[0][1]}", session, webhook)
        finally:
            for task in following:
                task.cancel()
            await asyncio.gather(*following, return_exceptions=True)
            await images.close()
            await runner.cleanup()


def pod(image: str, **spec: Any) -> Object:
    spec = {"containers": [{"name": "app", "image": image}], **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}


class TestUnsyncedOperator:
    """Settings, which may exempt a namespace, or nodes are not synced yet."""

    @pytest.mark.parametrize("missing", [CONFIG_MAPS, NODES])
    async def test_review_waits_until_synced(self, missing: str) -> None:
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

    async def test_unsynced_webhook_fails_before_the_api_server_times_out(
        self,
    ) -> None:
        api = StandInApi(cluster())
        api.silent[CONFIG_MAPS] = asyncio.Event()
        async with asking(api) as webhook:
            answered = await webhook.review(VALIDATE_PODS, pod("app:1"), patience="1s")
            assert (answered.status, answered.seconds < 1) == (503, True)
            api.silent[CONFIG_MAPS].set()

    async def test_invalid_initial_settings_fail_immediately(
        self,
    ) -> None:
        bad = configured("admision: {enabled: false}")
        api = StandInApi(cluster() | {CONFIG_MAPS: [bad]})
        async with serve(StandIn(index(V2022))) as registry, asking(api) as webhook:
            new = pod(f"{registry}/app:1")
            answered = await webhook.review(MUTATE_PODS, new)
            assert (answered.status, answered.seconds < LONG) == (503, True)
            deadline = time.monotonic() + 30
            while (answered := await webhook.review(MUTATE_PODS, new)).status == 503:
                assert time.monotonic() < deadline
                api.tell(CONFIG_MAPS, "MODIFIED", configured("classes: {enabled: false}"))
                await asyncio.sleep(0.02)
            assert "/spec/nodeSelector" in answered.patches


def deployment(image: str, **spec: Any) -> Object:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "d"},
        "spec": {"template": {"spec": pod(image, **spec)["spec"]}},
    }


@asynccontextmanager
async def asking_with_image() -> AsyncIterator[tuple[RunningWebhook, str, StandInApi]]:
    """The image is for Windows Server 2022."""
    api = StandInApi(cluster())
    async with serve(StandIn(index(V2022))) as address, asking(api) as webhook:
        yield webhook, f"{address}/app:1", api


class TestReviewRequests:
    async def test_only_pod_creation_is_reviewed(self) -> None:
        async with asking_with_image() as (webhook, image, _):
            against = pod(image, runtimeClassName="windows-2019")
            exec_ = {"kind": "PodExecOptions", "apiVersion": "v1", "command": ["cmd"]}
            for path in (MUTATE_PODS, VALIDATE_PODS):
                for operation, obj in (
                    ("UPDATE", against),
                    ("DELETE", None),
                    ("CONNECT", exec_),
                    ("CREATE", None),
                    ("CREATE", {}),
                    ("CREATE", deployment(image)),
                ):
                    answered = await webhook.review(path, obj, operation=operation)
                    assert answered.response == {"uid": "u", "allowed": True}, operation
            for obj in (None, {}, against, {"kind": "Scale", "apiVersion": "autoscaling/v1"}):
                answered = await webhook.review(WARN_WORKLOADS, obj, operation="UPDATE")
                assert answered.response == {"uid": "u", "allowed": True}

    async def test_response_has_the_review_version(self) -> None:
        async with asking_with_image() as (webhook, _, __):
            request = '{"uid": "u", "object": %s}'
            for body in (
                "",
                "[]",
                "{}",
                '{"request": {"uid": "u", "operation": "PATCH"}}',
                '{"apiVersion": "admission.k8s.io/v1beta1", "request": {"uid": "u"}}',
                '{"request": %s}' % (request % ('{"a":' * 5000 + "1" + "}" * 5000)),
            ):
                answered = await webhook.post(VALIDATE_PODS, body.encode())
                assert (answered.status, answered.seconds < 1) == (400, True)
            good = '{"apiVersion": "admission.k8s.io/v1", "request": {"uid": "u"}}'
            assert (await webhook.post(VALIDATE_PODS, good.encode())).response["allowed"]

    async def test_may_be_about_a_pod_of_ten_megabytes(self) -> None:
        async with asking_with_image() as (webhook, image, _):
            large = pod(image)
            large["metadata"]["annotations"] = {f"a{n}": "x" * 100_000 for n in range(100)}
            answered = await webhook.review(MUTATE_PODS, large)
            assert answered.patches == {"/spec/runtimeClassName": "windows-2022"}


class TestOversizedPods:
    MANY: ClassVar[dict[str, Object]] = {
        "containers": {"containers": [{"name": f"c{n}", "image": "app"} for n in range(5000)]},
        "labels in its nodeSelector": {"nodeSelector": {f"key{n}": "x" for n in range(20_000)}},
        "tolerations": {"tolerations": [{"key": f"key{n}"} for n in range(20_000)]},
        "pull secrets": {"imagePullSecrets": [{"name": f"login{n}"} for n in range(5000)]},
        "requested resources": {
            "resources": {"requests": {f"example.test/{n}": "1" for n in range(5000)}}
        },
        "values in its node affinity": {
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [
                            {"matchExpressions": [{"key": f"key{n}", "operator": "Exists"}]}
                            for n in range(5000)
                        ]
                    }
                }
            }
        },
    }

    async def test_are_admitted_immediately_with_a_warning(self) -> None:
        assert self.MANY.keys() == cached_objects.SIZE_LIMITS.keys()
        async with asking_with_image() as (webhook, image, _):
            for what, spec in self.MANY.items():
                many = pod(image, **spec)
                answered = await webhook.review(VALIDATE_PODS, many)
                assert (answered.response["allowed"], answered.seconds < 1) == (True, True)
                assert what in answered.response["warnings"][0]
                assert (await webhook.review(MUTATE_PODS, many)).patches == {}
                silent = await webhook.review(WARN_WORKLOADS, deployment(image, **spec))
                assert silent.response == {"uid": "u", "allowed": True}

    async def test_are_rejected_when_failing_closed(self) -> None:
        api = StandInApi(cluster() | {CONFIG_MAPS: [configured("admission: {failOpen: false}")]})
        async with asking(api) as webhook:
            many = pod("app:1", **self.MANY["tolerations"])
            answered = await webhook.review(VALIDATE_PODS, many)
            assert "more than 200 tolerations" in answered.response["status"]["message"]


class TestUnusualPods:
    async def test_get_the_class_of_whatever_images_they_have(self) -> None:
        async with asking_with_image() as (webhook, image, _):
            started = [{"name": "init", "image": image}]
            digest = f"{image.rpartition(':')[0]}@{index(V2022).root.digest}"
            for spec in (
                {"initContainers": started},
                {"containers": [{"name": "c", "image": digest}]},
                {"ephemeralContainers": [{"name": "debug", "image": "127.0.0.1:1/x"}]},
            ):
                answered = await webhook.review(MUTATE_PODS, pod(image, **spec))
                assert answered.patches == {"/spec/runtimeClassName": "windows-2022"}, spec

    async def test_without_an_image_are_left_to_the_api_server(self) -> None:
        async with asking_with_image() as (webhook, image, _):
            for containers in ([{"name": "c"}], [], None):
                for path in (MUTATE_PODS, VALIDATE_PODS):
                    answered = await webhook.review(path, pod(image, containers=containers))
                    assert answered.response == {"uid": "u", "allowed": True}

    async def test_linux_pods_with_windows_images_are_rejected_once_cached(self) -> None:
        async with asking_with_image() as (webhook, image, _):
            for_linux = pod(image, os={"name": "linux"})
            assert (await webhook.review(VALIDATE_PODS, for_linux)).response["allowed"]
            await webhook.review(VALIDATE_PODS, pod(image))
            refused = (await webhook.review(VALIDATE_PODS, for_linux)).response
            assert "is for windows only" in refused["status"]["message"]

    async def test_rejections_are_recorded_except_dry_runs(self) -> None:
        async with asking_with_image() as (webhook, image, _):
            against = pod(image, runtimeClassName="windows-2019")
            del against["metadata"]["name"]
            against["metadata"]["generateName"] = "web-"
            for more in ({"dryRun": True}, {"namespace": NAMESPACE}, {"namespace": "kube-system"}):
                await webhook.review(VALIDATE_PODS, against, **more)
            assert list(webhook.webhook.refusals) == []
            await webhook.review(VALIDATE_PODS, against)
            assert [(one.namespace, one.name) for one in webhook.webhook.refusals] == [
                ("apps", "web-")
            ]


class TestWhileTheClusterChanges:
    async def until(self, webhook: RunningWebhook, obj: Object, patches: dict[str, Any]) -> None:
        deadline = time.monotonic() + 10
        while (found := (await webhook.review(MUTATE_PODS, obj)).patches) != patches:
            assert time.monotonic() < deadline, found
            await asyncio.sleep(0.02)

    async def test_deleted_class_is_not_assigned(self) -> None:
        async with asking_with_image() as (webhook, image, api):
            new = pod(image)
            await self.until(webhook, new, {"/spec/runtimeClassName": "windows-2022"})
            api.tell(CLASSES, "DELETED", runtime_class("windows-2022", PROCESS, BUILD_2022))
            await self.until(webhook, new, {})
            named = pod(image, runtimeClassName="windows-2022")
            answered = await webhook.review(VALIDATE_PODS, named)
            assert 'there is no RuntimeClass "windows-2022"' in answered.response["warnings"][0]

    async def test_invalid_settings_change_nothing_and_empty_ones_are_defaults(
        self,
    ) -> None:
        async with asking_with_image() as (webhook, image, api):
            new, classed = pod(image), {"/spec/runtimeClassName": "windows-2022"}
            await self.until(webhook, new, classed)
            api.tell(CONFIG_MAPS, "ADDED", configured("admission: {exemptNamespaces: [apps]}"))
            await self.until(webhook, new, {})
            for garbage in ("[" * 1000, "admission: 3", "x" * 900_000):
                api.tell(CONFIG_MAPS, "MODIFIED", configured(garbage))
            api.tell(CONFIG_MAPS, "MODIFIED", {"metadata": {"name": "winpod-operator"}})
            await self.until(webhook, new, classed)
            api.tell(CONFIG_MAPS, "MODIFIED", configured("admission: {enabled: false}"))
            await self.until(webhook, new, {})
            api.tell(CONFIG_MAPS, "DELETED", configured("admission: {enabled: false}"))
            api.tell(CONFIG_MAPS, "ADDED", configured(""))
            await self.until(webhook, new, classed)
