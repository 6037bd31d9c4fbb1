"""Tests of the operator's image lookup with responsive, unresponsive and private registries."""

import asyncio
import base64
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.support.image_lookups import V2019, V2022, LookupMetrics, open_lookup
from tests.support.image_samples import index
from tests.support.pushed_images import push
from tests.support.registries import StandIn, auths, log_in, serve
from winpod.images import lookup
from winpod.images.lookup import CacheLimits
from winpod.operator.image_lookup import RegistryQueue


def secret(registry: str, **login: str) -> dict[str, Any]:
    config = json.dumps(auths(registry, **login)).encode()
    return {
        "metadata": {"name": "login"},
        "type": "kubernetes.io/dockerconfigjson",
        "data": {".dockerconfigjson": base64.b64encode(config).decode()},
    }


async def test_concurrent_lookups_are_shared() -> None:
    stand_in = StandIn(index(V2019, V2022))
    async with serve(stand_in) as address, open_lookup() as images:
        found = await asyncio.gather(
            *(images.describe(f"{address}/app:1", (), 5) for _ in range(50))
        )
        assert {one.image.builds() for one in found if one.image} == {
            ("10.0.17763.805", "10.0.20348.2113")
        }
        assert stand_in.count("HEAD") == 1


async def test_tag_is_cached_for_the_configured_time() -> None:
    stand_in = StandIn(index(V2019))
    async with serve(stand_in) as address:
        for tag_seconds, builds in ((300, "10.0.17763.805"), (0, "10.0.20348.2113")):
            stand_in.image = index(V2019)
            async with open_lookup(tag_seconds) as images:
                await images.describe(f"{address}/app:1", (), 5)
                stand_in.image = index(V2022)
                found = await images.describe(f"{address}/app:1", (), 5)
                assert found.image
                assert found.image.builds() == (builds,)


async def test_cached_tag_is_stale_and_can_be_refreshed() -> None:
    stand_in = StandIn(index(V2019))
    digest = f"app@{stand_in.image.root.digest}"
    async with open_lookup() as images:
        async with serve(stand_in) as address:
            text = f"{address}/app:1"
            assert not (await images.describe(text, (), 5)).is_stale
            assert (await images.describe(text, (), 5)).is_stale
            await images.describe(f"{address}/{digest}", (), 5)
            assert not (await images.describe(f"{address}/{digest}", (), 5)).is_stale
            stand_in.image = index(V2022)
            anew = await images.describe(text, (), 5, max_age=0)
            assert anew.image
            assert (anew.image.builds(), anew.is_stale) == (("10.0.20348.2113",), False)
            known = await images.describe(text, (), 5)
            assert known == replace(anew, is_stale=True)
        silent = await images.describe(text, (), 5, max_age=0)
        assert silent.image == anew.image
        assert silent.problem
        assert await images.describe(text, (), 5) == replace(known, caveat=silent.problem)


async def test_digest_never_expires() -> None:
    numbers = LookupMetrics()
    stand_in = StandIn(index(V2019))
    name = f"app@{stand_in.image.root.digest}"
    async with open_lookup(0, numbers) as images:
        async with serve(stand_in) as address:
            first = await images.describe(f"{address}/{name}", (), 5)
        assert first.is_certain
        assert await images.describe(f"{address}/{name}", (), 5) == first
    assert (numbers.lookups("found"), numbers.lookups("kept")) == (1, 1)


async def test_slow_lookup_times_out_and_serves_the_next_caller() -> None:
    numbers = LookupMetrics()

    async def slowly(_: web.Request) -> None:
        await asyncio.sleep(0.4)

    async with (
        serve(StandIn(index(V2019), slowly)) as address,
        open_lookup(numbers=numbers) as images,
    ):
        began = time.monotonic()
        late = await images.describe(f"{address}/app:1", (), 0.2)
        assert time.monotonic() - began < 0.35
        assert late.image is None
        assert "was not resolved within 0.2 s" in late.problem
        assert numbers.lookups("late") == 1
        found = await images.describe(f"{address}/app:1", (), 5)
        assert found.is_certain


async def test_unresponsive_registry_is_waited_for_only_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    is_back = asyncio.Event()

    async def silent(_: web.Request) -> None:
        await is_back.wait()

    async def waited(text: str, budget: float) -> float:
        began = time.monotonic()
        assert (await images.describe(text, (), budget)).problem
        return time.monotonic() - began

    async with serve(StandIn(index(V2019), silent)) as address, open_lookup() as images:
        assert await waited(f"{address}/app:1", 0.4) > 0.3
        for tag in "123":
            assert await waited(f"{address}/app:{tag}", 0.4) < 0.2
        assert 0.1 < await waited(f"{address}/app:4", 0.8) < 0.6
        async with serve(StandIn(index(V2019))) as other:
            assert (await images.describe(f"{other}/app:1", (), 5)).is_certain
        assert await waited(f"{address}/app:5", 0.4) < 0.2
        with monkeypatch.context() as a_minute_later:
            a_minute_later.setattr(lookup, "_UNRESPONSIVE_SECONDS", 0.0)
            assert await waited(f"{address}/app:6", 0.4) > 0.3
        assert await waited(f"{address}/app:7", 0.4) < 0.2
        is_back.set()
        assert (await images.describe(f"{address}/app:8", (), 5)).is_certain
        is_back.clear()
        assert await waited(f"{address}/app:9", 0.4) > 0.3


