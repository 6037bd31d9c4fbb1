"""Pulls into the store: for whom, of what, together, and interrupted anywhere."""

import asyncio
import itertools
import json
import multiprocessing
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from aiohttp import web

from tests.images.dying import killed_at_every_change
from tests.images.layer_archives import archive, file, folder, hard_link, link
from tests.images.layer_server import broken_off, serving
from tests.images.registries import program
from tests.images.samples import LINUX, index_of, stored, windows
from tests.images.whole_store import check, leftovers
from tests.images.windows_images import (
    BASE_FILES,
    V2019,
    V2022,
    Layer,
    alone,
    app_layer,
    base_layer,
    bundle,
    large_layer,
    layer,
    make,
    two_builds,
)
from winpod.images import pull_worker
from winpod.images.errors import BadContent, LimitExceeded, NoMatch, NoSpace, NotPulled
from winpod.images.layers import peek_base, unpack_layer
from winpod.images.layout_write import write_image
from winpod.images.manifests import OCI_MANIFEST, Bundle, Descriptor
from winpod.images.pull import Puller, pull, variant_for
from winpod.images.pull_choice import narrowing_of, resolve_handler
from winpod.images.pull_progress import LayerProgress, LayerState
from winpod.images.pull_worker import Job
from winpod.images.push import push_image
from winpod.images.recognise import count_base_layers
from winpod.images.references import parse_reference
from winpod.images.settings import BasePolicy, ImageSettings
from winpod.images.store import Store
from winpod.images.stored import StoredImage
from winpod.windows.builds import DEFAULT_HOST, Build
from winpod.windows.errors import WinpodError
from winpod.windows.handlers import HYPERVISOR, KNOWN, PROCESS, Handler, UnknownHandler
from winpod.windows.objects import Narrowing

GUEST_2019 = KNOWN.get("runhcs-wcow-hypervisor-1809")
BUILDS = bundle(two_builds())
FORK = multiprocessing.get_context("fork")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "root") as opened:
        yield opened


async def pull_as(
    store: Store, name: str, handler: Handler = PROCESS, host: Build = DEFAULT_HOST, **options: Any
) -> StoredImage:
    return await pull(store, name, handler, host, **options)


async def push(registry: str, name: str, image: Bundle) -> str:
    await push_image(parse_reference(f"{registry}/{name}"), image)
    return f"{registry}/{name}"


# For whom


@pytest.mark.parametrize(
    ("runtime_handler", "annotations", "sandbox", "handler"),
    [
        ("", {}, "", PROCESS),
        ("runhcs-wcow-hypervisor", {}, "", HYPERVISOR),
        ("", {"kubernetes.io/runtimehandler": "containerd-hyperv-17763"}, "", GUEST_2019),
        ("", {}, "runhcs-wcow-hypervisor-17763", GUEST_2019),
        ("docker", {"kubernetes.io/runtimehandler": "x"}, "runhcs-wcow-hypervisor", PROCESS),
        ("", {"kubernetes.io/runtimehandler": "default"}, "runhcs-wcow-hypervisor", PROCESS),
    ],
)
def test_the_handler_is_the_requests_then_the_annotations_then_the_sandboxs(
    runtime_handler: str, annotations: Mapping[str, str], sandbox: str, handler: Handler
) -> None:
    assert resolve_handler(KNOWN, runtime_handler, annotations, sandbox) == handler


@pytest.mark.parametrize(
    "request_",
    [("runc", {}, ""), ("", {"kubernetes.io/runtimehandler": "runc"}, ""), ("", {}, "runc")],
)
def test_an_unknown_handler_is_an_error(request_: tuple[str, Mapping[str, str], str]) -> None:
    with pytest.raises(UnknownHandler, match='no runtime for "runc" is configured'):
        resolve_handler(KNOWN, *request_)


async def test_the_manifest_is_chosen_by_the_handlers_build(registry: str, store: Store) -> None:
    name = await push(registry, "choose/app:1", BUILDS)
    assert (await pull_as(store, name)).os_version == V2022.os_version
    assert (await pull_as(store, name, GUEST_2019)).os_version == V2019.os_version
    on_2025 = await pull_as(store, name, host=Build(10, 0, 26100))
    assert on_2025.os_version == V2022.os_version
    assert (await pull_as(store, name, host=Build(10, 0, 17763))).os_version == V2019.os_version


