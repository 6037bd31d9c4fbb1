"""What registries say of images, for those who move workloads by it."""

from tests.cluster.admission.test_looking_up import V2019, V2022, looking
from tests.images.registries import StandIn, serve
from tests.images.samples import index
from winpod.cluster.upgrade.survey import RecentImages


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_what_a_tag_named_once_moves_nobody() -> None:
    """An admission looked it up before, and its answer is still good enough for pods."""
    stand_in, clock = StandIn(index(V2019)), Clock()
    async with looking() as images:
        recent = RecentImages(images, clock)
        async with serve(stand_in) as address:
            text = f"{address}/app:1"
            await images.describe(text, (), 5)
            stand_in.image = index(V2022)
            found = await recent.look_up(text, ())
            assert found.image
            assert (found.image.builds(), found.problem) == (("10.0.20348.2113",), "")
            asked = stand_in.count("HEAD")
            assert await recent.look_up(text, ()) == found
            assert stand_in.count("HEAD") == asked
        clock.now = 61
        assert (await recent.look_up(text, ())).problem


async def test_what_a_digest_names_is_known_for_good() -> None:
    stand_in, clock = StandIn(index(V2019)), Clock()
    name = f"app@{stand_in.image.root.digest}"
    async with looking() as images:
        recent = RecentImages(images, clock)
        async with serve(stand_in) as address:
            await recent.look_up(f"{address}/{name}", ())
        clock.now = 1000
        assert (await recent.look_up(f"{address}/{name}", ())).problem == ""


async def test_a_registry_that_is_not_there_makes_an_image_unknown() -> None:
    async with looking() as images:
        found = await RecentImages(images).look_up("127.0.0.1:9/app:ltsc2022", ())
        assert found.problem
