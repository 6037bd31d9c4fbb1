"""Images looked up for those who cannot wait, at registries that answer, or do not, or ask back."""

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from tests.cluster.test_check import push
from tests.images.registries import StandIn, auths, log_in, serve
from tests.images.samples import index, windows
from winpod.cluster.admission import looking_up
from winpod.cluster.admission.looking_up import Bounds, Images
from winpod.cluster.admission.metrics import AdmissionMetrics

V2019, V2022 = windows("10.0.17763.805"), windows("10.0.20348.2113")


class Numbers:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.metrics = AdmissionMetrics(self.registry)

    def lookups(self, result: str) -> float:
        name = "winpod_image_lookups_total"
        return self.registry.get_sample_value(name, {"result": result}) or 0


@asynccontextmanager
async def looking(
    tag_seconds: float = 300, numbers: Numbers | None = None, **bounds: Any
) -> AsyncIterator[Images]:
    images = Images(lambda: tag_seconds, (numbers or Numbers()).metrics, Bounds(**bounds))
    try:
        yield images
    finally:
        await images.close()


def secret(registry: str, **login: str) -> dict[str, Any]:
    config = json.dumps(auths(registry, **login)).encode()
    return {
        "metadata": {"name": "login"},
        "type": "kubernetes.io/dockerconfigjson",
        "data": {".dockerconfigjson": base64.b64encode(config).decode()},
    }


async def test_many_who_ask_at_once_are_one_lookup() -> None:
    stand_in = StandIn(index(V2019, V2022))
    async with serve(stand_in) as address, looking() as images:
        found = await asyncio.gather(
            *(images.describe(f"{address}/app:1", (), 5) for _ in range(50))
        )
        assert {one.image.builds() for one in found if one.image} == {
            ("10.0.17763.805", "10.0.20348.2113")
        }
        assert stand_in.count("HEAD") == 1


async def test_a_tag_is_kept_for_as_long_as_people_say() -> None:
    stand_in = StandIn(index(V2019))
    async with serve(stand_in) as address:
        for tag_seconds, builds in ((300, "10.0.17763.805"), (0, "10.0.20348.2113")):
            stand_in.image = index(V2019)
            async with looking(tag_seconds) as images:
                await images.describe(f"{address}/app:1", (), 5)
                stand_in.image = index(V2022)
                found = await images.describe(f"{address}/app:1", (), 5)
                assert found.image
                assert found.image.builds() == (builds,)


async def test_what_a_tag_named_once_is_an_old_answer_and_the_registry_can_be_asked_anew() -> None:
    stand_in = StandIn(index(V2019))
    digest = f"app@{stand_in.image.root.digest}"
    async with looking() as images:
        async with serve(stand_in) as address:
            text = f"{address}/app:1"
            assert not (await images.describe(text, (), 5)).is_old
            assert (await images.describe(text, (), 5)).is_old
            await images.describe(f"{address}/{digest}", (), 5)
            assert not (await images.describe(f"{address}/{digest}", (), 5)).is_old
            stand_in.image = index(V2022)
            anew = await images.describe_anew(text, (), 5)
            assert anew.image
            assert (anew.image.builds(), anew.is_old) == (("10.0.20348.2113",), False)
            known = await images.describe(text, (), 5)
            assert known == replace(anew, is_old=True)
        silent = await images.describe_anew(text, (), 5)
        assert silent.image == anew.image
        assert silent.problem
        assert await images.describe(text, (), 5) == replace(known, doubt=silent.problem)


async def test_a_digest_is_kept_for_ever() -> None:
    numbers = Numbers()
    stand_in = StandIn(index(V2019))
    name = f"app@{stand_in.image.root.digest}"
    async with looking(0, numbers) as images:
        async with serve(stand_in) as address:
            first = await images.describe(f"{address}/{name}", (), 5)
        assert first.is_certain
        assert await images.describe(f"{address}/{name}", (), 5) == first
    assert (numbers.lookups("found"), numbers.lookups("kept")) == (1, 1)


async def test_a_slow_registry_is_not_waited_for_beyond_the_budget_and_answers_the_next() -> None:
    numbers = Numbers()

    async def slowly(_: web.Request) -> None:
        await asyncio.sleep(0.4)

    async with (
        serve(StandIn(index(V2019), slowly)) as address,
        looking(numbers=numbers) as images,
    ):
        began = time.monotonic()
        late = await images.describe(f"{address}/app:1", (), 0.2)
        assert time.monotonic() - began < 0.35
        assert late.image is None
        assert "could not be looked up within 0.2 s" in late.problem
        assert numbers.lookups("late") == 1
        found = await images.describe(f"{address}/app:1", (), 5)
        assert found.is_certain


async def test_a_registry_that_says_nothing_is_waited_for_once_and_not_by_each_who_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    is_back = asyncio.Event()

    async def silent(_: web.Request) -> None:
        await is_back.wait()

    async def waited(text: str, budget: float) -> float:
        began = time.monotonic()
        assert (await images.describe(text, (), budget)).problem
        return time.monotonic() - began

    async with serve(StandIn(index(V2019), silent)) as address, looking() as images:
        assert await waited(f"{address}/app:1", 0.4) > 0.3
        for tag in "123":
            assert await waited(f"{address}/app:{tag}", 0.4) < 0.2
        assert 0.1 < await waited(f"{address}/app:4", 0.8) < 0.6
        async with serve(StandIn(index(V2019))) as other:
            assert (await images.describe(f"{other}/app:1", (), 5)).is_certain
        assert await waited(f"{address}/app:5", 0.4) < 0.2
        with monkeypatch.context() as a_minute_later:
            a_minute_later.setattr(looking_up, "_SILENCE_SECONDS", 0.0)
            assert await waited(f"{address}/app:6", 0.4) > 0.3
        assert await waited(f"{address}/app:7", 0.4) < 0.2
        is_back.set()
        assert (await images.describe(f"{address}/app:8", (), 5)).is_certain
        is_back.clear()
        assert await waited(f"{address}/app:9", 0.4) > 0.3


