"""Tests of the image lookup's cache. Those with registries are in tests/operator."""

import asyncio

import pytest

from winpod.errors import Unavailable, WinpodError
from winpod.images.errors import ImageNotFound
from winpod.images.lookup import CacheLimits, ImageLookup, Secrets
from winpod.windows.platforms import Image, Manifest, Platform


class Resolver:
    """Resolves every image, or raises `error`; `names` are the images asked for."""

    def __init__(self, error: WinpodError | None = None) -> None:
        self.error = error
        self.names: list[str] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def resolve(self, text: str, secrets: Secrets) -> Image:
        del secrets
        self.names.append(text)
        await self.may_answer.wait()
        if self.error:
            raise self.error
        platform = Platform.normalised("windows", "amd64", os_version="10.0.17763.805")
        return Image(text, "", (Manifest(digest="", platform=platform, size=0),), is_index=False)


async def test_name_is_normalised_and_tags_are_cached() -> None:
    resolver = Resolver()
    images = ImageLookup(resolver.resolve)
    assert (await images.describe("app")).is_certain
    assert (await images.describe("docker.io/library/app:latest")).is_certain
    assert resolver.names == ["docker.io/library/app:latest"]


async def test_secrets_are_part_of_the_key() -> None:
    resolver = Resolver()
    images = ImageLookup(resolver.resolve)
    for secrets in ((), ({"data": {"a": "1"}},), ({"data": {"a": "2"}},), ()):
        await images.describe("app", secrets)
    assert len(resolver.names) == 3


async def test_layout_name_is_passed_to_the_resolver_if_it_is_accepted() -> None:
    resolver = Resolver()
    images = ImageLookup(resolver.resolve, parse=lambda _: None)
    assert (await images.describe("oci:layout:app")).is_certain
    assert resolver.names == ["oci:layout:app"]


async def test_invalid_name_is_missing_and_has_a_hint() -> None:
    found = await ImageLookup(Resolver().resolve).describe("App")
    assert found.is_missing
    assert (found.image, found.hint) == (None, "Write library/app, perhaps.")


@pytest.mark.parametrize(
    ("error", "is_missing", "is_guess"),
    [
        (ImageNotFound("no such image.", "Push it."), True, False),
        (Unavailable("no answer.", "Push it."), False, True),
    ],
)
async def test_failure_has_the_error_and_a_guess_unless_the_image_is_missing(
    error: WinpodError, is_missing: bool, is_guess: bool
) -> None:
    found = await ImageLookup(Resolver(error).resolve).describe("app:ltsc2022")
    assert (found.problem, found.hint) == (error.message, "Push it.")
    assert (found.is_missing, found.image is not None) == (is_missing, is_guess)


async def test_guess_may_be_cached_longer_than_other_failures() -> None:
    resolver = Resolver(Unavailable("no answer."))
    limits = CacheLimits(failure_seconds=0.0, guess_seconds=float("inf"))
    images = ImageLookup(resolver.resolve, limits=limits)
    for _ in range(2):
        await images.describe("app:ltsc2022")
        await images.describe("app:1")
    assert [name.rpartition(":")[2] for name in resolver.names] == ["ltsc2022", "1", "1"]


async def test_invalidate_drops_results_of_lookups_in_flight() -> None:
    resolver = Resolver()
    images = ImageLookup(resolver.resolve)
    resolver.may_answer.clear()
    old = asyncio.create_task(images.describe("app"))
    await asyncio.sleep(0)
    images.invalidate()
    new = asyncio.create_task(images.describe("app"))
    await asyncio.sleep(0)
    resolver.may_answer.set()
    assert (await old).is_certain
    assert (await new).is_certain
    assert len(resolver.names) == 2
    assert images._in_flight == {}


async def test_closing_ends_lookups_whose_callers_left() -> None:
    resolver = Resolver()
    images = ImageLookup(resolver.resolve)
    resolver.may_answer.clear()
    assert (await images.describe("app", budget=0.01)).problem
    await images.close()
    assert images._in_flight == {}
