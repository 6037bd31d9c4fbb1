"""OCI layouts: read directories and archives, and write directories.

An archive is a tar of a layout, as created by `docker save` and `skopeo copy … oci-archive:`, or
the older `docker save` format with a `manifest.json`.

Writes are crash-safe: after a kill at any point, the directory is either not yet a layout or a
valid one with complete images, and the next write continues. A file lock serialises writers.
"""

from __future__ import annotations

import io
import json
import lzma
import os
import posixpath
import shutil
import tarfile
import threading
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, Protocol
from uuid import uuid4

from winpod.errors import InvalidInput
from winpod.files import FileLock
from winpod.images.errors import CorruptContent, ImageNotFound
from winpod.images.manifests import (
    CONFIG_LIMIT,
    DOCKER_CONFIG,
    DOCKER_LAYER,
    DOCKER_MANIFEST,
    MANIFEST_LIMIT,
    OCI_INDEX,
    Descriptor,
    ImageBundle,
    Index,
    compute_digest,
    describe_image,
    parse_document,
    verify_content,
)
from winpod.images.references import Reference, parse_reference
from winpod.windows.platforms import Image


@dataclass(frozen=True, slots=True)
class FileExtent:
    """A file and an offset in it."""

    path: Path
    offset: int = 0


class LayoutFiles(Protocol):
    def read(self, name: str, limit: int) -> bytes | None:
        """Return a file's content, or None if it does not exist."""

    def size(self, name: str) -> int | None: ...

    def locate(self, name: str) -> FileExtent | None:
        """Return where its bytes can be read directly, or None if they are compressed."""

    def copy(self, name: str, target: Path) -> None: ...

    def close(self) -> None: ...


class DirectoryFiles:
    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, name: str, limit: int) -> bytes | None:
        try:
            with (self._path / name).open("rb") as file:
                data = file.read(limit + 1)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise InvalidInput(f"{self._path / name} cannot be read: {error.strerror}.") from None
        _check_limit(len(data), limit, f"{self._path / name}")
        return data

    def size(self, name: str) -> int | None:
        try:
            return (self._path / name).stat().st_size
        except OSError:
            return None

    def locate(self, name: str) -> FileExtent:
        return FileExtent(self._path / name)

    def copy(self, name: str, target: Path) -> None:
        shutil.copyfile(self._path / name, target)

    def close(self) -> None:
        pass


_READ_ERRORS = (tarfile.TarError, OSError, EOFError, zlib.error, lzma.LZMAError)


class ArchiveFiles:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        try:
            self._tar = tarfile.open(path)  # noqa: SIM115 - closed by close()
            self._is_plain = type(self._tar.fileobj) in (io.BufferedReader, io.FileIO)
            members = self._tar.getmembers()
        except _READ_ERRORS as error:
            reason = str(error).partition("\n")[0].rstrip(":.")
            raise InvalidInput(
                f"{path} is not a complete tar archive: {reason}.",
                "Use an OCI layout or an archive of one.",
            ) from None
        self._members = {str(PurePosixPath(member.name)): member for member in members}

    def read(self, name: str, limit: int) -> bytes | None:
        member = self._members.get(name)
        if member is None:
            return None
        with self._lock:
            try:
                file = self._tar.extractfile(member)
                data = b"" if file is None else file.read(limit + 1)
            except (KeyError, *_READ_ERRORS) as error:
                raise CorruptContent(f"{name} in {self._path} cannot be read: {error}.") from None
        _check_limit(len(data), limit, f"{name} in {self._path}")
        return data

    def size(self, name: str) -> int | None:
        member = self._member(name)
        return None if member is None else member.size

    def locate(self, name: str) -> FileExtent | None:
        member = self._member(name)
        return FileExtent(self._path, member.offset_data) if member and self._is_plain else None

    def copy(self, name: str, target: Path) -> None:
        member = self._member(name)
        with self._lock, target.open("wb") as file:
            try:
                source = self._tar.extractfile(member) if member else None
                if source:
                    shutil.copyfileobj(source, file, 1 << 20)
            except (EOFError, tarfile.TarError, zlib.error, lzma.LZMAError) as error:
                raise CorruptContent(f"{name} in {self._path} cannot be read: {error}.") from None

    def _member(self, name: str) -> tarfile.TarInfo | None:
        """Return a file, following links: docker stores a shared layer once and links to it."""
        member = self._members.get(name)
        if member and member.issym():
            target = posixpath.normpath(posixpath.join(posixpath.dirname(name), member.linkname))
            member = self._members.get(target)
        return member if member and member.isreg() else None

    def close(self) -> None:
        self._tar.close()