async def test_what_fits_nothing_is_told_with_builds_and_a_handler(
    registry: str, store: Store
) -> None:
    name = await push(registry, "misfit/app:1", BUILDS)
    with pytest.raises(NoMatch) as caught:
        await pull_as(store, name, host=Build(10, 0, 18362))
    said = str(caught.value)
    assert "no match for platform in manifest" in said
    assert "has no build 10.0.18362; it has 10.0.17763.805, 10.0.20348.2113" in said
    assert said.endswith(
        "It runs on a host of build 10.0.17763 or 10.0.20348, or here with the handler "
        "runhcs-wcow-hypervisor-17763: a RuntimeClass's, or --handler."
    )
    with pytest.raises(NoMatch, match=r"guest of build 10\.0\.17763.* older 10\.0\.14393"):
        await pull_as(store, name, GUEST_2019, Build(10, 0, 14393))
    linux = await push(registry, "misfit/linux:1", alone(make(LINUX, app_layer())))
    with pytest.raises(NoMatch, match="no windows image; it has linux/amd64"):
        await pull_as(store, linux)
    assert leftovers(store.root) == set()


async def test_an_image_of_one_manifest_must_fit_too(registry: str, store: Store) -> None:
    name = await push(registry, "single/app:1", alone(make(V2019, app_layer())))
    with pytest.raises(NoMatch) as caught:
        await pull_as(store, name)
    assert str(caught.value) == (
        f'failed to pull image "{name}" for the handler runhcs-wcow-process: '
        "hcs::CreateComputeSystem: "
        "The container operating system does not match the host operating system. "
        f"{name} has no build 10.0.20348; it has 10.0.17763.805. "
        "It runs on a host of build 10.0.17763, or here with the handler "
        "runhcs-wcow-hypervisor-17763: a RuntimeClass's, or --handler."
    )
    assert (await pull_as(store, name, GUEST_2019)).os_version == V2019.os_version


async def test_an_index_that_names_no_build_is_judged_by_the_config(
    registry: str, store: Store
) -> None:
    made = make(V2019, app_layer())
    entry = Descriptor(OCI_MANIFEST, made.manifest[0].digest, made.manifest[0].size, windows(""))
    image = Bundle(made.blobs, ((entry, made.manifest[1]), index_of([entry])))
    name = await push(registry, "unnamed/app:1", image)
    with pytest.raises(NoMatch, match=r"has no build 10\.0\.20348; it has 10\.0\.17763\.805"):
        await pull_as(store, name)
    assert (await pull_as(store, name, GUEST_2019)).os_version == V2019.os_version


@pytest.mark.parametrize(
    ("annotations", "found"),
    [
        ({}, "10.0.20348.2113"),
        ({"winpod.dev/os-version": "10.0.20348.1006"}, "10.0.20348.1006"),
        ({"winpod.dev/os-version": "2022", "kubernetes.io/os": "windows"}, "10.0.20348.2113"),
        ({"winpod.dev/os-version": "10.0.17763"}, "no build 10.0.20348 within 10.0.17763"),
        ({"winpod.dev/os": "linux"}, "ask for linux, and it runs windows"),
        ({"kubernetes.io/arch": "arm64"}, "ask for arm64, and it runs amd64"),
        ({"winpod.dev/os": "windows", "kubernetes.io/os": "linux"}, "10.0.20348.2113"),
    ],
)
async def test_annotations_narrow_and_never_widen(
    registry: str, store: Store, annotations: Mapping[str, str], found: str
) -> None:
    made = [make(windows(f"10.0.20348.{n}"), app_layer()) for n in (887, 1006, 2113)]
    name = await push(registry, "narrow/app:1", bundle([*made, make(V2019, app_layer())]))
    try:
        image = await pull_as(store, name, narrowing=narrowing_of(annotations))
        assert image.os_version == found
    except NoMatch as error:
        assert found in str(error)  # noqa: PT017 - some are told, some are found


# Document 003


