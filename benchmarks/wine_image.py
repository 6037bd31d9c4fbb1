"""The Wine base as a Linux image, so that containerd runs the same Wine as winpod."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from winpod.compute.silo import NO_MENUS
from winpod.images.base.build_container import ENVIRONMENT
from winpod.images.base.builder import Base, prepare_prefix
from winpod.images.manifests import OCI_CONFIG, OCI_MANIFEST, compute_digest
from winpod.windows.builds import parse_build

_LAYER = "application/vnd.oci.image.layer.v1.tar"


def pack_wine(base: Base, program: Path, name: str, folder: Path) -> Path:
    """Pack the base with a prefix of Windows Server 2022, and one program in its drive C:."""
    prepare_prefix(base, parse_build("2022"), (), folder / "prefix")
    drive = folder / "prefix/drive_c"
    if drive.exists() or drive.is_symlink():
        drive.rmdir()
    layer = folder / "wine.tar"
    _tar("--create", "--file", layer, "--directory", base.rootfs, ".")
    _tar("--append", "--file", layer, "--directory", folder, "prefix")
    into_c = "--transform=s,^\\.,prefix/drive_c,S"
    _tar("--append", "--file", layer, into_c, "--directory", base.drive_c, ".")
    _tar("--append", "--file", layer, into_c, "--directory", program.parent, f"./{program.name}")
    return _pack(layer, name, ["wine64"], [*_variables(ENVIRONMENT), NO_MENUS], folder)


def pack_program(program: Path, name: str, folder: Path) -> Path:
    """Pack an image with only one Linux program."""
    layer = folder / f"{program.name}.tar"
    _tar("--create", "--file", layer, "--directory", program.parent, program.name)
    return _pack(layer, name, [f"/{program.name}"], [], folder)


def _pack(
    layer: Path, name: str, entrypoint: Sequence[str], variables: Sequence[str], folder: Path
) -> Path:
    """Write an archive for `ctr images import`."""
    layout = folder / f"{layer.stem}-layout"
    blobs = layout / "blobs/sha256"
    blobs.mkdir(parents=True)
    with layer.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    size = layer.stat().st_size
    layer.rename(blobs / digest)

    def stored(kind: str, document: dict[str, object]) -> dict[str, object]:
        data = json.dumps(document).encode()
        (blobs / compute_digest(data).removeprefix("sha256:")).write_bytes(data)
        return {"mediaType": kind, "digest": compute_digest(data), "size": len(data)}

    config = stored(
        OCI_CONFIG,
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Entrypoint": list(entrypoint), "Env": list(variables), "WorkingDir": "/"},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        },
    )
    blob = {"mediaType": _LAYER, "digest": f"sha256:{digest}", "size": size}
    document = {"schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": config, "layers": [blob]}
    manifest = stored(OCI_MANIFEST, document)
    manifest["annotations"] = {"io.containerd.image.name": name}
    (layout / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [manifest]}))
    (layout / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    archive = layout.with_suffix(".archive")
    _tar("--create", "--file", archive, "--directory", layout, ".")
    return archive


def _variables(environment: Mapping[str, str]) -> list[str]:
    return [f"{key}={value}" for key, value in environment.items()]


def _tar(*arguments: str | Path) -> None:
    subprocess.run(["tar", *map(str, arguments)], check=True)
