"""Layers created by Debian's tar, umoci, buildah and skopeo."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.layer_archives import found, merged, unpack
from tests.support.registries import program

CONTENT = {
    "Files": None,
    "Files/app": None,
    "Files/app/app.exe": b"MZ" + bytes(5000),
    "Files/app/current": "-> données",
    "Files/app/données": None,
    "Files/app/données/a b.txt": b"text",
    "Files/app/same.exe": b"MZ" + bytes(5000),
    "Hives": None,
    "Hives/System_Delta": b"regf",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    (root / "Files" / "app" / "données").mkdir(parents=True)
    (root / "Hives").mkdir()
    (root / "Hives" / "System_Delta").write_bytes(b"regf")
    (root / "Files" / "app" / "app.exe").write_bytes(b"MZ" + bytes(5000))
    (root / "Files" / "app" / "données" / "a b.txt").write_bytes(b"text")
    (root / "Files" / "app" / "current").symlink_to("données")
    os.link(root / "Files" / "app" / "app.exe", root / "Files" / "app" / "same.exe")
    return root


def run(*command: str | Path) -> str:
    words = [program(str(command[0]), str(command[0])), *map(str, command[1:])]
    result = subprocess.run(words, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def without_record(target: Path) -> dict[str, Any]:
    return {name: what for name, what in found(target).items() if name != "layer.json"}


@pytest.mark.parametrize("format", ["v7", "oldgnu", "gnu", "ustar", "pax"])
@pytest.mark.parametrize("compression", ["gzip", "zstd", "none"])
@pytest.mark.parametrize("names", [".", "Files Hives"])
def test_debian_tar(format: str, compression: str, names: str, tree: Path, tmp_path: Path) -> None:
    options = {"gzip": ["--gzip"], "zstd": ["--zstd"], "none": []}[compression]
    run("tar", f"--format={format}", *options, "-cf", tmp_path / "x", "-C", tree, *names.split())
    layer = unpack((tmp_path / "x").read_bytes(), tmp_path / "t", compression)
    assert without_record(tmp_path / "t") == CONTENT
    assert layer.has_hives


@pytest.mark.parametrize("format", ["gnu", "pax"])
def test_debian_tar_with_long_names_and_large_times(
    format: str, tree: Path, tmp_path: Path
) -> None:
    long = tree / "Files" / ("d" * 200) / ("e" * 200)
    long.mkdir(parents=True)
    (long / "x").write_bytes(b"x")
    os.utime(long / "x", (1, 10_000_000_000))
    os.link(long / "x", tree / "Files" / "also x")
    (tree / "Files" / "l").symlink_to(f"{'d' * 200}/{'e' * 200}/x")
    run("tar", f"--format={format}", "-cf", tmp_path / "x", "-C", tree, ".")
    unpack((tmp_path / "x").read_bytes(), tmp_path / "t")
    files = tmp_path / "t" / "Files"
    assert (files / "l").read_bytes() == (files / "also x").read_bytes() == b"x"
    assert (files / "l").stat().st_mtime == 10_000_000_000


def layers_of(layout: Path, tag: str) -> tuple[list[bytes], list[str]]:
    """Return the layers and diff ids of an image in an OCI layout."""
    index = json.loads((layout / "index.json").read_bytes())
    manifest = next(
        blob(layout, one)
        for one in index["manifests"]
        if one["annotations"]["org.opencontainers.image.ref.name"] == tag
    )
    document = json.loads(manifest)
    diff_ids = json.loads(blob(layout, document["config"]))["rootfs"]["diff_ids"]
    return [blob(layout, layer) for layer in document["layers"]], diff_ids


def blob(layout: Path, descriptor: dict[str, Any]) -> bytes:
    return (layout / "blobs" / str(descriptor["digest"]).replace(":", "/")).read_bytes()


def unpack_all(layers: list[bytes], compression: str, target: Path) -> tuple[list[Path], list[str]]:
    """Unpack layers and return them with their diff ids."""
    places = [target / str(number) for number in range(len(layers))]
    unpacked = [
        unpack(layer, place, compression) for layer, place in zip(layers, places, strict=True)
    ]
    return places, [layer.diff_id for layer in unpacked]


@pytest.fixture
def umoci_layout(tree: Path, tmp_path: Path) -> Path:
    """Create an image of two layers: the tree, and changes to it."""
    layout, bundle = tmp_path / "umoci", tmp_path / "bundle"
    run("umoci", "init", "--layout", layout)
    run("umoci", "new", "--image", f"{layout}:1")
    run("umoci", "unpack", "--image", f"{layout}:1", bundle)
    run("cp", "-a", f"{tree}/.", bundle / "rootfs")
    run("umoci", "repack", "--refresh-bundle", "--image", f"{layout}:1", bundle)
    app = bundle / "rootfs" / "Files" / "app"
    (app / "current").unlink()
    (app / "données" / "a b.txt").write_bytes(b"changed")
    (app / "new").write_bytes(b"new")
    run("umoci", "repack", "--image", f"{layout}:2", bundle)
    return layout


def test_umoci_and_its_whiteouts(umoci_layout: Path, tmp_path: Path) -> None:
    layers, diff_ids = layers_of(umoci_layout, "2")
    places, found_ids = unpack_all(layers, "gzip", tmp_path / "t")
    assert found_ids == diff_ids
    assert without_record(places[0]) == CONTENT
    assert merged(places, tmp_path)["files"] == {
        "app/app.exe": "MZ" + "\0" * 5000,
        "app/same.exe": "MZ" + "\0" * 5000,
        "app/données/a b.txt": "changed",
        "app/new": "new",
    }


def test_skopeo_zstd(umoci_layout: Path, tmp_path: Path) -> None:
    target = tmp_path / "zstd"
    options = ("--insecure-policy", "copy", "--quiet", "--dest-compress-format", "zstd")
    run("skopeo", *options, "--dest-compress", f"oci:{umoci_layout}:2", f"oci:{target}:2")
    layers, diff_ids = layers_of(target, "2")
    assert all(layer.startswith(b"\x28\xb5\x2f\xfd") for layer in layers)
    _, found_ids = unpack_all(layers, "zstd", tmp_path / "t")
    assert found_ids == diff_ids == layers_of(umoci_layout, "2")[1]


@pytest.mark.parametrize("format", ["oci", "docker"])
def test_buildah(format: str, tree: Path, tmp_path: Path) -> None:
    storage = ("--root", tmp_path / "storage", "--runroot", tmp_path / "run")
    buildah = ("buildah", *storage, "--storage-driver", "vfs")
    container = run(*buildah, "from", "--arch", "amd64", "--os", "windows", "scratch")
    run(*buildah, "copy", "--quiet", container, tree, "/")
    target = tmp_path / "image"
    run(*buildah, "commit", "--quiet", "--format", format, container, f"dir:{target}")
    manifest = json.loads((target / "manifest.json").read_bytes())
    config, *layers = (
        (target / one["digest"].removeprefix("sha256:")).read_bytes()
        for one in (manifest["config"], *manifest["layers"])
    )
    places, found_ids = unpack_all(layers, "none", tmp_path / "t")
    assert found_ids == json.loads(config)["rootfs"]["diff_ids"]
    assert without_record(places[0]) == CONTENT
