"""Where an image is pulled from: a registry, an OCI layout, or an archive of one.

All give the same things: what the name means now, verified documents, a look at the beginning of a
layer, and layers: in place where their bytes are at hand, or into a file.
"""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from winpod.images.credentials import CredentialSource
from winpod.images.download import Arrived, Download, finish, read_head
from winpod.images.errors import BadContent
from winpod.images.layout import FULL_NAME, SHORT_NAME, Layout, open_layout
from winpod.images.layout_files import Place
from winpod.images.manifests import Descriptor
from winpod.images.references import Reference, parse_reference
from winpod.images.registry import Registry, Repository
from winpod.images.source import parse_layout_name
from winpod.windows.errors import InvalidInput


class Source(ABC):
    """One image, at the place that it is pulled from. `name` is what people are told of it as."""

    reference: Reference
    name: str

    @abstractmethod
    async def resolve(self) -> Descriptor: ...

    @abstractmethod
    async def fetch(self, descriptor: Descriptor, limit: int) -> bytes: ...

    @abstractmethod
    async def head(self, blob: Descriptor, count: int) -> bytes: ...

    def place(self, blob: Descriptor) -> Place | None:
        """Where a blob can be read as it is."""
        del blob
        return None

    @abstractmethod
    async def obtain(self, blob: Descriptor, path: Path, arrived: Arrived) -> None:
        """Bring a blob into a file that may have the beginning of it."""

    def distrust(self, blob: Descriptor) -> bool:
        """A blob was not what its digest names: whether to ask again, and not whoever lied."""
        del blob
        return False


@asynccontextmanager
async def open_source(
    text: str, credentials: Sequence[CredentialSource], inactivity_timeout: float
) -> AsyncIterator[Source]:
    """The source of a name as a person wrote it."""
    if location := parse_layout_name(text):
        layout = await asyncio.to_thread(open_layout, location[0])
        try:
            yield _LayoutSource(layout, location[1], text)
        finally:
            layout.close()
        return
    reference = parse_reference(text)
    async with Registry(answer_seconds=min(30.0, inactivity_timeout)) as registry:
        repository = registry.repository(reference, credentials)
        yield _RegistrySource(reference, repository, inactivity_timeout)


class _RegistrySource(Source):
    def __init__(
        self, reference: Reference, repository: Repository, inactivity_timeout: float
    ) -> None:
        self.reference = reference
        self.name = reference.familiar
        self._repository = repository
        self._timeout = inactivity_timeout
        self._last: dict[str, Download] = {}
        self._liars: dict[str, set[str]] = {}

    async def resolve(self) -> Descriptor:
        return await self._repository.resolve(self.reference)

    async def fetch(self, descriptor: Descriptor, limit: int) -> bytes:
        return await self._repository.fetch(descriptor, limit)

    async def head(self, blob: Descriptor, count: int) -> bytes:
        return await read_head(self._repository, blob, count)

    async def obtain(self, blob: Descriptor, path: Path, arrived: Arrived) -> None:
        download = Download(
            self._repository,
            blob,
            path,
            inactivity_timeout=self._timeout,
            arrived=arrived,
            liars=self._liars.get(blob.digest, ()),
        )
        self._last[blob.digest] = download
        await download.run()

    def distrust(self, blob: Descriptor) -> bool:
        last = self._last[blob.digest]
        if not last.resumed:
            self._liars.setdefault(blob.digest, set()).update(last.sources)
        return True


class _LayoutSource(Source):
    def __init__(self, layout: Layout, name: str, text: str) -> None:
        self._layout = layout
        self._root = layout.named(name)
        self.reference = _name_of(self._root, layout.path)
        self.name = text

    async def resolve(self) -> Descriptor:
        return self._root

    async def fetch(self, descriptor: Descriptor, limit: int) -> bytes:
        return await self._layout.fetch(descriptor, limit)

    async def head(self, blob: Descriptor, count: int) -> bytes:
        place = self._layout.place(blob)
        if place is None:
            return (await self._layout.fetch(blob, blob.size))[:count]
        return await asyncio.to_thread(_read_at, place, count)

    def place(self, blob: Descriptor) -> Place | None:
        return self._layout.place(blob)

    async def obtain(self, blob: Descriptor, path: Path, arrived: Arrived) -> None:
        await finish(asyncio.to_thread(self._layout.copy, blob, path))
        arrived(blob.size)


def find_in_layout(text: str) -> Reference | None:
    """What `oci:DIR:NAME` is now, by the name and the digest under which it is stored."""
    location = parse_layout_name(text)
    if location is None:
        return None
    layout = open_layout(location[0])
    try:
        entry = layout.named(location[1])
    finally:
        layout.close()
    return replace(_name_of(entry, layout.path), digest=entry.digest)


def _read_at(place: Place, count: int) -> bytes:
    with place.path.open("rb") as file:
        file.seek(place.offset)
        return file.read(count)


def _name_of(entry: Descriptor, path: Path) -> Reference:
    """The name that a layout gives an image; a bare tag is one of the layout's own name."""
    full, short = (entry.annotations.get(key, "") for key in (FULL_NAME, SHORT_NAME))
    for name in (full, short if {"/", ":"} & set(short) else ""):
        try:
            return parse_reference(name)
        except InvalidInput:
            continue
    stem = re.sub(r"[^a-z0-9]+", "-", path.resolve().name.lower()).strip("-") or "layout"
    try:
        return parse_reference(f"localhost/{stem}:{short}" if short else f"localhost/{stem}")
    except InvalidInput:
        raise BadContent(
            f'{path} calls an image "{short}", which cannot be a tag.', "Give it another name."
        ) from None
