"""Pulls into the store: handler and platform selection, concurrency, and stored variants."""

import asyncio
import itertools
import os
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest
from aiohttp import web

from tests.support.image_samples import LINUX, index_of, windows
from tests.support.layer_server import serving
from tests.support.pulls import BUILDS, FORK, GUEST_2019, pull_alone, pull_as, push, store, until
from tests.support.store_invariants import check, leftovers
from tests.support.windows_images import (
    V2019,
    V2022,
    alone,
    app_layer,
    bundle,
    large_layer,
    make,
    two_builds,
)
from winpod.errors import WinpodError
from winpod.images.errors import ImageNotPulled, NoMatchingManifest
from winpod.images.manifests import OCI_MANIFEST, Descriptor, ImageBundle
from winpod.images.pull.platform_match import platform_constraint_of, resolve_handler
from winpod.images.pull.puller import Puller, find_variant
from winpod.images.store.store import Store
from winpod.placement.model import PlatformConstraint
from winpod.windows.builds import DEFAULT_HOST, Build
from winpod.windows.handlers import (
    BUILTIN_HANDLERS,
    HYPERVISOR_HANDLER,
    PROCESS_HANDLER,
    Handler,
    UnknownHandler,
)

__all__ = ["store"]


@pytest.mark.parametrize(
    ("runtime_handler", "annotations", "sandbox", "handler"),
    [
        ("", {}, "", PROCESS_HANDLER),
        ("runhcs-wcow-hypervisor", {}, "", HYPERVISOR_HANDLER),
        ("", {"kubernetes.io/runtimehandler": "containerd-hyperv-17763"}, "", GUEST_2019),
        ("", {}, "runhcs-wcow-hypervisor-17763", GUEST_2019),
        (
            "docker",
            {"kubernetes.io/runtimehandler": "x"},
            "runhcs-wcow-hypervisor",
            PROCESS_HANDLER,
        ),
        (
            "",
            {"kubernetes.io/runtimehandler": "default"},
            "runhcs-wcow-hypervisor",
            PROCESS_HANDLER,
        ),
    ],
)
def test_handler_is_of_request_then_annotation_then_sandbox(
    runtime_handler: str, annotations: Mapping[str, str], sandbox: str, handler: Handler
) -> None:
    assert resolve_handler(BUILTIN_HANDLERS, runtime_handler, annotations, sandbox) == handler


@pytest.mark.parametrize(
    "request_",
    [("runc", {}, ""), ("", {"kubernetes.io/runtimehandler": "runc"}, ""), ("", {}, "runc")],
)
def test_unknown_handler_is_an_error(request_: tuple[str, Mapping[str, str], str]) -> None:
    with pytest.raises(UnknownHandler, match='no runtime for "runc" is configured'):
        resolve_handler(BUILTIN_HANDLERS, *request_)


async def test_manifest_is_chosen_by_the_build_of_the_handler(registry: str, store: Store) -> None:
    name = await push(registry, "choose/app:1", BUILDS)
    assert (await pull_as(store, name)).os_version == V2022.os_version
    assert (await pull_as(store, name, GUEST_2019)).os_version == V2019.os_version
    on_2025 = await pull_as(store, name, host=Build(10, 0, 26100))
    assert on_2025.os_version == V2022.os_version
    assert (await pull_as(store, name, host=Build(10, 0, 17763))).os_version == V2019.os_version


async def test_mismatch_error_names_builds_and_handlers(registry: str, store: Store) -> None:
    name = await push(registry, "misfit/app:1", BUILDS)
    with pytest.raises(NoMatchingManifest) as caught:
        await pull_as(store, name, host=Build(10, 0, 18362))
    said = str(caught.value)
    assert "no match for platform in manifest" in said
    assert "has no build 10.0.18362; it has 10.0.17763.805, 10.0.20348.2113" in said
    assert said.endswith(
        "It runs on a host of build 10.0.17763 or 10.0.20348, or on this host with the handler "
        "runhcs-wcow-hypervisor-17763 (set it in a RuntimeClass or with --handler)."
    )
    with pytest.raises(
        NoMatchingManifest, match=r"guest of build 10\.0\.17763.* older 10\.0\.14393"
    ):
        await pull_as(store, name, GUEST_2019, Build(10, 0, 14393))
    linux = await push(registry, "misfit/linux:1", alone(make(LINUX, app_layer())))
    with pytest.raises(NoMatchingManifest, match="no windows image; it has linux/amd64"):
        await pull_as(store, linux)
    assert leftovers(store.root) == set()


async def test_single_manifest_must_match_too(registry: str, store: Store) -> None:
    name = await push(registry, "single/app:1", alone(make(V2019, app_layer())))
    with pytest.raises(NoMatchingManifest) as caught:
        await pull_as(store, name)
    assert str(caught.value) == (
        f'failed to pull image "{name}" for the handler runhcs-wcow-process: '
        "hcs::CreateComputeSystem: "
        "The container operating system does not match the host operating system. "
        f"{name} has no build 10.0.20348; it has 10.0.17763.805. "
        "It runs on a host of build 10.0.17763, or on this host with the handler "
        "runhcs-wcow-hypervisor-17763 (set it in a RuntimeClass or with --handler)."
    )
    assert (await pull_as(store, name, GUEST_2019)).os_version == V2019.os_version


