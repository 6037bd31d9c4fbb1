"""Pulls of images of various tools, with and without base layers."""

import subprocess
from pathlib import Path

import pytest

from tests.support.image_samples import stored
from tests.support.layer_server import serving
from tests.support.pulls import (
    BUILDS,
    GUEST_2019,
    PLAIN_BASE,
    UPDATE,
    json_of,
    pull_as,
    push,
    store,
)
from tests.support.registries import program
from tests.support.store_invariants import check, leftovers
from tests.support.windows_images import (
    BASE_FILES,
    V2019,
    V2022,
    Layer,
    alone,
    app_layer,
    bundle,
    large_layer,
    layer,
    make,
    two_builds,
)
from winpod.config import BaseLayerPolicy, ImageSettings
from winpod.images.errors import CorruptContent, LimitExceeded
from winpod.images.layers.base_layers import count_base_layers, is_base_layer
from winpod.images.layout import write_image
from winpod.images.manifests import OCI_MANIFEST, Descriptor, ImageBundle
from winpod.images.pull.singleflight import LayerProgress, LayerState
from winpod.images.store.store import Store

__all__ = ["store"]


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


async def test_base_layers_are_pulled_if_configured(store: Store) -> None:
    made = make(V2022, PLAIN_BASE, UPDATE, app_layer())
    async with serving(alone(made)) as (_, address):
        image = await pull_as(store, f"{address}/app:1")
        assert len(store.layers_of(image)) == 1
        settings = ImageSettings(base_layers=BaseLayerPolicy.PULL, sync=True)
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
    assert is_base_layer(PLAIN_BASE.content, "none")


async def test_images_that_cannot_be_unpacked_are_rejected(registry: str, store: Store) -> None:
    good = app_layer()
    wrong_diff = Layer(good.descriptor, good.content, "sha256:" + "0" * 64)
    chart = layer({"a": b""}, media_type="application/vnd.cncf.helm.chart.content.v1.tar+gzip")
    not_tar_descriptor, not_tar = stored(
        "application/vnd.oci.image.layer.v1.tar", b"not a tar" * 99
    )
    refused = {
        "unpacks to": make(V2022, wrong_diff),
        "is not a supported layer": make(V2022, chart),
        "archive": make(V2022, Layer(not_tar_descriptor, not_tar, good.diff_id)),
    }
    for number, (says, made) in enumerate(refused.items()):
        name = await push(registry, f"refused/app:{number}", alone(made))
        with pytest.raises((CorruptContent, LimitExceeded), match=says):
            await pull_as(store, name)
    fewer = make(V2022, good)
    config, data = stored(
        fewer.blobs[0][0].media_type, {**json_of(fewer.blobs[0][1]), "rootfs": {}}
    )
    manifest = {**json_of(fewer.manifest[1]), "config": config.as_json()}
    image = ImageBundle(((config, data), *fewer.blobs[1:]), (stored(OCI_MANIFEST, manifest),))
    name = await push(registry, "refused/app:rootfs", image)
    with pytest.raises(CorruptContent, match="diff_ids"):
        await pull_as(store, name)
    assert leftovers(store.root) == set()
    check(store.root)


async def test_progress_is_reported_per_layer(registry: str, store: Store) -> None:
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
    assert LayerState.PRESENT in {p.state for p in seen}


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


async def test_layout_with_a_damaged_layer_is_rejected(store: Store, tmp_path: Path) -> None:
    made = make(V2022, large_layer(1))
    write_image(tmp_path / "layout", "example/app:1", alone(made))
    blob = tmp_path / "layout/blobs" / made.layers[0].descriptor.digest.replace(":", "/")
    whole = blob.read_bytes()
    for damage in (whole[:-1], whole[:-1] + b"x", b""):
        blob.write_bytes(damage)
        with pytest.raises(CorruptContent):
            await pull_as(store, f"oci:{tmp_path}/layout")
    assert leftovers(store.root) == set()


def run(*command: str | Path) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("kind", [("oci", "gzip"), ("oci", "zstd"), ("v2s2", "gzip")])
async def test_images_copied_by_skopeo_are_pulled(
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
    assert wanted in json_of(store.content(image.manifest))["layers"][-1]["mediaType"]
    check(store.root)


@pytest.mark.parametrize("form", ["oci", "docker"])
async def test_images_built_by_buildah_are_pulled(
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


async def test_images_built_by_umoci_are_pulled(store: Store, tmp_path: Path) -> None:
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
