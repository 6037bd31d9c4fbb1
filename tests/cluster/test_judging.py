"""What is said of pods that have not started, while registries change their minds or go away."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry

from tests.cluster.api_stand_in import StandInApi, reached
from tests.e2e.objects import BUILD_2019, BUILD_2022, windows_node
from tests.images.registries import StandIn, serve
from tests.images.samples import index, windows
from winpod.cluster.admission.deciding import Fate
from winpod.cluster.admission.looking_up import Images
from winpod.cluster.admission.metrics import AdmissionMetrics
from winpod.cluster.admission.pull_secrets import PullSecrets
from winpod.cluster.judging import Judging, Rhythm
from winpod.cluster.pod_verdicts import PodVerdict
from winpod.cluster.view import CLASSES, NODES, PODS, View
from winpod.node.event_series import Event

V2019, V2022 = windows(f"{BUILD_2019}.1"), windows(f"{BUILD_2022}.1")


class Looked:
    def __init__(self, judging: Judging, images: Images, told: list[Event]) -> None:
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
async def looking(image: str, tag_seconds: float) -> AsyncIterator[Looked]:
    """At a pod that waits, with a node of one build."""
    waiting: dict[str, Any] = {
        "metadata": {"name": "web", "namespace": "apps", "uid": "u"},
        "spec": {"containers": [{"name": "app", "image": image}], "os": {"name": "windows"}},
        "status": {"phase": "Pending"},
    }
    node = windows_node("new", BUILD_2022, taints=())
    api = StandInApi({NODES: [node], CLASSES: [], PODS: [waiting]})
    async with reached(api) as server:
        view = View(server)
        images = Images(lambda: tag_seconds, AdmissionMetrics(CollectorRegistry()))
        told: list[Event] = []
        hurried = Rhythm(fresh=0.01, rest=0.01, again=0.1)
        looks = Judging(view, images, PullSecrets(server), told.append, lambda: True, hurried)
        await images.describe(image, (), 5)
        running = [asyncio.create_task(part.run()) for part in (view, looks)]
        try:
            yield Looked(looks, images, told)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            await images.close()


async def test_a_verdict_says_so_where_images_are_known_from_before_only() -> None:
    stand_in = StandIn(index(V2019))
    async with serve(stand_in) as registry:
        text = f"{registry}/app:1"
        async with looking(text, tag_seconds=0.5) as looked:
            await looked.until(lambda verdict: verdict.fate is Fate.CANNOT_RUN)
            stand_in.before = _fails
            verdict = await looked.until(lambda verdict: verdict.fate is Fate.UNKNOWN)
            assert "by what its images were when they were last looked up: no node" in (
                verdict.sentence
            )
            assert registry in verdict.sentence


async def _fails(_: web.Request) -> web.Response:
    return web.Response(status=500)


async def test_a_pod_is_not_told_to_be_hopeless_by_what_a_tag_named_once() -> None:
    stand_in = StandIn(index(V2019))
    async with serve(stand_in) as registry:
        text = f"{registry}/app:1"
        async with looking(text, tag_seconds=300) as looked:
            stand_in.image = index(V2022)
            await looked.until(lambda verdict: verdict.fate is Fate.RUNS)
            assert looked.told == []


async def test_a_pod_is_looked_at_again_when_only_its_tag_has_changed() -> None:
    stand_in = StandIn(index(V2019))
    async with serve(stand_in) as registry:
        text = f"{registry}/app:1"
        async with looking(text, tag_seconds=0.5) as looked:
            await looked.until(lambda verdict: verdict.fate is Fate.CANNOT_RUN)
            assert [event.reason for event in looked.told] == ["PodUnplaceable"]
            stand_in.image = index(V2022)
            await looked.until(lambda verdict: verdict.fate is Fate.RUNS)


async def test_a_registry_is_not_asked_anew_for_a_pod_that_stays_hopeless() -> None:
    stand_in = StandIn(index(V2019))
    async with serve(stand_in) as registry, looking(f"{registry}/app:1", 300) as looked:
        await looked.until(lambda verdict: verdict.fate is Fate.CANNOT_RUN)
        asked = len(stand_in.requests)
        await asyncio.sleep(0.5)
        assert len(stand_in.requests) == asked
