"""Image sources of a pull: a registry, an OCI layout, or an archive of one.

Downloads from a registry are resumable: a broken connection continues at the same offset, with the
same host as long as it makes progress, then with the next. Downloads are not verified here: the
reader of the file verifies the digest and reports corrupt content, whose hosts are then excluded.
"""

from __future__ import annotations

import asyncio
import os
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import aiohttp

from winpod.concurrency import run_to_completion
from winpod.errors import InvalidInput
from winpod.images.errors import (
    CorruptContent,
    ImageNotFound,
    PullStalled,
    RegistryUnavailable,
    store_error,
)
from winpod.images.layout import FULL_NAME, SHORT_NAME, FileExtent, Layout, open_layout
from winpod.images.manifests import Descriptor
from winpod.images.references import Reference, parse_reference
from winpod.images.registry.auth import CredentialSource
from winpod.images.registry.client import RegistryClient, Repository, TransientError
from winpod.images.registry.hosts import Capability, RegistryHost
from winpod.images.resolver import parse_layout_name

_MIN_PROGRESS = 16 << 10
_RETRY_SECONDS = 0.1
_ACCEPTED_STATUSES = frozenset({200, 206, 416})
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")

_T = TypeVar("_T")
BytesCallback = Callable[[int], None]
"""Called with the number of bytes of the blob that are in the file."""


async def read_head(repository: Repository, blob: Descriptor, count: int) -> bytes:
    """Return the first bytes of a blob, unverified."""
    headers = {"Range": f"bytes=0-{count - 1}"}

    async def attempt(host: RegistryHost) -> bytes:
        head = bytearray()
        request = repository.request(
            host, "GET", f"blobs/{blob.digest}", headers=headers, accepted=_ACCEPTED_STATUSES
        )
        async with request as response:
            async for data in response.content.iter_any():
                head += data
                if len(head) >= count:
                    break
        return bytes(head[:count])

    return await repository.try_hosts(Capability.PULL, attempt)


class Download:
    """Download of one blob into a file.

    `sources` are the hosts that sent any of it; `resumed` is whether the file already had content.
    """

    def __init__(
        self,
        repository: Repository,
        blob: Descriptor,
        path: Path,
        *,
        inactivity_timeout: float,
        progress: BytesCallback,
        corrupt_hosts: Collection[str] = (),
    ) -> None:
        self.sources: set[str] = set()
        self.resumed = False
        self._repository = repository
        self._blob = blob
        self._path = path
        self._timeout = inactivity_timeout
        self._progress = progress
        self._corrupt_hosts = corrupt_hosts
        self._done = 0
        self._checkpoint = 0

    async def run(self) -> None:
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._done = os.lseek(self._file, 0, os.SEEK_END)
            if self._done > self._blob.size:
                os.truncate(self._file, 0)
                self._done = os.lseek(self._file, 0, os.SEEK_SET)
            self.resumed = self._done > 0
            self._checkpoint = self._done
            self._progress(self._done)
            async with asyncio.timeout(self._timeout) as self._limit:
                await self._repository.try_hosts(Capability.PULL, self._from_host)
        except TimeoutError:
            raise PullStalled(
                f"{self._blob.digest} stalled at {self._done} of {self._blob.size} bytes: less "
                f"than {_MIN_PROGRESS >> 10} KiB arrived within {self._timeout:g} s.",
                "Pull again to resume, or check the network.",
            ) from None
        finally:
            os.close(self._file)

    async def _from_host(self, host: RegistryHost) -> None:
        if host.origin in self._corrupt_hosts:
            raise CorruptContent(f"{host.name} returned wrong content for {self._blob.digest}.")
        while self._done < self._blob.size:
            before = self._done
            try:
                await self._from_urls(host)
            except TransientError as error:
                if self._done == before:
                    raise
                await asyncio.sleep(max(error.wait, _RETRY_SECONDS))

    async def _from_urls(self, host: RegistryHost) -> None:
        """Read from the registry, or from the URLs in the manifest if it does not have the blob."""
        *rest, last = (f"blobs/{self._blob.digest}", *self._blob.urls)
        for path in rest:
            try:
                return await self._read(host, path)
            except ImageNotFound:
                continue
        return await self._read(host, last)

    async def _read(self, host: RegistryHost, path: str) -> None:
        start = self._done
        headers = {"Range": f"bytes={start}-"} if start else {}
        request = self._repository.request(
            host, "GET", path, headers=headers, accepted=_ACCEPTED_STATUSES
        )
        async with request as response:
            skip = self._bytes_to_skip(response, host)
            async for data in response.content.iter_any():
                await self._write(data[skip:], host)
                skip -= min(skip, len(data))
        if self._done < self._blob.size:
            raise TransientError(
                RegistryUnavailable(
                    f"{host.name} ended {self._blob.digest} after {self._done} of "
                    f"{self._blob.size} bytes.",
                    "Try again, or check the network and proxies to the registry.",
                )
            )

    def _bytes_to_skip(self, response: aiohttp.ClientResponse, host: RegistryHost) -> int:
        """Return how many bytes of the response are already in the file."""
        size: int | None = response.content_length
        skip = self._done
        if response.status == 206:
            match = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
            if match is None or int(match[1]) > self._done:
                raise CorruptContent(f"{host.name} returned another range than requested.")
            skip -= int(match[1])
            size = int(match[2]) if match[2].isdecimal() else None
        if response.status == 416 or size not in (None, self._blob.size):
            actual = "fewer bytes" if response.status == 416 else f"{size} bytes"
            raise CorruptContent(
                f"{host.name} has {actual} for {self._blob.digest}, expected {self._blob.size}.",
                "The content stored there is damaged.",
            )
        return skip

    async def _write(self, data: bytes, host: RegistryHost) -> None:
        if not data:
            return
        if self._done + len(data) > self._blob.size:
            raise CorruptContent(
                f"{host.name} sent more than the {self._blob.size} bytes of {self._blob.digest}.",
                "The content stored there is damaged.",
            )
        self.sources.add(host.origin)
        try:
            await run_to_completion(asyncio.to_thread(_write_all, self._file, data))
        except OSError as error:
            raise store_error(self._path.parent, error) from None
        self._done += len(data)
        self._progress(self._done)
        if self._done - self._checkpoint >= min(_MIN_PROGRESS, self._blob.size - self._checkpoint):
            self._checkpoint = self._done
            self._limit.reschedule(asyncio.get_running_loop().time() + self._timeout)


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


