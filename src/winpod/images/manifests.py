"""Parsing of image indexes, manifests and configs into plain data.

OCI and Docker formats are handled alike. Documents are untrusted: one that does not match its
format raises `CorruptContent` with a message that names the document.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from winpod.concurrency import gather_or_cancel
from winpod.errors import NotFound
from winpod.images.errors import CorruptContent
from winpod.windows.platforms import Image, Manifest, Platform

OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
OCI_LAYER = "application/vnd.oci.image.layer.v1.tar"
OCI_LAYER_GZIP = "application/vnd.oci.image.layer.v1.tar+gzip"
DOCKER_INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_CONFIG = "application/vnd.docker.container.image.v1+json"
DOCKER_LAYER = "application/vnd.docker.image.rootfs.diff.tar"

INDEX_TYPES = frozenset({OCI_INDEX, DOCKER_INDEX})
MANIFEST_TYPES = frozenset({OCI_MANIFEST, DOCKER_MANIFEST})

MANIFEST_LIMIT = 4 << 20
CONFIG_LIMIT = 8 << 20
MAX_DEPTH = 4
MAX_ENTRIES = 2000
MAX_TEXT = 256
"""Limit for the length of platform fields and media types, which stay cached with the image."""

_DIGEST = re.compile(r"sha256:[a-f0-9]{64}|sha384:[a-f0-9]{96}|sha512:[a-f0-9]{128}")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A reference to content: its media type, digest and size."""

    media_type: str
    digest: str
    size: int
    platform: Platform | None = None
    annotations: Mapping[str, str] = field(default_factory=dict)
    urls: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        value: dict[str, Any] = {
            "mediaType": self.media_type,
            "digest": self.digest,
            "size": self.size,
        }
        if self.platform:
            value["platform"] = platform_as_json(self.platform)
        if self.annotations:
            value["annotations"] = dict(self.annotations)
        if self.urls:
            value["urls"] = list(self.urls)
        return value


@dataclass(frozen=True, slots=True)
class Index:
    entries: tuple[Descriptor, ...]


@dataclass(frozen=True, slots=True)
class ImageManifest:
    config: Descriptor
    layers: tuple[Descriptor, ...]

    @property
    def size(self) -> int:
        """Compressed bytes to pull."""
        return self.config.size + sum(layer.size for layer in self.layers)


@dataclass(frozen=True, slots=True)
class Rootfs:
    """The layers of an image config: uncompressed digests, and the command that created each."""

    diff_ids: tuple[str, ...]
    made_by: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ImageBundle:
    """An image with all its content, in upload order: blobs first, then manifests."""

    blobs: tuple[tuple[Descriptor, bytes | Path], ...]
    manifests: tuple[tuple[Descriptor, bytes], ...]

    @property
    def root(self) -> Descriptor:
        """Descriptor of the index or the only manifest, which a tag points to."""
        return self.manifests[-1][0]


Fetch = Callable[[Descriptor, int], Awaitable[bytes]]
"""Fetches the verified content of a descriptor, up to a size limit."""


def platform_as_json(platform: Platform) -> dict[str, Any]:
    value: dict[str, Any] = {"architecture": platform.architecture, "os": platform.os}
    if platform.os_version:
        value["os.version"] = platform.os_version
    if platform.os_features:
        value["os.features"] = list(platform.os_features)
    if platform.variant:
        value["variant"] = platform.variant
    return value


def is_digest(text: str) -> bool:
    """Return whether the text is a digest with a supported algorithm."""
    return _DIGEST.fullmatch(text) is not None


def compute_digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def descriptor_of_digest(digest: str) -> Descriptor:
    """Return a descriptor with only a digest; the size is not verified."""
    return Descriptor("", digest, -1)


