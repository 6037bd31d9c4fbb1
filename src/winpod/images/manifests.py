"""The documents an image is made of, read into plain data.

OCI indexes and Docker manifest lists are one thing here, and so are both kinds of manifest and of
config. Nothing is believed: a document that does not have its format's shape is `BadContent`, with
a sentence that names the document.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from winpod.images.errors import BadContent
from winpod.windows.errors import NotFound
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
"""What a platform or a media type may take; it is kept for as long as the image is known."""

_DIGEST = re.compile(r"sha256:[a-f0-9]{64}|sha384:[a-f0-9]{96}|sha512:[a-f0-9]{128}")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A pointer to content: what it is, its digest and its size."""

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
        """What pulling it takes."""
        return self.config.size + sum(layer.size for layer in self.layers)


@dataclass(frozen=True, slots=True)
class Rootfs:
    """What a config says of the layers: their digests when unpacked, and how each was made."""

    diff_ids: tuple[str, ...]
    made_by: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Bundle:
    """An image with all its content, ready to be stored: blobs first, then manifests in order."""

    blobs: tuple[tuple[Descriptor, bytes | Path], ...]
    manifests: tuple[tuple[Descriptor, bytes], ...]

    @property
    def root(self) -> Descriptor:
        """The index, or the only manifest: what a name points to."""
        return self.manifests[-1][0]


Fetch = Callable[[Descriptor, int], Awaitable[bytes]]
"""Gives the verified content of a descriptor, refusing more than so many bytes."""


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
    """Whether it is a digest whose content can be verified."""
    return _DIGEST.fullmatch(text) is not None


