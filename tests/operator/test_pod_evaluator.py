"""Tests of evaluating pending pods while registries change or are unreachable."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry

from tests.support.e2e.objects import BUILD_2019, BUILD_2022, windows_node
from tests.support.fake_api_server import StandInApi, reached
from tests.support.image_samples import index, windows
from tests.support.registries import StandIn, serve
from winpod.images.lookup import ImageLookup
from winpod.k8s.event_recorder import Event
from winpod.operator.admission.metrics import AdmissionMetrics
from winpod.operator.admission.review import ReviewOutcome
from winpod.operator.cluster_cache import CLASSES, NODES, PODS, ClusterCache
from winpod.operator.image_lookup import operator_lookup
from winpod.operator.pod_evaluator import EvaluationPeriods, PodEvaluator, PodVerdict
from winpod.operator.pull_secrets import PullSecrets

V2019, V2022 = windows(f"{BUILD_2019}.1"), windows(f"{BUILD_2022}.1")


class Evaluation:
    def __init__(self, judging: PodEvaluator, images: ImageLookup, told: list[Event]) -> None:
        self.images = images
        self.told = told
        self._judging = judging

    async def until(self, holds: Callable[[PodVerdict], bool]) -> PodVerdict:
        deadline = time.monotonic() + 10
        while True:
            verdict = self._judging.verdicts().get(("apps", "web"))
            if verdict and holds(verdict):
                return verdict
            assert time.monotonic() < deadline, verdict
            await asyncio.sleep(0.02)


@asynccontextmanager
async def evaluating(image: str, tag_seconds: float) -> AsyncIterator[Evaluation]:
    """Evaluation of a pending pod in a cluster with one node."""
    waiting: dict[str, Any] = {
        "metadata": {"name": "web", "namespace": "apps", "uid": "u"},
        "spec": {"containers": [{"name": "app", "image": image}], "os": {"name": "windows"}},
        "status": {"phase": "Pending"},
    }
    node = windows_node("new", BUILD_2022, taints=())
    api = StandInApi({NODES: [node], CLASSES: [], PODS: [waiting]})
    async with reached(api) as server:
        view = ClusterCache(server)
        images = operator_lookup(lambda: tag_seconds, AdmissionMetrics(CollectorRegistry()))
        told: list[Event] = []
        hurried = EvaluationPeriods(fresh=0.01, rest=0.01, again=0.1)
        looks = PodEvaluator(view, images, PullSecrets(server), told.append, lambda: True, hurried)
        await images.describe(image, (), 5)
        running = [asyncio.create_task(part.run()) for part in (view, looks)]
        try:
            yield Evaluation(looks, images, told)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            await images.close()


async def test_verdict_of_stale_images_has_a_caveat() -> None:
    stand_in = StandIn(index(V2019))
    async with serve(stand_in) as registry:
        text = f"{registry}/app:1"
        async with evaluating(text, tag_seconds=0.5) as looked:
            await looked.until(lambda verdict: verdict.outcome is ReviewOutcome.CANNOT_RUN)
            stand_in.before = _fails
            verdict = await looked.until(lambda verdict: verdict.outcome is ReviewOutcome.UNKNOWN)
            assert "according to its images when last resolved: no node" in (verdict.message)
            assert registry in verdict.message


async def _fails(_: web.Request) -> web.Response:
    return web.Response(status=500)


async def test_stale_tag_is_refreshed_before_reporting_unplaceable() -> None:
    stand_in = StandIn(index(V2019))
    async with serve(stand_in) as registry:
        text = f"{registry}/app:1"
        async with evaluating(text, tag_seconds=300) as looked:
            stand_in.image = index(V2022)
            await looked.until(lambda verdict: verdict.outcome is ReviewOutcome.RUNS)
            assert looked.told == []


async def test_pod_is_evaluated_again_after_its_tag_changed() -> None:
    stand_in = StandIn(index(V2019))
    async with serve(stand_in) as registry:
        text = f"{registry}/app:1"
        async with evaluating(text, tag_seconds=0.5) as looked:
            await looked.until(lambda verdict: verdict.outcome is ReviewOutcome.CANNOT_RUN)
            assert [event.reason for event in looked.told] == ["PodUnplaceable"]
            stand_in.image = index(V2022)
            await looked.until(lambda verdict: verdict.outcome is ReviewOutcome.RUNS)


async def test_unplaceable_pod_does_not_cause_repeated_lookups() -> None:
    stand_in = StandIn(index(V2019))
    async with serve(stand_in) as registry, evaluating(f"{registry}/app:1", 300) as looked:
        await looked.until(lambda verdict: verdict.outcome is ReviewOutcome.CANNOT_RUN)
        asked = len(stand_in.requests)
        await asyncio.sleep(0.5)
        assert len(stand_in.requests) == asked
