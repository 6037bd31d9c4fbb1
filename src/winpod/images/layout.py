"""OCI layouts on disk, to read: directories and archives.

An archive is a tar of a layout, as `docker save` and `skopeo copy … oci-archive:` make it, or the
older `docker save` form with a `manifest.json`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from winpod.images.errors import BadContent, ImageNotFound
from winpod.images.layout_files import Archive, Directory, Files, Place
from winpod.images.manifests import (
    CONFIG_LIMIT,
    DOCKER_CONFIG,
    DOCKER_LAYER,
    DOCKER_MANIFEST,
    MANIFEST_LIMIT,
    Descriptor,
    Index,
    describe_image,
    digest_of,
    parse_document,
    verify,
)
from winpod.images.references import Reference, parse_reference
from winpod.windows.errors import InvalidInput
from winpod.windows.platforms import Image

FULL_NAME = "io.containerd.image.name"
SHORT_NAME = "org.opencontainers.image.ref.name"

INDEX = "index.json"
MARKER = "oci-layout"


class Layout:
    """Images by name, as a layout's index.json lists them."""

    def __init__(self, path: Path, files: Files, entries: Iterable[Descriptor]) -> None:
        self.path = path
        self._files = files
        self._entries = tuple(entries)
        self._by_reference = dict(_by_reference(self._entries))

    def close(self) -> None:
        self._files.close()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted({_shown_name(entry) for entry in self._entries} - {""}))

    def find(self, reference: Reference) -> Descriptor | None:
        """The image of a whole name; a digest is found under any name."""
        if not reference.digest:
            return self._by_reference.get(str(reference))
        for entry in self._entries:
            if entry.digest == reference.digest:
                return entry
        size = self._files.size(blob_name(reference.digest))
        return None if size is None else Descriptor("", reference.digest, size)

    def named(self, name: str) -> Descriptor:
        """The image of a name as a person wrote it; the only one where no name is given."""
        found = [
            entry
            for entry in self._entries
            if not name or name in (entry.annotations.get(key) for key in (FULL_NAME, SHORT_NAME))
        ]
        if not found and name and (reference := reference_or_none(name)):
            known = self.find(reference)
            found = [known] if known else []
        if len({entry.digest for entry in found}) == 1:
            return found[0]
        if found:
            raise InvalidInput(
                f"{self.path} has several images"
                + (f' of the name "{name}".' if name else ", and no name was given."),
                f"Write one of: {', '.join(self.names)}." if self.names else "",
            )
        raise ImageNotFound(
            f'{self.path} has no image "{name}".' if name else f"{self.path} has no image.",
            f"It has: {', '.join(self.names)}." if self.names else "",
        )

    async def describe(self, reference: str, entry: Descriptor, *, sizes: bool = True) -> Image:
        return await describe_image(reference, entry, self.fetch, sizes=sizes)

    async def fetch(self, descriptor: Descriptor, limit: int) -> bytes:
        data = self._files.read(self._file_of(descriptor.digest), limit)
        if data is None:
            raise self._missing(descriptor)
        verify(data, descriptor, str(self.path))
        return data

    def place(self, blob: Descriptor) -> Place | None:
        """Where the bytes of a blob can be read, None where they must be copied out first."""
        self._check_size(blob)
        return self._files.place(self._file_of(blob.digest))

    def copy(self, blob: Descriptor, target: Path) -> None:
        self._check_size(blob)
        self._files.copy(self._file_of(blob.digest), target)

    def _check_size(self, blob: Descriptor) -> None:
        size = self._files.size(self._file_of(blob.digest))
        if size is None:
            raise self._missing(blob)
        if size != blob.size:
            raise BadContent(
                f"{self.path} has {size} bytes for {blob.digest}, which has {blob.size}.",
                "The layout is damaged; write it again.",
            )

    def _missing(self, blob: Descriptor) -> ImageNotFound:
        return ImageNotFound(
            f"{self.path} has no blob {blob.digest}.",
            "The layout is incomplete; write it again.",
        )

    def _file_of(self, digest: str) -> str:
        return blob_name(digest)


