"""Small images to store, push and read back."""

import json
from collections.abc import Iterable
from typing import Any

from winpod.images.manifests import (
    OCI_CONFIG,
    OCI_INDEX,
    OCI_LAYER,
    OCI_MANIFEST,
    Descriptor,
    ImageBundle,
    compute_digest,
    platform_as_json,
)
from winpod.windows.platforms import Platform

LINUX = Platform("linux", "amd64")


def windows(version: str, architecture: str = "amd64") -> Platform:
    return Platform("windows", architecture, os_version=version)


def stored(media_type: str, content: object, **more: Any) -> tuple[Descriptor, bytes]:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    return Descriptor(media_type, compute_digest(data), len(data), **more), data


def manifest(
    platform: Platform, layer: bytes = b"layer"
) -> tuple[tuple[Descriptor, bytes], list[tuple[Descriptor, bytes]]]:
    """Return one manifest with the platform in its descriptor, and its blobs."""
    config = stored(OCI_CONFIG, {**platform_as_json(platform), "rootfs": {"type": "layers"}})
    content = stored(OCI_LAYER, layer)
    document = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": config[0].as_json(),
        "layers": [content[0].as_json()],
    }
    return stored(OCI_MANIFEST, document, platform=platform), [config, content]


def index_of(entries: Iterable[Descriptor]) -> tuple[Descriptor, bytes]:
    document = {
        "schemaVersion": 2,
        "mediaType": OCI_INDEX,
        "manifests": [entry.as_json() for entry in entries],
    }
    return stored(OCI_INDEX, document)


def single(platform: Platform, layer: bytes = b"layer") -> ImageBundle:
    one, blobs = manifest(platform, layer)
    return ImageBundle(tuple(blobs), (one,))


def index(*platforms: Platform) -> ImageBundle:
    made = [manifest(platform) for platform in platforms]
    manifests = [one for one, _ in made]
    blobs = [blob for _, blobs in made for blob in blobs]
    return ImageBundle(tuple(blobs), (*manifests, index_of(d for d, _ in manifests)))
