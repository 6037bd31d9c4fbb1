"""Records of the image store, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

VariantKey = tuple[str, str, str]
"""Primary key of an image: host build, handler and id."""


@dataclass(frozen=True, slots=True)
class StoredLayer:
    """A layer of an image. Layers that are not kept are in the manifest but were not pulled."""

    digest: str
    diff_id: str
    base: bool
    kept: bool


@dataclass(frozen=True, slots=True)
class StoredImage:
    """An image for one handler and host build. Its id is the digest of its config."""

    id: str
    handler: str
    host: str
    manifest: str
    tags: tuple[str, ...]
    digests: tuple[str, ...]
    architecture: str
    os_version: str
    size: int
    pinned: bool
    pulled_at: float
    layers: tuple[StoredLayer, ...]


@dataclass(frozen=True, slots=True)
class ImageVariant:
    """The manifest that names resolve to for a handler and host build."""

    names: frozenset[str]
    root: str
    host: str
    handler: str
    manifest: str


@dataclass(frozen=True, slots=True)
class NewImage:
    """A pulled image, ready to be committed."""

    variant: ImageVariant
    id: str
    architecture: str
    os_version: str
    layers: tuple[StoredLayer, ...]
    documents: frozenset[str]


@dataclass(frozen=True, slots=True)
class FilesystemUsage:
    mountpoint: Path
    bytes: int
    inodes: int
    timestamp: float


@dataclass(frozen=True, slots=True)
class Lease:
    """Protects content from garbage collection; taken before the content is looked up."""

    id: str
    directory: Path
