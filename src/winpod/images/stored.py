"""Images as the store has them: plain data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

Key = tuple[str, str, str]
"""Host build, handler and id: what an image is kept under."""


@dataclass(frozen=True, slots=True)
class StoredLayer:
    """A layer of an image. What is not kept stands in the manifest and was not pulled."""

    digest: str
    diff_id: str
    base: bool
    kept: bool


@dataclass(frozen=True, slots=True)
class StoredImage:
    """An image as one handler of one host build has it. Its id is the digest of its config."""

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
class Variant:
    """Which manifest a name is to a handler of a host build."""

    names: frozenset[str]
    root: str
    host: str
    handler: str
    manifest: str


@dataclass(frozen=True, slots=True)
class NewImage:
    """What a pull found out, ready to be written down."""

    variant: Variant
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
    """A promise that content named in it stays, made before the content is looked for."""

    id: str
    directory: Path
