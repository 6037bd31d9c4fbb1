"""Pulls from fake registries that misbehave in the middle of a layer."""

import asyncio
import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp import web

from tests.support.layer_server import broken_off, part, serving
from tests.support.pulls import until
from tests.support.registries import auths, log_in, serve, write_hosts
from tests.support.store_invariants import check, leftovers
from tests.support.windows_images import (
    V2022,
    alone,
    app_layer,
    base_layer,
    bundle,
    large_layer,
    layer,
    make,
)
from winpod.config import BaseLayerPolicy, ImageSettings
from winpod.images.errors import (
    CorruptContent,
    ImageNotFound,
    PullStalled,
    RegistryAccessDenied,
    RegistryUnavailable,
)
from winpod.images.layers.base_layers import FOREIGN_TYPES
from winpod.images.manifests import ImageBundle
from winpod.images.pull.puller import pull
from winpod.images.registry.auth import read_docker_config
from winpod.images.store.records import StoredImage
from winpod.images.store.store import BLOB, Store
from winpod.windows.builds import DEFAULT_HOST
from winpod.windows.handlers import PROCESS_HANDLER

LARGE = large_layer(2)
IMAGE = bundle([make(V2022, base_layer("10.0.20348.2113"), LARGE)])
SIZE = LARGE.descriptor.size
DIGEST = LARGE.descriptor.digest


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "root") as opened:
        yield opened


async def pull_from(
    store: Store,
    address: str,
    patience: float = 30.0,
    policy: BaseLayerPolicy = BaseLayerPolicy.SKIP,
) -> StoredImage:
    settings = ImageSettings(inactivity_timeout=patience, base_layers=policy)
    docker = read_docker_config()
    return await pull(
        store,
        f"{address}/app:1",
        PROCESS_HANDLER,
        DEFAULT_HOST,
        credentials=(docker,) if docker else (),
        settings=settings,
    )


def is_complete(store: Store, image: StoredImage) -> bool:
    (path,) = store.layers_of(image)
    return (path / "Files/app/noise.bin").stat().st_size == 2 << 20