async def test_one_name_for_two_handlers_at_the_same_time(registry: str, store: Store) -> None:
    """Document 003: "Same image names with different handlers … around the same time"."""
    shared = large_layer()
    old, new = two_builds(shared)
    name = await push(registry, "seed003/app:1", bundle((old, new)))
    async with Puller(store) as puller:
        for_old, for_new = await asyncio.gather(
            puller.pull(name, GUEST_2019, DEFAULT_HOST), puller.pull(name, PROCESS, DEFAULT_HOST)
        )
    assert (for_old.id, for_new.id) == (old.id, new.id)
    assert store.find(name, GUEST_2019.name) == for_old
    assert store.find(name, PROCESS.name) == for_new
    assert len(list((store.root / "layers").iterdir())) == 1
    assert store.usage().bytes < 1.2 * shared.descriptor.size
    store.remove(name, GUEST_2019.name)
    assert store.find(name, GUEST_2019.name) is None
    assert store.find(name, PROCESS.name) == for_new
    assert store.layers_of(for_new)
    check(store.root)


async def test_the_same_layer_is_downloaded_once_however_many_want_it(store: Store) -> None:
    shared = large_layer(1)
    async with serving(bundle(two_builds(shared))) as (server, address), Puller(store) as puller:
        names = [f"{address}/app:{n}" for n in range(4)]
        handlers = (PROCESS, GUEST_2019, HYPERVISOR)
        await asyncio.gather(
            *(
                puller.pull(name, handler, DEFAULT_HOST)
                for name, handler in itertools.product(names, handlers)
            )
        )
        assert server.ranges(shared.descriptor.digest) == [""]
    assert len(store.images()) == 3
    assert all(len(image.tags) == 4 for image in store.images())
    check(store.root)


def _pull_alone(root: Path, name: str) -> None:
    with Store(root) as store:
        asyncio.run(pull_as(store, name))


async def test_the_same_layer_is_downloaded_once_by_two_processes(store: Store) -> None:
    shared = large_layer(1)

    async def slowly(request: web.Request, content: bytes, start: int) -> web.StreamResponse:
        del request, start
        await asyncio.sleep(0.5)
        return web.Response(body=content)

    digest = shared.descriptor.digest
    async with serving(bundle(two_builds(shared)), slowly, digest) as (server, address):
        others = [
            FORK.Process(target=_pull_alone, args=(store.root, f"{address}/app:1"))
            for _ in range(3)
        ]
        for other in others:
            other.start()
        await asyncio.gather(*(asyncio.to_thread(other.join) for other in others))
        assert [other.exitcode for other in others] == [0] * 3
        assert server.ranges(digest) == [""]
    assert leftovers(store.root) == set()
    check(store.root)


async def test_a_pull_goes_on_when_the_one_it_shares_with_goes_away(store: Store) -> None:
    shared = large_layer(1)
    begun = asyncio.Event()

    async def slowly(request: web.Request, content: bytes, start: int) -> web.StreamResponse:
        del request, start
        begun.set()
        await asyncio.sleep(0.3)
        return web.Response(body=content)

    digest = shared.descriptor.digest
    async with (
        serving(bundle(two_builds(shared)), slowly, digest) as (_, address),
        Puller(store) as puller,
    ):
        first = asyncio.create_task(puller.pull(f"{address}/app:1", PROCESS, DEFAULT_HOST))
        await begun.wait()
        second = asyncio.create_task(puller.pull(f"{address}/app:2", PROCESS, DEFAULT_HOST))
        await asyncio.sleep(0.1)
        first.cancel()
        assert (await second).tags
        with pytest.raises(asyncio.CancelledError):
            await first
    check(store.root)