class ImageSource(ABC):
    """An image at the location it is pulled from. `name` is used in messages."""

    reference: Reference
    name: str

    @abstractmethod
    async def resolve(self) -> Descriptor: ...

    @abstractmethod
    async def fetch(self, descriptor: Descriptor, limit: int) -> bytes: ...

    @abstractmethod
    async def read_head(self, blob: Descriptor, count: int) -> bytes: ...

    def locate_blob(self, blob: Descriptor) -> FileExtent | None:
        """Return where a blob can be read directly, or None if it must be downloaded."""
        del blob
        return None

    @abstractmethod
    async def download(self, blob: Descriptor, path: Path, progress: BytesCallback) -> None:
        """Download a blob into a file, which may already have the first part."""

    def report_corrupt(self, blob: Descriptor) -> bool:
        """Exclude the hosts that sent a corrupt blob; return whether to download again."""
        del blob
        return False


@asynccontextmanager
async def open_source(
    text: str, credentials: Sequence[CredentialSource], inactivity_timeout: float
) -> AsyncIterator[ImageSource]:
    """Open the source of an image name, `oci:DIR[:NAME]` or `oci-archive:FILE[:NAME]`."""
    if location := parse_layout_name(text):
        layout = await asyncio.to_thread(open_layout, location[0])
        try:
            yield _LayoutSource(layout, location[1], text)
        finally:
            layout.close()
        return
    reference = parse_reference(text)
    async with RegistryClient(answer_seconds=min(30.0, inactivity_timeout)) as registry:
        repository = registry.repository(reference, credentials)
        yield _RegistrySource(reference, repository, inactivity_timeout)


class _RegistrySource(ImageSource):
    def __init__(
        self, reference: Reference, repository: Repository, inactivity_timeout: float
    ) -> None:
        self.reference = reference
        self.name = reference.familiar
        self._repository = repository
        self._timeout = inactivity_timeout
        self._last: dict[str, Download] = {}
        self._corrupt_hosts: dict[str, set[str]] = {}

    async def resolve(self) -> Descriptor:
        return await self._repository.resolve(self.reference)

    async def fetch(self, descriptor: Descriptor, limit: int) -> bytes:
        return await self._repository.fetch(descriptor, limit)

    async def read_head(self, blob: Descriptor, count: int) -> bytes:
        return await read_head(self._repository, blob, count)

    async def download(self, blob: Descriptor, path: Path, progress: BytesCallback) -> None:
        download = Download(
            self._repository,
            blob,
            path,
            inactivity_timeout=self._timeout,
            progress=progress,
            corrupt_hosts=self._corrupt_hosts.get(blob.digest, ()),
        )
        self._last[blob.digest] = download
        await download.run()

    def report_corrupt(self, blob: Descriptor) -> bool:
        last = self._last[blob.digest]
        if not last.resumed:
            self._corrupt_hosts.setdefault(blob.digest, set()).update(last.sources)
        return True


class _LayoutSource(ImageSource):
    def __init__(self, layout: Layout, name: str, text: str) -> None:
        self._layout = layout
        self._root = layout.find_by_name(name)
        self.reference = _layout_reference(self._root, layout.path)
        self.name = text

    async def resolve(self) -> Descriptor:
        return self._root

    async def fetch(self, descriptor: Descriptor, limit: int) -> bytes:
        return await self._layout.fetch(descriptor, limit)

    async def read_head(self, blob: Descriptor, count: int) -> bytes:
        extent = self._layout.locate_blob(blob)
        if extent is None:
            return (await self._layout.fetch(blob, blob.size))[:count]
        return await asyncio.to_thread(_read_at, extent, count)

    def locate_blob(self, blob: Descriptor) -> FileExtent | None:
        return self._layout.locate_blob(blob)

    async def download(self, blob: Descriptor, path: Path, progress: BytesCallback) -> None:
        await run_to_completion(asyncio.to_thread(self._layout.copy, blob, path))
        progress(blob.size)


def find_in_layout(text: str) -> Reference | None:
    """Return the name and current digest under which `oci:DIR:NAME` is stored."""
    location = parse_layout_name(text)
    if location is None:
        return None
    layout = open_layout(location[0])
    try:
        entry = layout.find_by_name(location[1])
    finally:
        layout.close()
    return replace(_layout_reference(entry, layout.path), digest=entry.digest)


def _read_at(extent: FileExtent, count: int) -> bytes:
    with extent.path.open("rb") as file:
        file.seek(extent.offset)
        return file.read(count)


def _layout_reference(entry: Descriptor, path: Path) -> Reference:
    """Return the reference of a layout's image; a bare tag gets the name of the layout."""
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
        raise CorruptContent(
            f'{path} names an image "{short}", which is not a valid tag.', "Rename the image."
        ) from None
