import asyncio
from pathlib import Path

import pytest

from tests.support.image_samples import LINUX, index, single, windows
from tests.support.registries import StandIn, serve
from winpod.errors import InvalidInput
from winpod.images.errors import ImageNotFound, NotCachedOffline
from winpod.images.layout import write_image
from winpod.images.manifests import descriptor_of_digest
from winpod.images.references import parse_reference
from winpod.images.resolver import DocumentCache, ImageResolver

V2019, V2022 = windows("10.0.17763.805"), windows("10.0.20348.2113")


async def test_layout_is_used_without_network(tmp_path: Path) -> None:
    write_image(tmp_path / "one", "example.test/app:1", single(V2019))
    write_image(tmp_path / "two", "example.test/app:1", single(V2022))
    write_image(tmp_path / "two", "nginx", single(LINUX))
    async with ImageResolver(layouts=[tmp_path / "one", tmp_path / "two"]) as sources:
        assert (await sources.describe("example.test/app:1")).builds() == ("10.0.17763.805",)
        image = await sources.describe("docker.io/library/nginx:latest")
        assert image.operating_systems() == {"linux"}
        assert image.reference == "docker.io/library/nginx:latest"


async def test_layout_name_is_resolved(tmp_path: Path) -> None:
    write_image(tmp_path / "l", "app:1", single(V2019))
    async with ImageResolver(offline=True) as sources:
        for text in (f"oci:{tmp_path}/l", f"oci:{tmp_path}/l:app:1"):
            assert (await sources.describe(text)).builds() == ("10.0.17763.805",)
        with pytest.raises(ImageNotFound, match="no image"):
            await sources.describe(f"oci:{tmp_path}/l:app:2")
        with pytest.raises(InvalidInput, match="does not exist"):
            await sources.describe(f"oci-archive:{tmp_path}/nowhere.tar")
        with pytest.raises(InvalidInput, match="no path"):
            await sources.describe("oci:")


async def test_invalid_layout_is_rejected_at_start(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="not an OCI layout"):
        async with ImageResolver(layouts=[tmp_path]):
            pass


async def test_cached_image_is_resolved_offline() -> None:
    stand_in = StandIn(index(V2019, V2022))
    async with serve(stand_in) as address:
        async with ImageResolver(offline=True) as sources:
            with pytest.raises(NotCachedOffline, match="offline"):
                await sources.describe(f"{address}/app:1")
        async with ImageResolver() as sources:
            online = await sources.describe(f"{address}/app:1")
    async with ImageResolver(offline=True) as sources:
        assert await sources.describe(f"{address}/app:1") == online
        digest = await sources.describe(f"{address}/app@{online.digest}")
        assert digest.manifests == online.manifests
        with pytest.raises(NotCachedOffline, match="only partly cached"):
            await sources.describe(f"{address}/app@sha256:{'0' * 64}")


async def test_documents_are_cached_and_tags_are_resolved_again() -> None:
    stand_in = StandIn(index(V2019, V2022))
    async with serve(stand_in) as address:
        for _ in range(3):
            async with ImageResolver() as sources:
                await sources.describe(f"{address}/app:1")
        assert (stand_in.count("HEAD"), stand_in.count("GET")) == (3, 3)
        stand_in.image = index(V2022)
        async with ImageResolver() as sources:
            assert (await sources.describe(f"{address}/app:1")).builds() == ("10.0.20348.2113",)


async def test_damaged_cache_is_fetched_again(home: Path) -> None:
    stand_in = StandIn(single(V2019))
    async with serve(stand_in) as address:
        for damage in (b"", b"other content"):
            async with ImageResolver() as sources:
                assert (await sources.describe(f"{address}/app")).builds()
            blobs = list((home / ".cache/winpod/blobs/sha256").iterdir())
            assert len(blobs) == 2
            for blob in blobs:
                blob.write_bytes(damage)
        async with ImageResolver() as sources:
            assert (await sources.describe(f"{address}/app")).builds()
        assert stand_in.count("GET") == 6


async def test_unwritable_cache_is_ignored(home: Path) -> None:
    (home / ".cache").write_text("a file in the way")
    async with serve(StandIn(single(V2019))) as address, ImageResolver() as sources:
        assert (await sources.describe(f"{address}/app")).builds()


async def test_user_without_home_can_resolve_images(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_user(uid: int) -> None:
        raise KeyError(uid)

    for name in ("HOME", "XDG_CACHE_HOME", "WINPOD_HOSTS_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", no_user)
    async with serve(StandIn(single(V2019))) as address, ImageResolver() as sources:
        assert (await sources.describe(f"{address}/app")).builds()


def test_damaged_tag_record_counts_as_missing(tmp_path: Path) -> None:
    cache = DocumentCache(tmp_path)
    reference = parse_reference("app:1")
    cache.store_tag_digest(reference, "sha256:" + "0" * 64)
    assert cache.cached_tag_digest(reference) == descriptor_of_digest("sha256:" + "0" * 64)
    assert cache.cached_tag_digest(parse_reference("app:2")) is None
    (record,) = (tmp_path / "tags").iterdir()
    sound = record.read_text()
    for damage in ("", "[]", "{}", sound.replace("0" * 64, "../x"), sound.replace("app:1", "b")):
        record.write_text(damage)
        assert cache.cached_tag_digest(reference) is None


async def test_same_image_is_looked_up_once() -> None:
    stand_in = StandIn(index(V2019, V2022))
    async with serve(stand_in) as address, ImageResolver() as sources:
        names = [f"{address}/app", f"{address}/app:latest"] * 25
        images = await asyncio.gather(*(sources.describe(name) for name in names))
        assert len(set(images)) == 1
        assert (stand_in.count("HEAD"), stand_in.count("GET")) == (1, 3)


async def test_cancelled_caller_does_not_cancel_the_others() -> None:
    gate = asyncio.Event()

    async def wait(_: object) -> None:
        await gate.wait()

    async with serve(StandIn(single(V2019), wait)) as address, ImageResolver() as sources:
        first = asyncio.create_task(sources.describe(f"{address}/app"))
        second = asyncio.create_task(sources.describe(f"{address}/app"))
        await asyncio.sleep(0)
        first.cancel()
        gate.set()
        assert (await second).builds()


async def test_without_sizes_only_the_index_is_fetched() -> None:
    stand_in = StandIn(index(V2019, V2022))
    async with serve(stand_in) as address, ImageResolver(sizes=False) as sources:
        image = await sources.describe(f"{address}/app")
        assert image.builds() == ("10.0.17763.805", "10.0.20348.2113")
        assert stand_in.count("GET") == 1


async def test_more_images_than_slots_are_all_resolved() -> None:
    async with (
        serve(StandIn(index(V2019, V2022))) as address,
        ImageResolver(concurrency=2) as sources,
    ):
        work = (sources.describe(f"{address}/app:{number}") for number in range(40))
        assert len(await asyncio.gather(*work)) == 40
