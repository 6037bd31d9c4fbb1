"""Images with real layers to pull, created here so that a test knows their content."""

import gzip
import io
import random
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import zstandard

from tests.support.image_samples import index_of, stored, windows
from winpod.images.manifests import (
    OCI_CONFIG,
    OCI_LAYER,
    OCI_LAYER_GZIP,
    OCI_MANIFEST,
    Descriptor,
    ImageBundle,
    compute_digest,
    platform_as_json,
)
from winpod.windows.platforms import Platform

V2019, V2022 = windows("10.0.17763.805"), windows("10.0.20348.2113")
NOISE = random.Random(7).randbytes(3 << 20)

BASE_FILES = {
    "Files/Windows/System32/ntdll.dll": b"ntdll",
    "Files/Windows/System32/config/SYSTEM": b"regf",
    "Hives/System_Base": b"regf",
    "UtilityVM/Files/EFI/Microsoft/Boot/BCD": b"bcd",
}


@dataclass(frozen=True)
class Layer:
    descriptor: Descriptor
    content: bytes
    diff_id: str
    made_by: str = "cmd /S /C echo"


@dataclass(frozen=True)
class Made:
    """Manifest and the blobs that it references."""

    manifest: tuple[Descriptor, bytes]
    blobs: tuple[tuple[Descriptor, bytes], ...]
    layers: tuple[Layer, ...] = field(default=())

    @property
    def id(self) -> str:
        return self.blobs[0][0].digest


def archive(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        made: set[str] = set()
        for name, data in files.items():
            parts = name.split("/")
            for parent in ("/".join(parts[:n]) for n in range(1, len(parts))):
                if parent not in made:
                    made.add(parent)
                    directory = tarfile.TarInfo(parent)
                    directory.type, directory.mode = tarfile.DIRTYPE, 0o755
                    tar.addfile(directory)
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def layer(
    files: Mapping[str, bytes],
    compression: str = "gzip",
    media_type: str = "",
    made_by: str = "cmd /S /C echo",
    **more: Any,
) -> Layer:
    plain = archive(files)
    if compression == "gzip":
        data, kind = gzip.compress(plain, 1, mtime=0), OCI_LAYER_GZIP
    elif compression == "zstd":
        data, kind = zstandard.compress(plain), f"{OCI_LAYER}+zstd"
    else:
        data, kind = plain, OCI_LAYER
    descriptor, _ = stored(media_type or kind, data, **more)
    return Layer(descriptor, data, compute_digest(plain), made_by)


def app_layer(text: str = "app", **options: Any) -> Layer:
    return layer({"Files/app/app.txt": text.encode(), "Hives/Software_Delta": b"regf"}, **options)


def large_layer(megabytes: int = 3) -> Layer:
    """Return an incompressible layer."""
    return layer({"Files/app/noise.bin": NOISE[: megabytes << 20]})


def base_layer(version: str, made_by: str = "", **options: Any) -> Layer:
    files = {**BASE_FILES, "Files/License.txt": version.encode()}
    return layer(files, made_by=made_by or f"Apply image {version}", **options)


def make(platform: Platform, *layers: Layer, history: bool = True) -> Made:
    config: dict[str, Any] = {
        **platform_as_json(platform),
        "rootfs": {"type": "layers", "diff_ids": [one.diff_id for one in layers]},
    }
    if history:
        config["history"] = [{"created_by": one.made_by} for one in layers]
        config["history"].insert(1, {"created_by": "ENV A=B", "empty_layer": True})
    stored_config = stored(OCI_CONFIG, config)
    document = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": stored_config[0].as_json(),
        "layers": [one.descriptor.as_json() for one in layers],
    }
    blobs = (stored_config, *((one.descriptor, one.content) for one in layers))
    return Made(stored(OCI_MANIFEST, document, platform=platform), blobs, layers)


def alone(made: Made) -> ImageBundle:
    return ImageBundle(made.blobs, (made.manifest,))


def bundle(made: Sequence[Made]) -> ImageBundle:
    """Return an index of several manifests."""
    manifests = [one.manifest for one in made]
    blobs = {digest.digest: (digest, data) for one in made for digest, data in one.blobs}
    return ImageBundle(tuple(blobs.values()), (*manifests, index_of(d for d, _ in manifests)))


def two_builds(shared: Layer | None = None) -> tuple[Made, Made]:
    """Return an image like those of `winpod image pack`: a base per build and a shared layer."""
    app = shared or app_layer()
    return (
        make(V2019, base_layer("10.0.17763.805"), app),
        make(V2022, base_layer("10.0.20348.2113"), app),
    )
