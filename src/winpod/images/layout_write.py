"""Images into an OCI layout on disk.

Killed at any moment, the directory is either no layout yet or a valid one with whole images, and
the next write goes on from there. Writers in several processes take turns.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from winpod.images.layout import (
    FULL_NAME,
    INDEX,
    MARKER,
    SHORT_NAME,
    blob_name,
    reference_or_none,
)
from winpod.images.manifests import OCI_INDEX, Bundle, Descriptor, parse_document
from winpod.windows.errors import InvalidInput

_LOCK = ".lock"
_TEMPORARY = ".tmp-"


def write_image(directory: Path, name: str, image: Bundle) -> None:
    """Store an image in a layout directory under a name, in the place of what had that name."""
    try:
        with _locked(directory):
            _begin(directory)
            for descriptor, content in (*image.blobs, *image.manifests):
                _write_blob(directory, descriptor, content)
            entries = _entries_without(directory, name)
            entries.append({**image.root.as_json(), "annotations": _names(name)})
            _replace(directory, directory / INDEX, _index(entries))
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
    reference = None if is_tag else reference_or_none(name)
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
    with (directory / _LOCK).open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left_over in directory.glob(f"{_TEMPORARY}*"):
            left_over.unlink(missing_ok=True)
        yield


def _refuse_other_content(directory: Path) -> None:
    content = {path.name for path in directory.iterdir()}
    ours = {name for name in content if name in (_LOCK, INDEX, "blobs") or _TEMPORARY in name}
    if MARKER not in content and content - ours:
        raise InvalidInput(
            f"{directory} is not empty and not an OCI layout.",
            "Give a new or an empty directory, or an OCI layout.",
        )


def _begin(directory: Path) -> None:
    (directory / "blobs" / "sha256").mkdir(parents=True, exist_ok=True)
    if not (directory / INDEX).exists():
        _replace(directory, directory / INDEX, _index([]))
    if not (directory / MARKER).exists():
        _replace(directory, directory / MARKER, b'{"imageLayoutVersion":"1.0.0"}')


def _write_blob(directory: Path, descriptor: Descriptor, content: bytes | Path) -> None:
    target = directory / blob_name(descriptor.digest)
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