def _check_limit(size: int, limit: int, name: str) -> None:
    if size > limit:
        raise CorruptContent(f"{name} is larger than {limit >> 20} MiB, the limit for manifests.")


FULL_NAME = "io.containerd.image.name"
SHORT_NAME = "org.opencontainers.image.ref.name"

INDEX = "index.json"
MARKER = "oci-layout"


class Layout:
    """A layout, with its images by name as listed in index.json."""

    def __init__(self, path: Path, files: LayoutFiles, entries: Iterable[Descriptor]) -> None:
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
        """Return the image of a full name; digests match under any name."""
        if not reference.digest:
            return self._by_reference.get(str(reference))
        for entry in self._entries:
            if entry.digest == reference.digest:
                return entry
        size = self._files.size(blob_path(reference.digest))
        return None if size is None else Descriptor("", reference.digest, size)

    def find_by_name(self, name: str) -> Descriptor:
        """Return the image of a name or short name, or the only image if the name is empty."""
        matches = [
            entry
            for entry in self._entries
            if not name or name in (entry.annotations.get(key) for key in (FULL_NAME, SHORT_NAME))
        ]
        if not matches and name and (reference := try_parse_reference(name)):
            entry = self.find(reference)
            matches = [entry] if entry else []
        if len({entry.digest for entry in matches}) == 1:
            return matches[0]
        if matches:
            raise InvalidInput(
                f"{self.path} has several images"
                + (f' with the name "{name}".' if name else ", and no name was given."),
                f"Use one of: {', '.join(self.names)}." if self.names else "",
            )
        raise ImageNotFound(
            f'{self.path} has no image "{name}".' if name else f"{self.path} has no image.",
            f"It has: {', '.join(self.names)}." if self.names else "",
        )

    async def describe(self, reference: str, entry: Descriptor, *, sizes: bool = True) -> Image:
        return await describe_image(reference, entry, self.fetch, sizes=sizes)

    async def fetch(self, descriptor: Descriptor, limit: int) -> bytes:
        data = self._files.read(self._file_name(descriptor.digest), limit)
        if data is None:
            raise self._missing(descriptor)
        verify_content(data, descriptor, str(self.path))
        return data

    def locate_blob(self, blob: Descriptor) -> FileExtent | None:
        """Return where a blob can be read directly, or None if it must be copied first."""
        self._check_size(blob)
        return self._files.locate(self._file_name(blob.digest))

    def copy(self, blob: Descriptor, target: Path) -> None:
        self._check_size(blob)
        self._files.copy(self._file_name(blob.digest), target)

    def _check_size(self, blob: Descriptor) -> None:
        size = self._files.size(self._file_name(blob.digest))
        if size is None:
            raise self._missing(blob)
        if size != blob.size:
            raise CorruptContent(
                f"{self.path} has {size} bytes for {blob.digest}, expected {blob.size}.",
                "The layout is damaged; write it again.",
            )

    def _missing(self, blob: Descriptor) -> ImageNotFound:
        return ImageNotFound(
            f"{self.path} has no blob {blob.digest}.",
            "The layout is incomplete; write it again.",
        )

    def _file_name(self, digest: str) -> str:
        return blob_path(digest)