def verify_content(data: bytes, descriptor: Descriptor, origin: str) -> None:
    """Raise CorruptContent unless the content has the descriptor's size and digest."""
    if descriptor.size >= 0 and len(data) != descriptor.size:
        raise CorruptContent(
            f"{origin} returned {len(data)} bytes for {descriptor.digest}, expected "
            f"{descriptor.size}.",
            "The stored content is damaged, or the transfer was truncated.",
        )
    algorithm, _, value = descriptor.digest.partition(":")
    actual = hashlib.new(algorithm, data).hexdigest()
    if actual != value:
        raise CorruptContent(
            f"{origin} returned content with digest {algorithm}:{actual} for {descriptor.digest}.",
            "The stored content is damaged or was replaced; it is not used.",
        )


def parse_document(data: bytes, name: str) -> Index | ImageManifest:
    """Parse an index or a manifest, distinguished by media type or else by structure."""
    document = _object(data, name)
    media_type = _text(document.get("mediaType"), "mediaType", name)
    if document.get("schemaVersion") == 1 or "fsLayers" in document:
        raise CorruptContent(
            f"{name} is in Docker's old schema 1 format, which has no platforms.",
            "Push the image again with a current tool.",
        )
    if media_type in INDEX_TYPES or (media_type not in MANIFEST_TYPES and "manifests" in document):
        return Index(tuple(_descriptors(document.get("manifests"), "manifests", name)))
    if media_type in MANIFEST_TYPES or "config" in document:
        return ImageManifest(
            config=_descriptor(document.get("config"), "config", name),
            layers=tuple(_descriptors(document.get("layers"), "layers", name)),
        )
    raise CorruptContent(
        f"{name} is neither an image index nor an image manifest"
        + (f": its media type is {media_type!r}." if media_type else "."),
        "Is this a container image?",
    )


def parse_config(data: bytes, name: str) -> Platform:
    """Return the platform of an image config."""
    platform = _platform(_object(data, name), name)
    if not platform.os or not platform.architecture:
        raise CorruptContent(
            f"{name} has no operating system or architecture.", "Is this a container image?"
        )
    return platform


def parse_rootfs(data: bytes, name: str) -> Rootfs:
    """Return the layers of an image config, skipping history entries without a layer."""
    document = _object(data, name)
    rootfs = document.get("rootfs")
    diff_ids = rootfs.get("diff_ids") if isinstance(rootfs, dict) else None
    if not isinstance(diff_ids, list) or not all(
        isinstance(diff_id, str) and is_digest(diff_id) for diff_id in diff_ids
    ):
        raise CorruptContent(
            f'{name} has no valid "rootfs.diff_ids".', "Is this a container image?"
        )
    history = document.get("history") or []
    steps = (
        [step for step in history if isinstance(step, dict)] if isinstance(history, list) else []
    )
    commands = (step.get("created_by") for step in steps if not step.get("empty_layer"))
    return Rootfs(
        tuple(diff_ids),
        tuple(command if isinstance(command, str) else "" for command in commands),
    )


async def describe_image(
    reference: str, root: Descriptor, fetch: Fetch, *, sizes: bool = True
) -> Image:
    """Return every platform of an image.

    Without `sizes`, manifests whose platform is in the index are not fetched and have size 0.
    """
    document = parse_document(
        await fetch(root, MANIFEST_LIMIT), f'The manifest {root.digest} of "{reference}"'
    )
    reader = _Reader(reference, fetch, sizes)
    if isinstance(document, ImageManifest):
        manifest = Manifest(root.digest, await reader.config_platform(document), document.size)
        return Image(reference, root.digest, (manifest,), is_index=False)
    return Image(reference, root.digest, tuple(await reader.read_index(document, depth=1)))