def digest_of(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def pointer(digest: str) -> Descriptor:
    """A manifest of which only the digest is known; its size goes unchecked."""
    return Descriptor("", digest, -1)


def verify(data: bytes, descriptor: Descriptor, origin: str) -> None:
    """Refuse content that is not what its descriptor says."""
    if descriptor.size >= 0 and len(data) != descriptor.size:
        raise BadContent(
            f"{origin} gave {len(data)} bytes for {descriptor.digest}, which has "
            f"{descriptor.size}.",
            "The content is damaged where it is stored or was cut short on the way.",
        )
    algorithm, _, value = descriptor.digest.partition(":")
    found = hashlib.new(algorithm, data).hexdigest()
    if found != value:
        raise BadContent(
            f"{origin} gave content with digest {algorithm}:{found} for {descriptor.digest}.",
            "The content is damaged or was replaced where it is stored; it is not used.",
        )


def parse_document(data: bytes, name: str) -> Index | ImageManifest:
    """An index or a manifest, told apart by what it says it is, else by its shape."""
    document = _object(data, name)
    media_type = _text(document.get("mediaType"), "mediaType", name)
    if document.get("schemaVersion") == 1 or "fsLayers" in document:
        raise BadContent(
            f"{name} is in Docker's old schema 1 format, which says nothing of platforms.",
            "Push the image again with a current tool.",
        )
    if media_type in INDEX_TYPES or (media_type not in MANIFEST_TYPES and "manifests" in document):
        return Index(tuple(_descriptors(document.get("manifests"), "manifests", name)))
    if media_type in MANIFEST_TYPES or "config" in document:
        return ImageManifest(
            config=_descriptor(document.get("config"), "config", name),
            layers=tuple(_descriptors(document.get("layers"), "layers", name)),
        )
    raise BadContent(
        f"{name} is neither an image index nor an image manifest"
        + (f": it says it is {media_type!r}." if media_type else "."),
        "Is this a container image?",
    )


def parse_config(data: bytes, name: str) -> Platform:
    """The platform that an image's config states."""
    platform = _platform(_object(data, name), name)
    if not platform.os or not platform.architecture:
        raise BadContent(
            f"{name} names no operating system or architecture.", "Is this a container image?"
        )
    return platform


def parse_rootfs(data: bytes, name: str) -> Rootfs:
    """The layers that an image's config states; history of no layer is left out."""
    document = _object(data, name)
    rootfs = document.get("rootfs")
    diff_ids = rootfs.get("diff_ids") if isinstance(rootfs, dict) else None
    if not isinstance(diff_ids, list) or not all(
        isinstance(one, str) and is_digest(one) for one in diff_ids
    ):
        raise BadContent(f'{name} has no valid "rootfs.diff_ids".', "Is this a container image?")
    history = document.get("history") or []
    steps = [one for one in history if isinstance(one, dict)] if isinstance(history, list) else []
    made_by = (one.get("created_by") for one in steps if not one.get("empty_layer"))
    return Rootfs(tuple(diff_ids), tuple(one if isinstance(one, str) else "" for one in made_by))


async def describe_image(
    reference: str, root: Descriptor, fetch: Fetch, *, sizes: bool = True
) -> Image:
    """Every platform of an image. Without `sizes`, manifests that need not be read are not, and
    their size is 0."""
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
            raise BadContent(
                f'"{self._reference}" has indexes nested more than {MAX_DEPTH} deep or more than '
                f"{MAX_ENTRIES} manifests.",
                "Name one of its manifests by digest.",
            )
        wanted = [entry for entry in index.entries if not _is_attestation(entry)]
        found = await together([self._read_entry(entry, depth) for entry in wanted])
        return [manifest for manifests in found for manifest in manifests]

    async def _read_entry(self, entry: Descriptor, depth: int) -> list[Manifest]:
        platform = entry.platform
        if platform and not self._sizes and entry.media_type in MANIFEST_TYPES:
            return [Manifest(entry.digest, platform, 0)]
        try:
            data = await self._fetch(entry, MANIFEST_LIMIT)
        except NotFound:
            return []  # a copy of an index need not have every platform's content
        document = parse_document(data, f'The manifest {entry.digest} of "{self._reference}"')
        if isinstance(document, Index):
            return await self.read_index(document, depth + 1)
        if platform is None:
            try:
                platform = await self.config_platform(document)
            except BadContent:
                return []  # something that is no image, such as a signature
        return [Manifest(entry.digest, platform, document.size)]

    async def config_platform(self, manifest: ImageManifest) -> Platform:
        data = await self._fetch(manifest.config, CONFIG_LIMIT)
        return parse_config(data, f'The config {manifest.config.digest} of "{self._reference}"')


async def together(work: list[Coroutine[Any, Any, _T]]) -> list[_T]:
    """The results in order; the first failure ends the others."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def _is_attestation(entry: Descriptor) -> bool:
    if "vnd.docker.reference.type" in entry.annotations:
        return True
    platform = entry.platform
    return platform is not None and (platform.os, platform.architecture) == ("unknown", "unknown")


def _object(data: bytes, name: str) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadContent(f"{name} is not JSON: {str(error) or 'nested too deeply'}.") from None
    if not isinstance(document, dict):
        raise BadContent(f"{name} is JSON, but not an object.")
    return document


def _descriptors(value: object, key: str, name: str) -> list[Descriptor]:
    if not isinstance(value, list):
        raise BadContent(f'{name} has no list "{key}".')
    return [_descriptor(one, f"{key}[{i}]", name) for i, one in enumerate(value)]


def _descriptor(value: object, key: str, name: str) -> Descriptor:
    if not isinstance(value, dict):
        raise BadContent(f'{name} has no object "{key}".')
    digest, size = value.get("digest"), value.get("size")
    if not isinstance(digest, str) or not is_digest(digest):
        raise BadContent(f'{name} has no valid "{key}.digest".')
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise BadContent(f'{name} has no valid "{key}.size".')
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
        raise BadContent(f'{name} has an "os.features" that is not a list of names.')
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
        raise BadContent(f'{name} has a "{key}" that is not text.')
    if len(value) > MAX_TEXT:
        raise BadContent(
            f'{name} has a "{key}" of {len(value)} characters, which is more than {MAX_TEXT}.',
            "Is this a container image?",
        )
    return value
