"""Tests of looking up the images of played pods."""

from pathlib import Path

from aiohttp import web

from tests.support.registries import serve
from winpod.k8s.models import core_v1 as v1
from winpod.k8s.models.meta_v1 import ObjectMeta
from winpod.play.apiserver.store import ObjectStore
from winpod.play.image_lookup import PodImageLookup


def pod(*images: str) -> v1.Pod:
    containers = [v1.Container(name=f"c{number}", image=i) for number, i in enumerate(images)]
    return v1.Pod(
        metadata=ObjectMeta(name="web", namespace="default"),
        spec=v1.PodSpec(containers=containers),
    )


async def test_failed_lookup_is_reported_and_the_build_is_guessed(tmp_path: Path) -> None:
    asked = []

    async def missing(request: web.Request) -> web.StreamResponse:
        asked.append(request.path)
        return web.Response(status=404)

    lookup = PodImageLookup(ObjectStore(tmp_path / "records.db"))
    async with serve(missing) as address:
        guessable, unknown = f"{address}/app:ltsc2022", f"{address}/app:1"
        images = await lookup.look_up(pod(guessable, unknown))
        assert list(images.found) == [guessable]
        assert images.found[guessable].is_guess
        assert len(images.errors) == 2
        before = len(asked)
        assert await lookup.look_up(pod(guessable, unknown)) == images
        assert len(asked) == before
        lookup.invalidate()
        await lookup.look_up(pod(guessable))
        assert len(asked) > before
    await lookup.close()