async def test_broken_connection_is_resumed(store: Store) -> None:
    breaks = iter([SIZE // 3, SIZE // 2, SIZE * 99 // 100])

    async def dies(request: web.Request, content: bytes, start: int) -> web.StreamResponse | None:
        end = next(breaks, None)
        kept = store.blob_path(DIGEST)
        return await broken_off(request, content, start, end, kept) if end else None

    async with serving(IMAGE, dies, DIGEST) as (server, address):
        assert is_complete(store, await pull_from(store, address))
        asked = [
            int(text.removeprefix("bytes=").rstrip("-") or 0) for text in server.ranges(DIGEST)
        ]
    assert asked == sorted(asked)
    assert len(asked) == 4
    assert asked[-1] > SIZE * 0.9
    assert leftovers(store.root) == set()


async def test_download_is_retried_while_it_makes_progress(store: Store) -> None:
    async def dies(request: web.Request, content: bytes, start: int) -> web.StreamResponse:
        return await broken_off(
            request, content, start, start + SIZE // 12, store.blob_path(DIGEST)
        )

    async with serving(IMAGE, dies, DIGEST) as (server, address):
        assert is_complete(store, await pull_from(store, address))
        assert len(server.ranges(DIGEST)) > 8


async def test_download_without_progress_fails(store: Store) -> None:
    async def short(request: web.Request, content: bytes, start: int) -> web.StreamResponse:
        response = web.StreamResponse(status=206 if start else 200)
        if start:
            response.headers["Content-Range"] = f"bytes {start}-{SIZE - 1}/{SIZE}"
        await response.prepare(request)
        await response.write(content[start : SIZE // 2])
        return response

    async with serving(IMAGE, short, DIGEST) as (_, address):
        with pytest.raises(RegistryUnavailable, match=f"ended {DIGEST} after {SIZE // 2} of"):
            await pull_from(store, address)
    assert store.blob_path(DIGEST).stat().st_size == SIZE // 2
    async with serving(IMAGE) as (server, address):
        await pull_from(store, address)
        assert server.ranges(DIGEST) == [f"bytes={SIZE // 2}-"]
    check(store.root)


async def test_server_without_ranges_is_read_from_the_start(store: Store) -> None:
    first = itertools.count()

    async def plain(request: web.Request, content: bytes, start: int) -> web.StreamResponse:
        if next(first) == 0:
            return await broken_off(request, content, start, SIZE // 2, store.blob_path(DIGEST))
        return web.Response(body=content)

    async with serving(IMAGE, plain, DIGEST) as (server, address):
        assert is_complete(store, await pull_from(store, address))
        assert len(server.ranges(DIGEST)) == 2


@pytest.mark.parametrize("status", [206, 416])
async def test_wrong_range_is_rejected(store: Store, status: int) -> None:
    async def elsewhere(request: web.Request, content: bytes, start: int) -> web.StreamResponse:
        if start == 0:
            return await broken_off(request, content, start, SIZE // 2, store.blob_path(DIGEST))
        return part(content, start + 1, SIZE) if status == 206 else web.Response(status=416)

    async with serving(IMAGE, elsewhere, DIGEST) as (_, address):
        with pytest.raises(CorruptContent, match=r"another range|fewer bytes"):
            await pull_from(store, address)
    assert leftovers(store.root) == set()


async def test_wrong_content_of_the_same_size_is_rejected(store: Store) -> None:
    async def other(_: web.Request, content: bytes, start: int) -> web.StreamResponse:
        changed = bytearray(content)
        changed[len(content) // 2] ^= 1
        return part(bytes(changed), start, SIZE) if start else web.Response(body=bytes(changed))

    async with serving(IMAGE, other, DIGEST) as (server, address):
        with pytest.raises(CorruptContent, match=f"The content of {DIGEST} has the digest sha256:"):
            await pull_from(store, address)
        assert len(server.ranges(DIGEST)) == 1
    assert leftovers(store.root) == set()
    check(store.root)


@pytest.mark.parametrize("change", [-1, 1, 1 << 20])
async def test_content_of_another_size_is_rejected(store: Store, change: int) -> None:
    async def other(_: web.Request, content: bytes, start: int) -> web.StreamResponse:
        del start
        return web.Response(body=(content + bytes(max(change, 0)))[: SIZE + change])

    async with serving(IMAGE, other, DIGEST) as (_, address):
        with pytest.raises(CorruptContent, match=f"has {SIZE + change} bytes for {DIGEST}"):
            await pull_from(store, address)
    assert leftovers(store.root) == set()


async def test_endless_content_is_rejected(store: Store) -> None:
    async def endless(request: web.Request, content: bytes, start: int) -> web.StreamResponse:
        del content, start
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"\0" * (1 << 16))

    async with serving(IMAGE, endless, DIGEST) as (_, address):
        with pytest.raises(CorruptContent, match=f"more than the {SIZE} bytes"):
            await pull_from(store, address)
    assert leftovers(store.root) == set()


async def test_mirror_with_corrupt_content_is_skipped(store: Store, home: Path) -> None:
    async def lie(_: web.Request, content: bytes, start: int) -> web.StreamResponse:
        del start
        return web.Response(body=bytes(len(content)))

    async with serving(IMAGE, lie, DIGEST) as (mirror, liar), serving(IMAGE) as (origin, honest):
        hosts = f'server = "http://{honest}"\n[host."http://{liar}"]\n'
        write_hosts(home, "example.test", hosts)
        assert is_complete(store, await pull_from(store, "example.test"))
        assert mirror.ranges(DIGEST) == [""]
        assert origin.ranges(DIGEST) == [""]


async def test_download_is_resumed_from_the_next_host(store: Store, home: Path) -> None:
    dead = asyncio.Event()

    async def dies(request: web.Request, content: bytes, start: int) -> web.StreamResponse:
        if dead.is_set():
            return web.Response(status=503)
        dead.set()
        return await broken_off(request, content, start, SIZE // 2, store.blob_path(DIGEST))

    async with serving(IMAGE, dies, DIGEST) as (_, mirror), serving(IMAGE) as (origin, address):
        hosts = f'server = "http://{address}"\n[host."http://{mirror}"]\n'
        write_hosts(home, "example.test", hosts)
        assert is_complete(store, await pull_from(store, "example.test"))
        assert origin.ranges(DIGEST) == [f"bytes={SIZE // 2}-"]


@pytest.mark.parametrize("size", [SIZE // 2, SIZE, SIZE + 1])
async def test_damaged_partial_file_is_downloaded_again(store: Store, size: int) -> None:
    with store.lease("keeps the damage") as lease:
        store.add_to_lease(lease, BLOB, DIGEST)
        store.blob_path(DIGEST).write_bytes(bytes(size))
        async with serving(IMAGE) as (server, address):
            assert is_complete(store, await pull_from(store, address))
            assert server.ranges(DIGEST)[-1] == ""


async def test_retry_after_is_respected(store: Store) -> None:
    asked = itertools.count()

    async def busy(*_: object) -> web.StreamResponse | None:
        return web.Response(status=429, headers={"Retry-After": "1"}) if next(asked) < 1 else None

    async with serving(IMAGE, busy, DIGEST) as (_, address):
        started = time.monotonic()
        assert is_complete(store, await pull_from(store, address))
        assert time.monotonic() - started >= 1


async def test_rejected_credentials_fail_the_pull(store: Store, home: Path) -> None:
    async def closed(*_: object) -> web.StreamResponse:
        return web.Response(status=401, headers={"WWW-Authenticate": 'Basic realm="x"'})

    async with serving(IMAGE, closed, DIGEST) as (server, address):
        log_in(home, auths(address))
        with pytest.raises(RegistryAccessDenied, match="rejected the credentials"):
            await pull_from(store, address)
        assert len(server.ranges(DIGEST)) <= 2
    assert leftovers(store.root) == set()


async def test_rejected_token_fails_the_pull(store: Store) -> None:
    async def tokens(_: web.Request) -> web.StreamResponse:
        return web.json_response({"token": "t"})

    async with serve(tokens) as realm:
        challenge = f'Bearer realm="http://{realm}/t",service="s"'

        async def closed(*_: object) -> web.StreamResponse:
            return web.Response(status=401, headers={"WWW-Authenticate": challenge})

        async with serving(IMAGE, closed, DIGEST) as (server, address):
            with pytest.raises(RegistryAccessDenied, match="pull access denied"):
                await pull_from(store, address)
            assert len(server.ranges(DIGEST)) == 2


async def test_redirects_are_limited(store: Store) -> None:
    async def around(request: web.Request, *_: object) -> web.StreamResponse:
        return web.Response(status=307, headers={"Location": str(request.rel_url)})

    async with serving(IMAGE, around, DIGEST) as (_, address):
        with pytest.raises(RegistryUnavailable, match="redirected more than"):
            await pull_from(store, address)


async def test_blob_redirect_is_followed(store: Store) -> None:
    async with serving(IMAGE) as (storage, elsewhere):

        async def away(request: web.Request, *_: object) -> web.StreamResponse:
            return web.Response(
                status=307, headers={"Location": f"http://{elsewhere}{request.path}"}
            )

        async with serving(IMAGE, away, DIGEST) as (_, address):
            assert is_complete(store, await pull_from(store, address))
        assert storage.ranges(DIGEST) == [""]


@pytest.mark.parametrize("drip", [b"", b"\0"], ids=["silence", "a drip"])
async def test_stalled_pull_fails(store: Store, drip: bytes) -> None:
    async def slow(request: web.Request, content: bytes, start: int) -> web.StreamResponse:
        response = web.StreamResponse()
        response.content_length = SIZE
        await response.prepare(request)
        await response.write(content[start : SIZE // 2])
        while True:
            await response.write(drip)
            await asyncio.sleep(0.05)

    async with serving(IMAGE, slow, DIGEST) as (_, address):
        started = time.monotonic()
        with pytest.raises(PullStalled, match=r"stalled at \d+ of .* within 3 s"):
            await pull_from(store, address, patience=3.0)
        assert time.monotonic() - started < 60
    assert store.blob_path(DIGEST).stat().st_size >= SIZE // 2


async def test_slow_pull_with_progress_succeeds(store: Store) -> None:
    async def slow(request: web.Request, content: bytes, start: int) -> web.StreamResponse:
        response = web.StreamResponse()
        response.content_length = SIZE
        await response.prepare(request)
        for position in range(start, SIZE, SIZE // 15):
            await response.write(content[position : position + SIZE // 15])
            await asyncio.sleep(0.25)
        return response

    async with serving(IMAGE, slow, DIGEST) as (_, address):
        started = time.monotonic()
        assert is_complete(store, await pull_from(store, address, patience=3.0))
        assert time.monotonic() - started > 3


async def test_missing_blob_is_named(store: Store) -> None:
    async def gone(*_: object) -> web.StreamResponse:
        return web.Response(status=404)

    async with serving(IMAGE, gone, DIGEST) as (_, address):
        with pytest.raises(ImageNotFound, match=DIGEST):
            await pull_from(store, address)
    assert leftovers(store.root) == set()


async def test_foreign_layer_is_fetched_from_its_url(store: Store) -> None:
    """Foreign layers, as Microsoft's base layers were before 2023."""
    foreign = "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip"
    assert foreign in FOREIGN_TYPES
    plain = base_layer("10.0.20348.2113")
    async with serving(ImageBundle(((plain.descriptor, plain.content),), IMAGE.manifests)) as (
        _,
        place,
    ):
        url = f"http://{place}/v2/x/blobs/{plain.descriptor.digest}"
        base = base_layer("10.0.20348.2113", media_type=foreign, urls=(url,))
        made = make(V2022, base, app_layer(), history=False)
        without = tuple(blob for blob in made.blobs if blob[0].digest != base.descriptor.digest)
        async with serving(ImageBundle(without, (made.manifest,))) as (_, address):
            skipped = await pull_from(store, address)
            assert [one.kept for one in skipped.layers] == [False, True]
            pulled = await pull_from(store, address, policy=BaseLayerPolicy.PULL)
            assert [(one.base, one.kept) for one in pulled.layers] == [(True, True), (False, True)]
            assert (store.layers_of(pulled)[0] / "Files/License.txt").exists()


async def test_concurrent_downloads_are_limited(store: Store) -> None:
    layers = [layer({f"Files/{number}": bytes(1000)}) for number in range(9)]
    digests = {one.descriptor.digest for one in layers}
    running = highest = 0
    asked = itertools.count()

    async def watch(request: web.Request, content: bytes, start: int) -> web.StreamResponse | None:
        nonlocal running, highest
        del start
        if request.path.rpartition("/")[2] not in digests:
            return None
        running += 1
        highest = max(highest, running)
        if next(asked):  # the first request negotiates authorization
            await until(lambda: highest >= 3)
        await asyncio.sleep(0.05)
        running -= 1
        return web.Response(body=content)

    made = make(V2022, *layers)
    async with serving(alone(made), watch) as (_, address):
        image = await pull_from(store, address)
    assert len(store.layers_of(image)) == 9
    assert highest == 3
