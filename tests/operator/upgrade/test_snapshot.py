"""Tests of resolving images for upgrades."""

import pytest

from tests.support.image_lookups import V2019, V2022, open_lookup
from tests.support.image_samples import index
from tests.support.registries import StandIn, serve
from winpod.operator.upgrade.snapshot import recent_lookup


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("tag_seconds", [0, 300])
async def test_stale_tag_is_not_used_for_moves(tag_seconds: int) -> None:
    """The cached result of an earlier admission is still valid for pods, but not for moves."""
    stand_in, clock = StandIn(index(V2019)), Clock()
    async with open_lookup(tag_seconds, clock=clock) as images:
        look_up = recent_lookup(images)
        async with serve(stand_in) as address:
            text = f"{address}/app:1"
            await images.describe(text, (), 5)
            clock.now = 61
            stand_in.image = index(V2022)
            found = await look_up(text, ())
            assert found.image
            assert (found.image.builds(), found.problem) == (("10.0.20348.2113",), "")
            asked = stand_in.count("HEAD")
            assert await look_up(text, ()) == found
            assert stand_in.count("HEAD") == asked
        clock.now = 120
        refreshed = await images.describe(text, (), 5, max_age=0)
        assert refreshed.problem
        assert await look_up(text, ()) == found
        clock.now = 122
        assert (await look_up(text, ())).problem


async def test_digest_is_resolved_once() -> None:
    stand_in, clock = StandIn(index(V2019)), Clock()
    name = f"app@{stand_in.image.root.digest}"
    async with open_lookup(clock=clock) as images:
        look_up = recent_lookup(images)
        async with serve(stand_in) as address:
            await look_up(f"{address}/{name}", ())
        clock.now = 1000
        assert (await look_up(f"{address}/{name}", ())).problem == ""


async def test_image_of_an_unreachable_registry_is_unresolved() -> None:
    async with open_lookup() as images:
        found = await recent_lookup(images)("127.0.0.1:9/app:ltsc2022", ())
        assert found.problem