class _DockerArchive(Layout):
    """An archive in the older `docker save` format, for which manifests are synthesised."""

    def __init__(self, path: Path, files: LayoutFiles, images: list[Mapping[str, Any]]) -> None:
        self._documents: dict[str, bytes] = {}
        self._names: dict[str, str] = {}
        entries = []
        for image in images:
            manifest = self._read_image(path, files, image)
            for tag in image.get("RepoTags") or [""]:
                names = {FULL_NAME: str(parse_reference(tag)), SHORT_NAME: tag} if tag else {}
                entries.append(replace(manifest, annotations=names))
        super().__init__(path, files, entries)

    def _read_image(self, path: Path, files: LayoutFiles, image: Mapping[str, Any]) -> Descriptor:
        config = files.read(str(image["Config"]), CONFIG_LIMIT)
        if config is None:
            raise CorruptContent(f"{path} has no config {image['Config']}.")
        names = [str(name) for name in image["Layers"]]
        diff_ids = json.loads(config).get("rootfs", {}).get("diff_ids", [])
        if len(diff_ids) != len(names):
            raise CorruptContent(f"{path} has {len(names)} layers for a config of {len(diff_ids)}.")
        layers = [
            Descriptor(DOCKER_LAYER, str(diff_id), files.size(name) or 0)
            for diff_id, name in zip(diff_ids, names, strict=True)
        ]
        self._names |= zip((layer.digest for layer in layers), names, strict=True)
        document = {
            "schemaVersion": 2,
            "mediaType": DOCKER_MANIFEST,
            "config": self._add_document(DOCKER_CONFIG, config).as_json(),
            "layers": [layer.as_json() for layer in layers],
        }
        return self._add_document(DOCKER_MANIFEST, json.dumps(document).encode())

    def _add_document(self, media_type: str, data: bytes) -> Descriptor:
        digest = compute_digest(data)
        self._documents[digest] = data
        return Descriptor(media_type, digest, len(data))

    async def fetch(self, descriptor: Descriptor, limit: int) -> bytes:
        document = self._documents.get(descriptor.digest)
        return document if document is not None else await super().fetch(descriptor, limit)

    def _file_name(self, digest: str) -> str:
        return self._names.get(digest, digest)


def open_layout(path: Path) -> Layout:
    """Read a layout directory or an archive."""
    if path.is_dir():
        return _read_layout(path, DirectoryFiles(path))
    if not path.exists():
        raise InvalidInput(
            f"{path.absolute()} does not exist.",
            "Use an OCI layout directory or an archive of one.",
        )
    files = ArchiveFiles(path)
    try:
        if files.size(INDEX) is None:
            return _read_docker_archive(path, files)
        return _read_layout(path, files)
    except BaseException:
        files.close()
        raise


def _read_layout(path: Path, files: LayoutFiles) -> Layout:
    marker = files.read(MARKER, MANIFEST_LIMIT)
    index = files.read(INDEX, MANIFEST_LIMIT)
    if marker is None or index is None:
        raise InvalidInput(
            f"{path} is not an OCI layout: it has no {INDEX if marker else MARKER} file.",
            "Create one with `winpod image pack DIR -t oci:LAYOUT:NAME`.",
        )
    document = parse_document(index, f"{path / INDEX}")
    if not isinstance(document, Index):
        raise CorruptContent(f"{path / INDEX} is a manifest, not an index.")
    return Layout(path, files, document.entries)


def _read_docker_archive(path: Path, files: LayoutFiles) -> Layout:
    data = files.read("manifest.json", MANIFEST_LIMIT)
    if data is None:
        raise InvalidInput(
            f"{path} is not an image archive: it has neither {INDEX} nor manifest.json.",
            "Create one with `docker save` or `skopeo copy … oci-archive:FILE`.",
        )
    try:
        return _DockerArchive(path, files, json.loads(data))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise CorruptContent(f"manifest.json in {path} does not have docker's format.") from None


def blob_path(digest: str) -> str:
    return "blobs/" + digest.replace(":", "/")


def _by_reference(entries: Iterable[Descriptor]) -> Iterator[tuple[str, Descriptor]]:
    """Yield entries by reference: full names, and short names that are not bare tags."""
    for key in (SHORT_NAME, FULL_NAME):
        for entry in entries:
            name = entry.annotations.get(key, "")
            if key == SHORT_NAME and not {"/", ":"} & set(name):
                continue
            if reference := try_parse_reference(name):
                yield str(reference), entry