async def test_a_registry_that_is_down_leaves_what_was_known_of_a_tag() -> None:
    numbers = Numbers()
    async with looking(0, numbers) as images:
        async with serve(StandIn(index(V2019))) as address:
            known = await images.describe(f"{address}/app:1", (), 5)
        for _ in range(2):
            old = await images.describe(f"{address}/app:1", (), 5)
            assert (old.image, old.is_old, old.is_certain) == (known.image, True, True)
            assert address in old.doubt
        assert numbers.lookups("stale") == 1
        other = await images.describe(f"{address}/other:1", (), 5)
        assert other.image is None
        assert other.problem


async def test_a_failure_is_kept_shortly_and_a_tag_is_guessed_from() -> None:
    asked = 0

    async def down(_: web.Request) -> web.StreamResponse:
        nonlocal asked
        asked += 1
        return web.Response(status=418)

    async with serve(down) as address, looking() as images:
        text = f"{address}/app:ltsc2022"
        guess = await images.describe(text, (), 5)
        assert guess.image
        assert guess.image.guessed
        assert not guess.is_certain
        before = asked
        assert await images.describe(text, (), 5) == guess
        assert asked == before
    async with serve(down) as address, looking(failure_seconds=0.0) as images:
        await images.describe(f"{address}/app:2", (), 5)
        before = asked
        await images.describe(f"{address}/app:2", (), 5)
        assert asked > before


async def test_what_is_not_there_is_said_so(registry: str) -> None:
    async with looking() as images:
        found = await images.describe(f"{registry}/nothing:1", (), 5)
        assert found.image is None
        assert "nothing" in found.problem


async def test_a_pull_secret_opens_its_registry_for_those_who_have_it(
    home: Path, basic_registry: str
) -> None:
    log_in(home, auths(basic_registry))
    image = await push(home, basic_registry, "private:1", "2019")
    log_in(home, {})
    async with looking() as images:
        assert (await images.describe(image, [secret(basic_registry)], 5)).is_certain
        denied = await images.describe(image, (), 5)
        assert denied.image is None
        assert denied.problem
        wrong = await images.describe(image, [secret(basic_registry, password="wrong")], 5)
        assert wrong.image is None
        assert images.known(image) is None


async def test_a_broken_pull_secret_is_a_problem_and_no_crash(registry: str) -> None:
    broken = {"metadata": {"name": "login"}, "type": "kubernetes.io/dockerconfigjson", "data": {}}
    async with looking() as images:
        found = await images.describe(f"{registry}/app:1", [broken], 5)
        assert 'Secret "login"' in found.problem


@pytest.mark.parametrize("text", ["oci:/etc", "oci-archive:/etc/passwd:x"])
async def test_files_of_this_machine_are_never_read(text: str) -> None:
    async with looking() as images:
        found = await images.describe(text, (), 5)
        assert "only the node reads" in found.problem
        assert images.known(text) is None


async def test_a_name_that_is_none_is_a_problem() -> None:
    async with looking() as images:
        assert "failed to parse" in (await images.describe("UPPER/Case", (), 5)).problem


async def test_waiting_for_a_turn_is_part_of_a_lookup_s_time() -> None:
    is_over = asyncio.Event()

    async def hang(_: web.Request) -> None:
        await is_over.wait()

    impatient = looking(at_once=1, lookup_seconds=0.5)
    async with serve(StandIn(index(V2019), hang)) as address, impatient as images:
        began = time.monotonic()
        asked = (images.describe(f"{address}/app:{tag}", (), 5) for tag in range(10))
        found = await asyncio.gather(*asked)
        assert time.monotonic() - began < 2
        assert all(one.problem for one in found)
        assert any("those who asked before" in one.problem for one in found)
        is_over.set()
        assert (await images.describe(f"{address}/app:later", (), 5)).is_certain


async def test_what_is_kept_has_a_bound() -> None:
    stand_in = StandIn(index(V2019))
    async with serve(stand_in) as address, looking(images=2) as images:
        for tag in "abc":
            await images.describe(f"{address}/app:{tag}", (), 5)
        assert images.known(f"{address}/app:a") is None
        assert images.known(f"{address}/app:c")


async def test_images_of_many_platforms_leave_room_for_fewer() -> None:
    stand_in = StandIn(index(V2019, V2022))
    async with serve(stand_in) as address, looking(0, manifests=5) as images:
        for tag in "aaabc":
            await images.describe(f"{address}/app:{tag}", (), 5)
        kept = [name.rpartition(":")[2] for name, _ in images._kept]
        assert kept == ["b", "c"]
        stand_in.image = index(V2019)
        for tag in "bcd":
            await images.describe(f"{address}/app:{tag}", (), 5)
        assert len(images._kept) == images._manifests == 3


async def test_logins_of_the_operator_s_own_user_are_never_used_for_others(
    home: Path, basic_registry: str
) -> None:
    log_in(home, auths(basic_registry))
    image = await push(home, basic_registry, "own:1", "2019")
    async with looking() as images:
        denied = await images.describe(image, (), 5)
        assert denied.image is None
        assert denied.problem
        assert (await images.describe(image, [secret(basic_registry)], 5)).is_certain


async def test_nothing_is_left_on_disk(home: Path) -> None:
    async with serve(StandIn(index(V2019))) as address, looking() as images:
        await images.describe(f"{address}/app:1", (), 5)
    assert not list((home / ".cache").rglob("*"))