async def test_index_without_build_is_matched_by_the_config(registry: str, store: Store) -> None:
    made = make(V2019, app_layer())
    entry = Descriptor(OCI_MANIFEST, made.manifest[0].digest, made.manifest[0].size, windows(""))
    image = ImageBundle(made.blobs, ((entry, made.manifest[1]), index_of([entry])))
    name = await push(registry, "unnamed/app:1", image)
    with pytest.raises(
        NoMatchingManifest, match=r"has no build 10\.0\.20348; it has 10\.0\.17763\.805"
    ):
        await pull_as(store, name)
    assert (await pull_as(store, name, GUEST_2019)).os_version == V2019.os_version


@pytest.mark.parametrize(
    ("annotations", "found"),
    [
        ({}, "10.0.20348.2113"),
        ({"winpod.dev/os-version": "10.0.20348.1006"}, "10.0.20348.1006"),
        ({"winpod.dev/os-version": "2022", "kubernetes.io/os": "windows"}, "10.0.20348.2113"),
        ({"winpod.dev/os-version": "10.0.17763"}, "no build 10.0.20348 within 10.0.17763"),
        ({"winpod.dev/os": "linux"}, "require linux, and the handler runs windows"),
        ({"kubernetes.io/arch": "arm64"}, "require arm64, and the handler runs amd64"),
        ({"winpod.dev/os": "windows", "kubernetes.io/os": "linux"}, "10.0.20348.2113"),
    ],
)
async def test_annotations_narrow_and_never_widen(
    registry: str, store: Store, annotations: Mapping[str, str], found: str
) -> None:
    made = [make(windows(f"10.0.20348.{n}"), app_layer()) for n in (887, 1006, 2113)]
    name = await push(registry, "narrow/app:1", bundle([*made, make(V2019, app_layer())]))
    try:
        image = await pull_as(store, name, constraint=platform_constraint_of(annotations))
        assert image.os_version == found
    except NoMatchingManifest as error:
        assert found in str(error)  # noqa: PT017 - some cases fail, some succeed


async def test_concurrent_pulls_of_one_name_for_two_handlers(registry: str, store: Store) -> None:
    """Document 003: "Same image names with different handlers … around the same time"."""
    shared = large_layer()
    old, new = two_builds(shared)
    name = await push(registry, "seed003/app:1", bundle((old, new)))
    async with Puller(store) as puller:
        for_old, for_new = await asyncio.gather(
            puller.pull(name, GUEST_2019, DEFAULT_HOST),
            puller.pull(name, PROCESS_HANDLER, DEFAULT_HOST),
        )
    assert (for_old.id, for_new.id) == (old.id, new.id)
    assert store.find(name, GUEST_2019.name) == for_old
    assert store.find(name, PROCESS_HANDLER.name) == for_new
    assert len(list((store.root / "layers").iterdir())) == 1
    assert store.usage().bytes < 1.2 * shared.descriptor.size
    store.remove(name, GUEST_2019.name)
    assert store.find(name, GUEST_2019.name) is None
    assert store.find(name, PROCESS_HANDLER.name) == for_new
    assert store.layers_of(for_new)
    check(store.root)


async def test_concurrent_pulls_download_a_layer_once(store: Store) -> None:
    shared = large_layer(1)
    async with serving(bundle(two_builds(shared))) as (server, address), Puller(store) as puller:
        names = [f"{address}/app:{n}" for n in range(4)]
        handlers = (PROCESS_HANDLER, GUEST_2019, HYPERVISOR_HANDLER)
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


async def test_two_processes_download_a_layer_once(store: Store) -> None:
    shared = large_layer(1)

    async def slowly(request: web.Request, content: bytes, start: int) -> web.StreamResponse:
        del request, start
        await asyncio.sleep(0.5)
        return web.Response(body=content)

    digest = shared.descriptor.digest
    async with serving(bundle(two_builds(shared)), slowly, digest) as (server, address):
        others = [
            FORK.Process(target=pull_alone, args=(store.root, f"{address}/app:1")) for _ in range(3)
        ]
        for other in others:
            other.start()
        await asyncio.gather(*(asyncio.to_thread(other.join) for other in others))
        assert [other.exitcode for other in others] == [0] * 3
        assert server.ranges(digest) == [""]
    assert leftovers(store.root) == set()
    check(store.root)


async def test_pull_continues_when_the_sharing_pull_is_cancelled(store: Store) -> None:
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
        first = asyncio.create_task(puller.pull(f"{address}/app:1", PROCESS_HANDLER, DEFAULT_HOST))
        await begun.wait()
        second = asyncio.create_task(puller.pull(f"{address}/app:2", PROCESS_HANDLER, DEFAULT_HOST))
        await asyncio.sleep(0.1)
        first.cancel()
        assert (await second).tags
        with pytest.raises(asyncio.CancelledError):
            await first
    check(store.root)