class _DockerArchive(Layout):
    """The older form of `docker save`: configs and layers. Manifests are made for them."""

    def __init__(self, path: Path, files: Files, images: list[Mapping[str, Any]]) -> None:
        self._documents: dict[str, bytes] = {}
        self._names: dict[str, str] = {}
        entries = []
        for image in images:
            manifest = self._read_image(path, files, image)
            for tag in image.get("RepoTags") or [""]:
                names = {FULL_NAME: str(parse_reference(tag)), SHORT_NAME: tag} if tag else {}
                entries.append(replace(manifest, annotations=names))
        super().__init__(path, files, entries)

    def _read_image(self, path: Path, files: Files, image: Mapping[str, Any]) -> Descriptor:
        config = files.read(str(image["Config"]), CONFIG_LIMIT)
        if config is None:
            raise BadContent(f"{path} has no config {image['Config']}.")
        names = [str(name) for name in image["Layers"]]
        diff_ids = json.loads(config).get("rootfs", {}).get("diff_ids", [])
        if len(diff_ids) != len(names):
            raise BadContent(f"{path} has {len(names)} layers for a config of {len(diff_ids)}.")
        layers = [
            Descriptor(DOCKER_LAYER, str(diff_id), files.size(name) or 0)
            for diff_id, name in zip(diff_ids, names, strict=True)
        ]
        self._names |= zip((layer.digest for layer in layers), names, strict=True)
        document = {
            "schemaVersion": 2,
            "mediaType": DOCKER_MANIFEST,
            "config": self._keep(DOCKER_CONFIG, config).as_json(),
            "layers": [layer.as_json() for layer in layers],
        }
        return self._keep(DOCKER_MANIFEST, json.dumps(document).encode())

    def _keep(self, media_type: str, data: bytes) -> Descriptor:
        digest = digest_of(data)
        self._documents[digest] = data
        return Descriptor(media_type, digest, len(data))

    async def fetch(self, descriptor: Descriptor, limit: int) -> bytes:
        known = self._documents.get(descriptor.digest)
        return known if known is not None else await super().fetch(descriptor, limit)

    def _file_of(self, digest: str) -> str:
        return self._names.get(digest, digest)


def open_layout(path: Path) -> Layout:
    """Read a layout directory or an archive."""
    if path.is_dir():
        return _read_layout(path, Directory(path))
    if not path.exists():
        raise InvalidInput(
            f"{path.absolute()} does not exist.",
            "Give an OCI layout directory or an archive of one.",
        )
    files = Archive(path)
    try:
        if files.size(INDEX) is None:
            return _read_docker_archive(path, files)
        return _read_layout(path, files)
    except BaseException:
        files.close()
        raise


def _read_layout(path: Path, files: Files) -> Layout:
    marker = files.read(MARKER, MANIFEST_LIMIT)
    index = files.read(INDEX, MANIFEST_LIMIT)
    if marker is None or index is None:
        raise InvalidInput(
            f"{path} is not an OCI layout: it has no {INDEX if marker else MARKER} file.",
            "`winpod image pack DIR -t oci:LAYOUT:NAME` makes one.",
        )
    document = parse_document(index, f"{path / INDEX}")
    if not isinstance(document, Index):
        raise BadContent(f"{path / INDEX} is a manifest, not an index.")
    return Layout(path, files, document.entries)


def _read_docker_archive(path: Path, files: Files) -> Layout:
    data = files.read("manifest.json", MANIFEST_LIMIT)
    if data is None:
        raise InvalidInput(
            f"{path} is an archive, but not of images: it has no {INDEX} and no manifest.json.",
            "`docker save` and `skopeo copy … oci-archive:FILE` make such archives.",
        )
    try:
        return _DockerArchive(path, files, json.loads(data))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise BadContent(f"manifest.json in {path} does not list images as docker does.") from None


def blob_name(digest: str) -> str:
    return "blobs/" + digest.replace(":", "/")


def _by_reference(entries: Iterable[Descriptor]) -> Iterator[tuple[str, Descriptor]]:
    """A full name counts always; a short one only where it is not a bare tag."""
    for key in (SHORT_NAME, FULL_NAME):
        for entry in entries:
            name = entry.annotations.get(key, "")
            if key == SHORT_NAME and not {"/", ":"} & set(name):
                continue
            if reference := reference_or_none(name):
                yield str(reference), entry


def reference_or_none(name: str) -> Reference | None:
    try:
        return parse_reference(name)
    except InvalidInput:
        return None


def _shown_name(entry: Descriptor) -> str:
    return entry.annotations.get(SHORT_NAME) or entry.annotations.get(FULL_NAME, "")