def try_parse_reference(name: str) -> Reference | None:
    try:
        return parse_reference(name)
    except InvalidInput:
        return None


def _shown_name(entry: Descriptor) -> str:
    return entry.annotations.get(SHORT_NAME) or entry.annotations.get(FULL_NAME, "")


_LOCK = ".lock"
_TEMPORARY = ".tmp-"


def write_image(directory: Path, name: str, image: ImageBundle) -> None:
    """Write an image to a layout directory, replacing any image of that name."""
    try:
        with _locked(directory):
            _initialise(directory)
            for descriptor, content in (*image.blobs, *image.manifests):
                _write_blob(directory, descriptor, content)
            entries = _entries_without(directory, name)
            entries.append({**image.root.as_json(), "annotations": _names(name)})
            _replace(directory, directory / INDEX, _index(entries))
    except OSError as error:
        raise InvalidInput(
            f"The layout {directory} cannot be written: {error.strerror} ({error.filename}).",
            "Use a writable directory.",
        ) from None


def _names(name: str) -> dict[str, str]:
    """Return the name annotations; a name that starts like a version is a bare tag."""
    if not name:
        return {}
    is_tag = not {"/", ":"} & set(name) and name.removeprefix("v")[:1].isdigit()
    reference = None if is_tag else try_parse_reference(name)
    full = {FULL_NAME: str(reference)} if reference else {}
    return {**full, SHORT_NAME: name}


def _index(entries: list[Any]) -> bytes:
    document = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": entries}
    return json.dumps(document, indent=2).encode()


def _entries_without(directory: Path, name: str) -> list[Any]:
    data = (directory / INDEX).read_bytes()
    parse_document(data, f"{directory / INDEX}")
    names = set(_names(name).items())
    return [
        entry
        for entry in json.loads(data)["manifests"]
        if (names or entry.get("annotations")) and not names & _name_items(entry)
    ]


def _name_items(entry: Mapping[str, Any]) -> set[tuple[str, str]]:
    annotations = entry.get("annotations") or {}
    return {(key, annotations.get(key, "")) for key in (FULL_NAME, SHORT_NAME)}


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    directory.mkdir(parents=True, exist_ok=True)
    _refuse_other_content(directory)
    with FileLock.acquire(directory / _LOCK, mode=0o666):  # may be shared by a group
        for leftover in directory.glob(f"{_TEMPORARY}*"):
            leftover.unlink(missing_ok=True)
        yield


def _refuse_other_content(directory: Path) -> None:
    content = {path.name for path in directory.iterdir()}
    own = {name for name in content if name in (_LOCK, INDEX, "blobs") or _TEMPORARY in name}
    if MARKER not in content and content - own:
        raise InvalidInput(
            f"{directory} is not empty and not an OCI layout.",
            "Use a new or empty directory, or an OCI layout.",
        )


def _initialise(directory: Path) -> None:
    (directory / "blobs" / "sha256").mkdir(parents=True, exist_ok=True)
    if not (directory / INDEX).exists():
        _replace(directory, directory / INDEX, _index([]))
    if not (directory / MARKER).exists():
        _replace(directory, directory / MARKER, b'{"imageLayoutVersion":"1.0.0"}')


def _write_blob(directory: Path, descriptor: Descriptor, content: bytes | Path) -> None:
    target = directory / blob_path(descriptor.digest)
    if not target.exists() or target.stat().st_size != descriptor.size:
        _replace(directory, target, content)


def _replace(directory: Path, target: Path, content: bytes | Path) -> None:
    """Write a file atomically and sync it before anything refers to it."""
    temporary = directory / f"{_TEMPORARY}{uuid4().hex}"
    with temporary.open("xb") as file:
        if isinstance(content, bytes):
            file.write(content)
        else:
            with content.open("rb") as source:
                shutil.copyfileobj(source, file, 1 << 20)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(target)
    parent = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(parent)
    finally:
        os.close(parent)