async def test_cancelled_pull_can_be_resumed(store: Store) -> None:
    large = large_layer(2)
    size, digest = large.descriptor.size, large.descriptor.digest
    image = bundle(two_builds(large))

    async def half(request: web.Request, content: bytes, start: int) -> web.StreamResponse:
        response = web.StreamResponse()
        response.content_length = size
        await response.prepare(request)
        await response.write(content[start : size // 2])
        await asyncio.sleep(600)
        return response

    async with serving(image, half, digest) as (_, address):
        work = asyncio.create_task(pull_as(store, f"{address}/app:1"))
        path = store.blob_path(digest)
        await until(lambda: path.exists() and path.stat().st_size >= size // 2)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    assert {p.name for p in store.work_directory().directory.iterdir()} == {"lock", "owner"}
    assert _unpack_workers() == []
    async with serving(image) as (server, address):
        await pull_as(store, f"{address}/app:1")
        assert server.ranges(digest) == [f"bytes={size // 2}-"]


def _unpack_workers() -> list[str]:
    """Return the pids of the unpack workers of this process."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = path.joinpath("stat").read_text().rpartition(")")[2].split()[1]
            command = path.joinpath("cmdline").read_bytes()
        except OSError:
            continue
        if parent == str(os.getpid()) and b"unpack_worker" in command:
            found.append(path.name)
    return found


async def test_killed_unpack_worker_fails_the_pull_and_leaves_nothing(store: Store) -> None:
    large = large_layer(2)

    async def half(request: web.Request, content: bytes, start: int) -> web.StreamResponse:
        response = web.StreamResponse()
        response.content_length = len(content)
        await response.prepare(request)
        await response.write(content[start : len(content) // 2])
        await until(lambda: bool(_unpack_workers()))
        await asyncio.sleep(0.3)
        for pid in _unpack_workers():
            os.kill(int(pid), signal.SIGKILL)
        await asyncio.sleep(600)
        return response

    async with serving(bundle(two_builds(large)), half, large.descriptor.digest) as (_, address):
        with pytest.raises(WinpodError, match=r"ended without a result \(status -9\)"):
            await pull_as(store, f"{address}/app:1")
    assert leftovers(store.root) == set()


async def test_second_handler_uses_stored_content_without_network(
    registry: str, store: Store
) -> None:
    name = await push(registry, "again/app:1", BUILDS)
    first = await pull_as(store, name)
    again = await find_variant(store, name, HYPERVISOR_HANDLER, DEFAULT_HOST)
    assert (again.id, again.handler, again.tags) == (first.id, HYPERVISOR_HANDLER.name, first.tags)
    assert again.digests == first.digests
    assert store.find(name, HYPERVISOR_HANDLER.name) == again
    assert await find_variant(store, name, PROCESS_HANDLER, DEFAULT_HOST) == first
    by_id = await find_variant(store, first.id, PROCESS_HANDLER, Build(10, 0, 26100))
    assert (by_id.id, by_id.host) == (first.id, "10.0.26100")
    store.remove(name, PROCESS_HANDLER.name)
    assert store.find(name, HYPERVISOR_HANDLER.name)


async def test_missing_variant_error_names_the_pull_command(registry: str, store: Store) -> None:
    name = await push(registry, "again/app:2", BUILDS)
    with pytest.raises(
        ImageNotPulled, match=f"winpod pull --handler {PROCESS_HANDLER.name} {name}"
    ):
        await find_variant(store, name, PROCESS_HANDLER, DEFAULT_HOST)
    image = await pull_as(store, name)
    for text in (name, image.id):
        with pytest.raises(ImageNotPulled, match=f"winpod pull --handler {GUEST_2019.name} {name}"):
            await find_variant(store, text, GUEST_2019, DEFAULT_HOST)
    with pytest.raises(NoMatchingManifest, match=r"has no build 10\.0\.18362"):
        await find_variant(store, name, PROCESS_HANDLER, Build(10, 0, 18362))
    with pytest.raises(NoMatchingManifest, match=r"within 10\.0\.17763"):
        await find_variant(
            store, name, PROCESS_HANDLER, DEFAULT_HOST, PlatformConstraint(os_version="10.0.17763")
        )


async def test_variant_matches_the_platform_constraint(registry: str, store: Store) -> None:
    made = [make(windows(f"10.0.20348.{n}"), app_layer()) for n in (1, 2)]
    name = await push(registry, "again/app:3", bundle(made))
    one = PlatformConstraint(os_version="10.0.20348.1")
    await pull_as(store, name)
    with pytest.raises(ImageNotPulled):
        await find_variant(store, name, PROCESS_HANDLER, DEFAULT_HOST, one)
    await pull_as(store, name, HYPERVISOR_HANDLER, constraint=one)
    found = await find_variant(store, name, PROCESS_HANDLER, DEFAULT_HOST, one)
    assert (found.os_version, found.handler) == ("10.0.20348.1", PROCESS_HANDLER.name)