async def test_a_pull_that_is_cancelled_leaves_what_can_be_resumed(store: Store) -> None:
    large = large_layer(2)
    size, digest = large.descriptor.size, large.descriptor.digest
    image = bundle(two_builds(large))

    async def half(request: web.Request, content: bytes, start: int) -> web.StreamResponse:
        response = web.StreamResponse()
        response.content_length = size
        await response.prepare(request)
        await response.write(content[start : size // 2])
        await asyncio.sleep(30)
        return response

    async with serving(image, half, digest) as (_, address):
        work = asyncio.create_task(pull_as(store, f"{address}/app:1"))
        path = store.blob_path(digest)
        await until(lambda: path.exists() and path.stat().st_size >= size // 2)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    assert {p.name for p in store.session().directory.iterdir()} == {"lock", "owner"}
    assert _children() == []
    async with serving(image) as (server, address):
        await pull_as(store, f"{address}/app:1")
        assert server.ranges(digest) == [f"bytes={size // 2}-"]


async def until(happened: Callable[[], bool], seconds: float = 10.0) -> None:
    for _ in range(int(seconds * 100)):
        if happened():
            return
        await asyncio.sleep(0.01)
    pytest.fail("it did not happen in time", pytrace=False)


def _children() -> list[str]:
    """Processes that unpack for this one."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = path.joinpath("stat").read_text().rpartition(")")[2].split()[1]
            command = path.joinpath("cmdline").read_bytes()
        except OSError:
            continue
        if parent == str(os.getpid()) and b"pull_worker" in command:
            found.append(path.name)
    return found


async def test_an_unpacker_that_is_killed_is_named_and_leaves_nothing(store: Store) -> None:
    large = large_layer(2)

    async def half(request: web.Request, content: bytes, start: int) -> web.StreamResponse:
        response = web.StreamResponse()
        response.content_length = len(content)
        await response.prepare(request)
        await response.write(content[start : len(content) // 2])
        await until(lambda: bool(_children()))
        await asyncio.sleep(0.3)
        for pid in _children():
            os.kill(int(pid), signal.SIGKILL)
        await asyncio.sleep(30)
        return response

    async with serving(bundle(two_builds(large)), half, large.descriptor.digest) as (_, address):
        with pytest.raises(WinpodError, match=r"ended without a result \(status -9\)"):
            await pull_as(store, f"{address}/app:1")
    assert leftovers(store.root) == set()


# Choosing again from what is stored


async def test_a_second_handler_takes_what_is_stored_without_asking(
    registry: str, store: Store
) -> None:
    name = await push(registry, "again/app:1", BUILDS)
    first = await pull_as(store, name)
    again = await variant_for(store, name, HYPERVISOR, DEFAULT_HOST)
    assert (again.id, again.handler, again.tags) == (first.id, HYPERVISOR.name, first.tags)
    assert again.digests == first.digests
    assert store.find(name, HYPERVISOR.name) == again
    assert await variant_for(store, name, PROCESS, DEFAULT_HOST) == first
    by_id = await variant_for(store, first.id, PROCESS, Build(10, 0, 26100))
    assert (by_id.id, by_id.host) == (first.id, "10.0.26100")
    store.remove(name, PROCESS.name)
    assert store.find(name, HYPERVISOR.name)


async def test_a_variant_that_was_not_pulled_is_named_with_its_pull(
    registry: str, store: Store
) -> None:
    name = await push(registry, "again/app:2", BUILDS)
    with pytest.raises(NotPulled, match=f"winpod pull --handler {PROCESS.name} {name}"):
        await variant_for(store, name, PROCESS, DEFAULT_HOST)
    image = await pull_as(store, name)
    for text in (name, image.id):
        with pytest.raises(NotPulled, match=f"winpod pull --handler {GUEST_2019.name} {name}"):
            await variant_for(store, text, GUEST_2019, DEFAULT_HOST)
    with pytest.raises(NoMatch, match=r"has no build 10\.0\.18362"):
        await variant_for(store, name, PROCESS, Build(10, 0, 18362))
    with pytest.raises(NoMatch, match=r"within 10\.0\.17763"):
        await variant_for(store, name, PROCESS, DEFAULT_HOST, Narrowing(os_version="10.0.17763"))


async def test_a_name_for_two_narrowings_is_the_one_that_was_asked_for(
    registry: str, store: Store
) -> None:
    made = [make(windows(f"10.0.20348.{n}"), app_layer()) for n in (1, 2)]
    name = await push(registry, "again/app:3", bundle(made))
    one = Narrowing(os_version="10.0.20348.1")
    await pull_as(store, name)
    with pytest.raises(NotPulled):
        await variant_for(store, name, PROCESS, DEFAULT_HOST, one)
    await pull_as(store, name, HYPERVISOR, narrowing=one)
    found = await variant_for(store, name, PROCESS, DEFAULT_HOST, one)
    assert (found.os_version, found.handler) == ("10.0.20348.1", PROCESS.name)


# Base layers


UPDATE = layer({**BASE_FILES, "Files/update.txt": b"1"}, made_by="Install update 10.0.20348.2113")
PLAIN_BASE = base_layer("10.0.20348.2113", made_by="Apply image 2022-RTM-amd64")


@pytest.mark.parametrize(
    ("layers", "history", "base"),
    [
        ([PLAIN_BASE, UPDATE, app_layer()], True, 2),
        ([PLAIN_BASE, app_layer()], True, 1),
        ([PLAIN_BASE, UPDATE], True, 2),
        ([PLAIN_BASE, UPDATE, app_layer()], False, 2),
        ([PLAIN_BASE, app_layer()], False, 1),
        ([app_layer()], False, 0),
        ([app_layer("1"), PLAIN_BASE], True, 0),
        ([layer(BASE_FILES, made_by="COPY . /"), app_layer()], True, 1),
        ([layer(BASE_FILES, compression="zstd", made_by=""), app_layer()], True, 1),
    ],
    ids=[
        "released and updated",
        "released",
        "nothing else",
        "by content, with update",
        "by content",
        "no base at all",
        "a base that is not the lowest",
        "history that tells nothing",
        "zstd",
    ],
)
async def test_base_layers_are_recognised_in_ordinary_manifests(
    store: Store, layers: list[Layer], history: bool, base: int
) -> None:
    made = make(V2022, *layers, history=history)
    async with serving(alone(made)) as (server, address):
        image = await pull_as(store, f"{address}/app:1")
        assert [one.base for one in image.layers] == [n < base for n in range(len(layers))]
        assert [one.kept for one in image.layers] == [n >= base for n in range(len(layers))]
        for one in layers[:base]:
            asked = server.ranges(one.descriptor.digest)
            assert all(text.startswith("bytes=0-") for text in asked)
            assert not asked or not history or "image" not in one.made_by
        again = len(server.requests)
        assert await pull_as(store, f"{address}/app:1")
        assert all(r.method == "HEAD" for r in server.requests[again:])
    assert image.size > 0
    check(store.root)


async def test_base_layers_are_pulled_where_one_wants_them(store: Store) -> None:
    made = make(V2022, PLAIN_BASE, UPDATE, app_layer())
    async with serving(alone(made)) as (_, address):
        image = await pull_as(store, f"{address}/app:1")
        assert len(store.layers_of(image)) == 1
        settings = ImageSettings(base_layers=BasePolicy.PULL, sync=True)
        image = await pull_as(store, f"{address}/app:1", settings=settings)
        assert [one.kept for one in image.layers] == [True] * 3
        assert [one.base for one in image.layers] == [True, True, False]
        assert len(store.layers_of(image)) == 3


async def test_only_the_lowest_two_layers_can_be_the_base() -> None:
    async def yes(_: Descriptor) -> bool:
        return True

    layers = [PLAIN_BASE.descriptor] * 5
    assert await count_base_layers(layers, [], yes) == 2
    assert await count_base_layers(layers, ["Apply image 1", "Install update 2"] * 2, yes) == 2
    assert await count_base_layers([], ["Apply image 1"], yes) == 0
    assert peek_base(PLAIN_BASE.content, "none")


# What an image may be


async def test_images_that_cannot_be_unpacked_are_refused(registry: str, store: Store) -> None:
    good = app_layer()
    wrong_diff = Layer(good.descriptor, good.content, "sha256:" + "0" * 64)
    chart = layer({"a": b""}, media_type="application/vnd.cncf.helm.chart.content.v1.tar+gzip")
    not_tar_descriptor, not_tar = stored(
        "application/vnd.oci.image.layer.v1.tar", b"not a tar" * 99
    )
    refused = {
        "unpacks to": make(V2022, wrong_diff),
        "is no layer": make(V2022, chart),
        "archive": make(V2022, Layer(not_tar_descriptor, not_tar, good.diff_id)),
    }
    for number, (says, made) in enumerate(refused.items()):
        name = await push(registry, f"refused/app:{number}", alone(made))
        with pytest.raises((BadContent, LimitExceeded), match=says):
            await pull_as(store, name)
    fewer = make(V2022, good)
    config, data = stored(fewer.blobs[0][0].media_type, {**_json(fewer.blobs[0][1]), "rootfs": {}})
    manifest = {**_json(fewer.manifest[1]), "config": config.as_json()}
    image = Bundle(((config, data), *fewer.blobs[1:]), (stored(OCI_MANIFEST, manifest),))
    name = await push(registry, "refused/app:rootfs", image)
    with pytest.raises(BadContent, match="diff_ids"):
        await pull_as(store, name)
    assert leftovers(store.root) == set()
    check(store.root)


def _json(data: bytes) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(data)
    return value


async def test_progress_is_told_layer_by_layer(registry: str, store: Store) -> None:
    old, _ = made = two_builds(large_layer(1))
    name = await push(registry, "progress/app:1", bundle(made))
    seen: list[LayerProgress] = []
    await pull_as(store, name, GUEST_2019, progress=seen.append)
    base, app = (one.descriptor for one in old.layers)
    assert [p.state for p in seen if p.digest == base.digest] == [LayerState.BASE]
    states = [p.state for p in seen if p.digest == app.digest]
    assert list(dict.fromkeys(states)) == [
        LayerState.WAITING,
        LayerState.DOWNLOADING,
        LayerState.UNPACKING,
        LayerState.DONE,
    ]
    done = [p.done for p in seen if p.digest == app.digest]
    assert done == sorted(done)
    assert done[-1] == app.size
    seen.clear()
    await pull_as(store, name, progress=seen.append)
    assert LayerState.HERE in {p.state for p in seen}


@pytest.mark.parametrize("mode", ["directory", "tar", "tar.gz"])
async def test_layouts_and_archives_are_pulled_like_registries(
    store: Store, tmp_path: Path, mode: str
) -> None:
    path = tmp_path / "Some Images"
    write_image(path, "example/app:1", BUILDS)
    prefix = "oci"
    if mode != "directory":
        flags = "-cf" if mode == "tar" else "-czf"
        target = tmp_path / f"images.{mode}"
        run("tar", flags, target, "-C", path, ".")
        path, prefix = target, "oci-archive"
    image = await pull_as(store, f"{prefix}:{path}:example/app:1")
    assert image.tags == ("docker.io/example/app:1",)
    assert (store.layers_of(image)[0] / "Files/app/app.txt").read_text() == "app"
    assert leftovers(store.root) == set()


async def test_a_layout_with_a_damaged_layer_is_refused(store: Store, tmp_path: Path) -> None:
    made = make(V2022, large_layer(1))
    write_image(tmp_path / "layout", "example/app:1", alone(made))
    blob = tmp_path / "layout/blobs" / made.layers[0].descriptor.digest.replace(":", "/")
    whole = blob.read_bytes()
    for damage in (whole[:-1], whole[:-1] + b"x", b""):
        blob.write_bytes(damage)
        with pytest.raises(BadContent):
            await pull_as(store, f"oci:{tmp_path}/layout")
    assert leftovers(store.root) == set()


# Tools that are not ours


def run(*command: str | Path) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("kind", [("oci", "gzip"), ("oci", "zstd"), ("v2s2", "gzip")])
async def test_images_that_skopeo_copied_are_pulled(
    registry: str, store: Store, tmp_path: Path, kind: tuple[str, str]
) -> None:
    form, compression = kind
    made = make(V2022, PLAIN_BASE, UPDATE, app_layer(f"{kind}", compression="none"))
    write_image(tmp_path / "layout", "app", bundle([made, make(V2019, app_layer())]))
    name = f"{registry}/skopeo/{form}-{compression}:1"
    run(
        program("skopeo", "skopeo"),
        *("copy", "--all", "--dest-tls-verify=false", "--format", form),
        *("--dest-compress", "--dest-compress-format", compression),
        f"oci:{tmp_path}/layout:app",
        f"docker://{name}",
    )
    image = await pull_as(store, name)
    assert [one.kept for one in image.layers] == [False, False, True]
    assert (store.layers_of(image)[0] / "Files/app/app.txt").read_text() == f"{kind}"
    wanted = "zstd" if compression == "zstd" else "gzip"
    assert wanted in _json(store.content(image.manifest))["layers"][-1]["mediaType"]
    check(store.root)


@pytest.mark.parametrize("form", ["oci", "docker"])
async def test_images_that_buildah_made_are_pulled(
    registry: str, store: Store, tmp_path: Path, form: str
) -> None:
    content = tmp_path / "content"
    (content / "Files/app").mkdir(parents=True)
    (content / "Files/app/app.txt").write_text("buildah")
    (content / "Hives").mkdir()
    buildah = [program("buildah", "buildah"), "--storage-driver", "vfs"]
    buildah += ["--root", str(tmp_path / "root-b"), "--runroot", str(tmp_path / "run-b")]
    container = run(*buildah, "from", "scratch")
    run(*buildah, "copy", container, f"{content}/", "/")
    settings = ("--os", "windows", "--arch", "amd64", "--os-version", "10.0.20348.7")
    run(*buildah, "config", *settings, container)
    name = f"{registry}/buildah/{form}:1"
    commit = ("commit", "--tls-verify=false", "--format", form, container)
    run(*buildah, *commit, f"docker://{name}")
    image = await pull_as(store, name)
    assert image.os_version == "10.0.20348.7"
    assert (store.layers_of(image)[0] / "Files/app/app.txt").read_text() == "buildah"
    archive = f"{tmp_path}/saved.tar"
    run(*buildah, *commit, f"docker-archive:{archive}:example/saved:1")
    saved = await pull_as(store, f"oci-archive:{archive}:example/saved:1")
    assert saved.tags == ("docker.io/example/saved:1",)
    assert (store.layers_of(saved)[0] / "Files/app/app.txt").read_text() == "buildah"


async def test_images_that_umoci_made_are_pulled(store: Store, tmp_path: Path) -> None:
    umoci = program("umoci", "umoci")
    layout, unpacked = tmp_path / "layout", tmp_path / "unpacked"
    run(umoci, "init", "--layout", layout)
    run(umoci, "new", "--image", f"{layout}:v1")
    run(umoci, "unpack", "--image", f"{layout}:v1", unpacked)
    (unpacked / "rootfs/Files/app").mkdir(parents=True)
    (unpacked / "rootfs/Files/app/app.txt").write_text("umoci")
    run(umoci, "repack", "--image", f"{layout}:v1", unpacked)
    run(umoci, "config", "--image", f"{layout}:v1", "--os", "windows", "--architecture", "amd64")
    image = await pull_as(store, f"oci:{layout}:v1")
    assert image.tags == ("localhost/layout:v1",)
    assert image.os_version == ""
    assert (store.layers_of(image)[0] / "Files/app/app.txt").read_text() == "umoci"


# The process that unpacks


def _ask_worker(tmp_path: Path, made: Layer, counts: list[int], **changes: Any) -> dict[str, Any]:
    (tmp_path / "blob").write_bytes(b"before" + made.content)
    lines: SimpleQueue[str] = SimpleQueue()
    for count in counts:
        lines.put(f"{count}\n")
    job = Job(
        path=str(tmp_path / "blob"),
        offset=len(b"before"),
        size=made.descriptor.size,
        digest=made.descriptor.digest,
        target=str(tmp_path / "target"),
    )
    return pull_worker._answer(replace(job, **changes), lines)


def test_a_layer_is_unpacked_as_it_arrives(tmp_path: Path) -> None:
    made = large_layer(1)
    answer = _ask_worker(tmp_path, made, [1, 100_000, made.descriptor.size])
    assert answer["diff_id"] == made.diff_id
    assert answer["bytes"] > 1 << 20
    assert answer["inodes"] == 5
    assert (tmp_path / "target/Files/app/noise.bin").stat().st_size == 1 << 20


def test_a_layer_follows_the_spelling_of_the_base(tmp_path: Path) -> None:
    (tmp_path / "c/windows/system32").mkdir(parents=True)
    made = layer({"Files/Windows/System32/a.dll": b"a"})
    _ask_worker(tmp_path, made, [made.descriptor.size], drive_c=str(tmp_path / "c"))
    assert (tmp_path / "target/Files/windows/system32/a.dll").exists()


@pytest.mark.parametrize(
    ("changes", "kind", "says"),
    [
        ({"digest": "sha256:" + "0" * 64}, "WrongDigest", "has the digest sha256:"),
        ({"offset": 0}, "WrongDigest", "has the digest sha256:"),
        ({"offset": 500}, "BadContent", "became shorter"),
        ({"target": "/proc/nothing/here"}, "WinpodError", "could not be unpacked"),
    ],
)
def test_what_cannot_be_unpacked_is_answered_with_an_error(
    tmp_path: Path, changes: dict[str, Any], kind: str, says: str
) -> None:
    made = large_layer(1)
    answer = _ask_worker(tmp_path, made, [made.descriptor.size], **changes)
    assert answer["error"] == kind
    assert says in answer["sentence"]


# A full disk


@contextmanager
def small_disk(path: Path, size: str) -> Iterator[Path]:
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", path], check=True)


@pytest.mark.parametrize("size", ["2M", "5M"], ids=["while downloading", "while unpacking"])
async def test_a_full_disk_is_told_and_the_room_given_back(
    registry: str, tmp_path: Path, size: str
) -> None:
    name = await push(registry, "full/app:1", bundle(two_builds(large_layer(3))))
    small = await push(registry, "full/app:2", bundle(two_builds()))
    with small_disk(tmp_path / "disk", size) as disk, Store(disk / "root") as store:
        with pytest.raises(NoSpace, match=r"No space is left|no room"):
            await pull_as(store, name)
        assert leftovers(store.root) == set()
        assert await pull_as(store, small)
        check(store.root)


# Death at every step


def test_a_pull_killed_at_any_change_is_finished_by_the_next(registry: str, tmp_path: Path) -> None:
    name = f"{registry}/killed/app:1"
    asyncio.run(push_image(parse_reference(name), bundle(two_builds(large_layer(1)))))
    count = 0
    for root in killed_at_every_change(tmp_path, lambda path: _pull_alone(path, name)):
        count += 1
        if root.exists():
            check(root)
        _pull_alone(root, name)
        assert leftovers(root) == set()
        check(root)
        with Store(root) as store:
            assert store.find(name)
    assert count > 40


def _unpack_and_die(root: Path, pieces: list[bytes], number: int) -> None:
    def until_death() -> Iterator[bytes]:
        yield from pieces[:number]
        os.kill(os.getpid(), signal.SIGKILL)

    with Store(root) as store:
        target = store.session().directory / "layer"
        target.mkdir()
        unpack_layer(until_death(), target, compression="none")


def test_an_unpack_killed_anywhere_leaves_nothing(tmp_path: Path) -> None:
    items = (
        folder("Files"),
        file("Files/app/one.txt", b"1" * 700),
        hard_link("Files/app/two.txt", "Files/app/one.txt"),
        link("Files/app/three", "one.txt"),
        file("Files/app/.wh.gone", b""),
        folder("Hives"),
        file("Hives/System_Delta", b"hive"),
    )
    data = archive(*items)
    pieces = [data[at : at + 512] for at in range(0, len(data), 512)]
    for number in range(len(pieces) + 1):
        root = tmp_path / str(number)
        process = FORK.Process(target=_unpack_and_die, args=(root, pieces, number))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        assert leftovers(root) == set()
        check(root)


def test_unpackers_do_not_outlive_a_pull_that_is_killed(tmp_path: Path) -> None:
    large = large_layer(2)

    async def half(request: web.Request, content: bytes, start: int) -> web.StreamResponse:
        kept = tmp_path / "ingest/blobs" / large.descriptor.digest.replace(":", "-")
        return await broken_off(request, content, start, len(content) // 2, kept)

    async def scenario() -> None:
        image = bundle(two_builds(large))
        async with serving(image, half, large.descriptor.digest) as (_, address):
            process = FORK.Process(target=_pull_alone, args=(tmp_path, f"{address}/app:1"))
            process.start()
            await until(lambda: any(tmp_path.glob("ingest/session-*/*/Files")))
            process.kill()
            await asyncio.to_thread(process.join)

    asyncio.run(scenario())
    deadline = time.monotonic() + 5
    while list(tmp_path.glob("ingest/session-*")):
        Store(tmp_path).close()
        assert time.monotonic() < deadline, "an unpacker still holds its session"
        time.sleep(0.02)
    check(tmp_path)
