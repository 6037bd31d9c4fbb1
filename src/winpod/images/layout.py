"""OCI layouts on disk: directories to read and write, and archives to read.

An archive is a tar of a layout, as `docker save` and `skopeo copy … oci-archive:` make it, or the
older `docker save` form with a `manifest.json`. Writing keeps this promise: killed at any moment,
the directory is either no layout yet or a valid one with whole images, and the next write goes on
from there. Writers in several processes take turns.
"""

from __future__ import annotations

import fcntl
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

from winpod.images.errors import BadContent, ImageNotFound
from winpod.images.manifests import (
    CONFIG_LIMIT,
    DOCKER_CONFIG,
    DOCKER_LAYER,
    DOCKER_MANIFEST,
    MANIFEST_LIMIT,
    OCI_INDEX,
    Bundle,
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

_INDEX = "index.json"
_MARKER = "oci-layout"
_LOCK = ".lock"
_TEMPORARY = ".tmp-"


@dataclass(frozen=True, slots=True)
class Place:
    """A file, and where in it something begins."""

    path: Path
    offset: int = 0


class _Files(Protocol):
    def read(self, name: str, limit: int) -> bytes | None:
        """A file's content, or None where there is no such file."""

    def size(self, name: str) -> int | None: ...

    def place(self, name: str) -> Place | None:
        """Where its bytes lie plainly, or None where they are compressed."""

    def copy(self, name: str, target: Path) -> None: ...

    def close(self) -> None: ...


class Layout:
    """Images by name, as a layout's index.json lists them."""

    def __init__(self, path: Path, files: _Files, entries: Iterable[Descriptor]) -> None:
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
        size = self._files.size(_blob_name(reference.digest))
        return None if size is None else Descriptor("", reference.digest, size)

    def named(self, name: str) -> Descriptor:
        """The image of a name as a person wrote it; the only one where no name is given."""
        found = [
            entry
            for entry in self._entries
            if not name or name in (entry.annotations.get(key) for key in (FULL_NAME, SHORT_NAME))
        ]
        if not found and name and (reference := _reference_or_none(name)):
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
        return _blob_name(digest)


class _DockerArchive(Layout):
    """The older form of `docker save`: configs and layers. Manifests are made for them."""

    def __init__(self, path: Path, files: _Files, images: list[Mapping[str, Any]]) -> None:
        self._documents: dict[str, bytes] = {}
        self._names: dict[str, str] = {}
        entries = []
        for image in images:
            manifest = self._read_image(path, files, image)
            for tag in image.get("RepoTags") or [""]:
                names = {FULL_NAME: str(parse_reference(tag)), SHORT_NAME: tag} if tag else {}
                entries.append(replace(manifest, annotations=names))
        super().__init__(path, files, entries)

    def _read_image(self, path: Path, files: _Files, image: Mapping[str, Any]) -> Descriptor:
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
        return _read_layout(path, _Directory(path))
    if not path.exists():
        raise InvalidInput(
            f"{path} does not exist.", "Give an OCI layout directory or an archive of one."
        )
    files = _Archive(path)
    try:
        if files.size(_INDEX) is None:
            return _read_docker_archive(path, files)
        return _read_layout(path, files)
    except BaseException:
        files.close()
        raise


def _read_layout(path: Path, files: _Files) -> Layout:
    marker = files.read(_MARKER, MANIFEST_LIMIT)
    index = files.read(_INDEX, MANIFEST_LIMIT)
    if marker is None or index is None:
        raise InvalidInput(
            f"{path} is not an OCI layout: it has no {_INDEX if marker else _MARKER} file.",
            "`winpod image pack DIR -t oci:LAYOUT:NAME` makes one.",
        )
    document = parse_document(index, f"{path / _INDEX}")
    if not isinstance(document, Index):
        raise BadContent(f"{path / _INDEX} is a manifest, not an index.")
    return Layout(path, files, document.entries)


def _read_docker_archive(path: Path, files: _Files) -> Layout:
    data = files.read("manifest.json", MANIFEST_LIMIT)
    if data is None:
        raise InvalidInput(
            f"{path} is an archive, but not of images: it has no {_INDEX} and no manifest.json.",
            "`docker save` and `skopeo copy … oci-archive:FILE` make such archives.",
        )
    try:
        return _DockerArchive(path, files, json.loads(data))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise BadContent(f"manifest.json in {path} does not list images as docker does.") from None


class _Directory:
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
        _refuse_larger(len(data), limit, f"{self._path / name}")
        return data

    def size(self, name: str) -> int | None:
        try:
            return (self._path / name).stat().st_size
        except OSError:
            return None

    def place(self, name: str) -> Place:
        return Place(self._path / name)

    def copy(self, name: str, target: Path) -> None:
        shutil.copyfile(self._path / name, target)

    def close(self) -> None:
        pass


_DAMAGED = (tarfile.TarError, OSError, EOFError, zlib.error, lzma.LZMAError)


class _Archive:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        try:
            self._tar = tarfile.open(path)  # noqa: SIM115 - closed by close()
            self._is_plain = type(self._tar.fileobj) in (io.BufferedReader, io.FileIO)
            members = self._tar.getmembers()
        except _DAMAGED as error:
            found = str(error).partition("\n")[0].rstrip(":.")
            raise InvalidInput(
                f"{path} is not a whole tar archive: {found}.",
                "Give an OCI layout or an archive of one.",
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
            except (KeyError, *_DAMAGED) as error:
                raise BadContent(f"{name} in {self._path} cannot be read: {error}.") from None
        _refuse_larger(len(data), limit, f"{name} in {self._path}")
        return data

    def size(self, name: str) -> int | None:
        member = self._member(name)
        return None if member is None else member.size

    def place(self, name: str) -> Place | None:
        member = self._member(name)
        return Place(self._path, member.offset_data) if member and self._is_plain else None

    def copy(self, name: str, target: Path) -> None:
        member = self._member(name)
        with self._lock, target.open("wb") as file:
            try:
                source = self._tar.extractfile(member) if member else None
                if source:
                    shutil.copyfileobj(source, file, 1 << 20)
            except (EOFError, tarfile.TarError, zlib.error, lzma.LZMAError) as error:
                raise BadContent(f"{name} in {self._path} cannot be read: {error}.") from None

    def _member(self, name: str) -> tarfile.TarInfo | None:
        """A file; docker writes a layer once and links to it from other places."""
        member = self._members.get(name)
        if member and member.issym():
            target = posixpath.normpath(posixpath.join(posixpath.dirname(name), member.linkname))
            member = self._members.get(target)
        return member if member and member.isreg() else None

    def close(self) -> None:
        self._tar.close()


def _refuse_larger(size: int, limit: int, name: str) -> None:
    if size > limit:
        raise BadContent(f"{name} is larger than {limit >> 20} MiB, so it is no manifest.")


def _blob_name(digest: str) -> str:
    return "blobs/" + digest.replace(":", "/")


def _by_reference(entries: Iterable[Descriptor]) -> Iterator[tuple[str, Descriptor]]:
    """A full name counts always; a short one only where it is not a bare tag."""
    for key in (SHORT_NAME, FULL_NAME):
        for entry in entries:
            name = entry.annotations.get(key, "")
            if key == SHORT_NAME and not {"/", ":"} & set(name):
                continue
            if reference := _reference_or_none(name):
                yield str(reference), entry


def _reference_or_none(name: str) -> Reference | None:
    try:
        return parse_reference(name)
    except InvalidInput:
        return None


def _shown_name(entry: Descriptor) -> str:
    return entry.annotations.get(SHORT_NAME) or entry.annotations.get(FULL_NAME, "")


def write_image(directory: Path, name: str, image: Bundle) -> None:
    """Store an image in a layout directory under a name, in the place of what had that name."""
    try:
        with _locked(directory):
            _begin(directory)
            for descriptor, content in (*image.blobs, *image.manifests):
                _write_blob(directory, descriptor, content)
            entries = _entries_without(directory, name)
            entries.append({**image.root.as_json(), "annotations": _names(name)})
            _replace(directory, directory / _INDEX, _index(entries))
    except OSError as error:
        raise InvalidInput(
            f"The layout {directory} cannot be written: {error.strerror} ({error.filename}).",
            "Give a directory that can be written.",
        ) from None


def _names(name: str) -> dict[str, str]:
    """One that begins as a version does is a tag, and no name of an image."""
    if not name:
        return {}
    is_tag = not {"/", ":"} & set(name) and name.removeprefix("v")[:1].isdigit()
    reference = None if is_tag else _reference_or_none(name)
    full = {FULL_NAME: str(reference)} if reference else {}
    return {**full, SHORT_NAME: name}


def _index(entries: list[Any]) -> bytes:
    document = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": entries}
    return json.dumps(document, indent=2).encode()


def _entries_without(directory: Path, name: str) -> list[Any]:
    data = (directory / _INDEX).read_bytes()
    parse_document(data, f"{directory / _INDEX}")
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
    with (directory / _LOCK).open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left_over in directory.glob(f"{_TEMPORARY}*"):
            left_over.unlink(missing_ok=True)
        yield


def _refuse_other_content(directory: Path) -> None:
    content = {path.name for path in directory.iterdir()}
    ours = {name for name in content if name in (_LOCK, _INDEX, "blobs") or _TEMPORARY in name}
    if _MARKER not in content and content - ours:
        raise InvalidInput(
            f"{directory} is not empty and not an OCI layout.",
            "Give a new or an empty directory, or an OCI layout.",
        )


def _begin(directory: Path) -> None:
    (directory / "blobs" / "sha256").mkdir(parents=True, exist_ok=True)
    if not (directory / _INDEX).exists():
        _replace(directory, directory / _INDEX, _index([]))
    if not (directory / _MARKER).exists():
        _replace(directory, directory / _MARKER, b'{"imageLayoutVersion":"1.0.0"}')


def _write_blob(directory: Path, descriptor: Descriptor, content: bytes | Path) -> None:
    target = directory / _blob_name(descriptor.digest)
    if not target.exists() or target.stat().st_size != descriptor.size:
        _replace(directory, target, content)


def _replace(directory: Path, target: Path, content: bytes | Path) -> None:
    """Put a whole file in its place, on the disk before anything can point to it."""
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