class _Reader:
    def __init__(self, reference: str, fetch: Fetch, sizes: bool) -> None:
        self._reference = reference
        self._fetch = fetch
        self._sizes = sizes
        self._entries = 0

    async def read_index(self, index: Index, depth: int) -> list[Manifest]:
        self._entries += len(index.entries)
        if depth > MAX_DEPTH or self._entries > MAX_ENTRIES:
            raise CorruptContent(
                f'"{self._reference}" has indexes nested more than {MAX_DEPTH} deep or more than '
                f"{MAX_ENTRIES} manifests.",
                "Name one of its manifests by digest.",
            )
        entries = [entry for entry in index.entries if not _is_attestation(entry)]
        results = await gather_or_cancel([self._read_entry(entry, depth) for entry in entries])
        return [manifest for manifests in results for manifest in manifests]

    async def _read_entry(self, entry: Descriptor, depth: int) -> list[Manifest]:
        platform = entry.platform
        if platform and not self._sizes and entry.media_type in MANIFEST_TYPES:
            return [Manifest(entry.digest, platform, 0)]
        try:
            data = await self._fetch(entry, MANIFEST_LIMIT)
        except NotFound:
            return []  # a mirrored index may lack the content of some platforms
        document = parse_document(data, f'The manifest {entry.digest} of "{self._reference}"')
        if isinstance(document, Index):
            return await self.read_index(document, depth + 1)
        if platform is None:
            try:
                platform = await self.config_platform(document)
            except CorruptContent:
                return []  # not an image, for example a signature
        return [Manifest(entry.digest, platform, document.size)]

    async def config_platform(self, manifest: ImageManifest) -> Platform:
        data = await self._fetch(manifest.config, CONFIG_LIMIT)
        return parse_config(data, f'The config {manifest.config.digest} of "{self._reference}"')


def _is_attestation(entry: Descriptor) -> bool:
    if "vnd.docker.reference.type" in entry.annotations:
        return True
    platform = entry.platform
    return platform is not None and (platform.os, platform.architecture) == ("unknown", "unknown")


def _object(data: bytes, name: str) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CorruptContent(f"{name} is not JSON: {str(error) or 'nested too deeply'}.") from None
    if not isinstance(document, dict):
        raise CorruptContent(f"{name} is JSON, but not an object.")
    return document


def _descriptors(value: object, key: str, name: str) -> list[Descriptor]:
    if not isinstance(value, list):
        raise CorruptContent(f'{name} has no list "{key}".')
    return [_descriptor(item, f"{key}[{i}]", name) for i, item in enumerate(value)]


def _descriptor(value: object, key: str, name: str) -> Descriptor:
    if not isinstance(value, dict):
        raise CorruptContent(f'{name} has no object "{key}".')
    digest, size = value.get("digest"), value.get("size")
    if not isinstance(digest, str) or not is_digest(digest):
        raise CorruptContent(f'{name} has no valid "{key}.digest".')
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise CorruptContent(f'{name} has no valid "{key}.size".')
    annotations = value.get("annotations")
    platform = value.get("platform")
    urls = value.get("urls")
    return Descriptor(
        media_type=_text(value.get("mediaType"), f"{key}.mediaType", name),
        digest=digest,
        size=size,
        platform=_platform(platform, f"{name} at {key}") if isinstance(platform, dict) else None,
        annotations={k: v for k, v in annotations.items() if isinstance(v, str)}
        if isinstance(annotations, dict)
        else {},
        urls=tuple(u for u in urls if isinstance(u, str)) if isinstance(urls, list) else (),
    )


def _platform(value: Mapping[str, Any], name: str) -> Platform:
    features = value.get("os.features") or []
    if not isinstance(features, list) or not all(isinstance(f, str) for f in features):
        raise CorruptContent(f'{name} has an "os.features" that is not a list of names.')
    _text(",".join(features), "os.features", name)
    return Platform.normalised(
        os=_text(value.get("os"), "os", name),
        architecture=_text(value.get("architecture"), "architecture", name),
        variant=_text(value.get("variant"), "variant", name),
        os_version=_text(value.get("os.version"), "os.version", name),
        os_features=features,
    )


def _text(value: object, key: str, name: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise CorruptContent(f'{name} has a "{key}" that is not text.')
    if len(value) > MAX_TEXT:
        raise CorruptContent(
            f'{name} has a "{key}" of {len(value)} characters, which is more than {MAX_TEXT}.',
            "Is this a container image?",
        )
    return value