async def test_stale_tag_is_used_while_the_registry_is_down() -> None:
    numbers = LookupMetrics()
    async with open_lookup(0, numbers) as images:
        async with serve(StandIn(index(V2019))) as address:
            known = await images.describe(f"{address}/app:1", (), 5)
        for _ in range(2):
            old = await images.describe(f"{address}/app:1", (), 5)
            assert (old.image, old.is_stale, old.is_certain) == (known.image, True, True)
            assert address in old.caveat
        assert numbers.lookups("stale") == 1
        other = await images.describe(f"{address}/other:1", (), 5)
        assert other.image is None
        assert other.problem


async def test_failure_is_cached_briefly_and_the_build_is_guessed() -> None:
    asked = 0

    async def down(_: web.Request) -> web.StreamResponse:
        nonlocal asked
        asked += 1
        return web.Response(status=418)

    async with serve(down) as address, open_lookup() as images:
        text = f"{address}/app:ltsc2022"
        guess = await images.describe(text, (), 5)
        assert guess.image
        assert guess.image.is_guess
        assert not guess.is_certain
        before = asked
        assert await images.describe(text, (), 5) == guess
        assert asked == before
    async with (
        serve(down) as address,
        open_lookup(limits=CacheLimits(failure_seconds=0.0)) as images,
    ):
        await images.describe(f"{address}/app:2", (), 5)
        before = asked
        await images.describe(f"{address}/app:2", (), 5)
        assert asked > before


async def test_missing_image_is_a_problem(registry: str) -> None:
    async with open_lookup() as images:
        found = await images.describe(f"{registry}/nothing:1", (), 5)
        assert found.image is None
        assert "nothing" in found.problem


async def test_pull_secret_is_used_only_for_its_owner(home: Path, basic_registry: str) -> None:
    log_in(home, auths(basic_registry))
    image = await push(home, f"{basic_registry}/private:1", "2019")
    log_in(home, {})
    async with open_lookup() as images:
        assert (await images.describe(image, [secret(basic_registry)], 5)).is_certain
        denied = await images.describe(image, (), 5)
        assert denied.image is None
        assert denied.problem
        wrong = await images.describe(image, [secret(basic_registry, password="wrong")], 5)
        assert wrong.image is None
        assert images.cached(image) is None


async def test_broken_pull_secret_is_a_problem(registry: str) -> None:
    broken = {"metadata": {"name": "login"}, "type": "kubernetes.io/dockerconfigjson", "data": {}}
    async with open_lookup() as images:
        found = await images.describe(f"{registry}/app:1", [broken], 5)
        assert 'Secret "login"' in found.problem


@pytest.mark.parametrize("text", ["oci:/etc", "oci-archive:/etc/passwd:x"])
async def test_local_files_are_never_read(text: str) -> None:
    async with open_lookup() as images:
        found = await images.describe(text, (), 5)
        assert "the operator cannot read" in found.problem
        assert images.cached(text) is None


async def test_invalid_name_is_a_problem() -> None:
    async with open_lookup() as images:
        assert "failed to parse" in (await images.describe("UPPER/Case", (), 5)).problem


async def test_lookup_timeout_includes_queueing() -> None:
    is_over = asyncio.Event()

    async def hang(_: web.Request) -> None:
        await is_over.wait()

    impatient = open_lookup(queue=RegistryQueue(at_once=1, lookup_seconds=0.5))
    async with serve(StandIn(index(V2019), hang)) as address, impatient as images:
        began = time.monotonic()
        asked = (images.describe(f"{address}/app:{tag}", (), 5) for tag in range(10))
        found = await asyncio.gather(*asked)
        assert time.monotonic() - began < 2
        assert all(one.problem for one in found)
        assert any("to earlier lookups" in one.problem for one in found)
        is_over.set()
        assert (await images.describe(f"{address}/app:later", (), 5)).is_certain


async def test_cache_is_bounded_by_images() -> None:
    stand_in = StandIn(index(V2019))
    async with serve(stand_in) as address, open_lookup(limits=CacheLimits(images=2)) as images:
        for tag in "abc":
            await images.describe(f"{address}/app:{tag}", (), 5)
        assert images.cached(f"{address}/app:a") is None
        assert images.cached(f"{address}/app:c")


async def test_cache_is_bounded_by_manifests() -> None:
    stand_in = StandIn(index(V2019, V2022))
    async with (
        serve(stand_in) as address,
        open_lookup(0, limits=CacheLimits(manifests=5)) as images,
    ):
        for tag in "aaabc":
            await images.describe(f"{address}/app:{tag}", (), 5)
        kept = [name.rpartition(":")[2] for name, _ in images._entries]
        assert kept == ["b", "c"]
        stand_in.image = index(V2019)
        for tag in "bcd":
            await images.describe(f"{address}/app:{tag}", (), 5)
        assert len(images._entries) == images._manifests == 3


async def test_credentials_of_the_operators_user_are_never_used(
    home: Path, basic_registry: str
) -> None:
    log_in(home, auths(basic_registry))
    image = await push(home, f"{basic_registry}/own:1", "2019")
    async with open_lookup() as images:
        denied = await images.describe(image, (), 5)
        assert denied.image is None
        assert denied.problem
        assert (await images.describe(image, [secret(basic_registry)], 5)).is_certain


async def test_nothing_is_left_on_disk(home: Path) -> None:
    async with serve(StandIn(index(V2019))) as address, open_lookup() as images:
        await images.describe(f"{address}/app:1", (), 5)
    assert not list((home / ".cache").rglob("*"))
