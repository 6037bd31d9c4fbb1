"""Blobs from a registry into files, from wherever the file ends to the end of the blob.

A broken connection is taken up again where it broke, at the same host for as long as that gets on,
then at the next. What arrives is not believed: whoever reads the file verifies its digest, and
names the hosts that lied when it asks again.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Collection, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import aiohttp

from winpod.images.errors import BadContent, ImageNotFound, PullStalled, RegistryUnavailable
from winpod.images.hosts import Capability, Host
from winpod.images.manifests import Descriptor
from winpod.images.registry import Passing, Repository
from winpod.images.store_trouble import trouble

_LEAST_PROGRESS = 16 << 10
_PAUSE = 0.1
_ANSWERS = frozenset({200, 206, 416})
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")

_T = TypeVar("_T")
Arrived = Callable[[int], None]
"""Told how many bytes of the blob are in the file."""


async def read_head(repository: Repository, blob: Descriptor, count: int) -> bytes:
    """The first bytes of a blob; unverified, so good for a look only."""
    headers = {"Range": f"bytes=0-{count - 1}"}

    async def attempt(host: Host) -> bytes:
        head = bytearray()
        request = repository.request(
            host, "GET", f"blobs/{blob.digest}", headers=headers, accepted=_ANSWERS
        )
        async with request as response:
            async for data in response.content.iter_any():
                head += data
                if len(head) >= count:
                    break
        return bytes(head[:count])

    return await repository.on_hosts(Capability.PULL, attempt)


class Download:
    """One blob on its way into a file.

    `sources` are the hosts that gave any of it; `resumed`, whether the file had some already.
    """

    def __init__(
        self,
        repository: Repository,
        blob: Descriptor,
        path: Path,
        *,
        inactivity_timeout: float,
        arrived: Arrived,
        liars: Collection[str] = (),
    ) -> None:
        self.sources: set[str] = set()
        self.resumed = False
        self._repository = repository
        self._blob = blob
        self._path = path
        self._timeout = inactivity_timeout
        self._arrived = arrived
        self._liars = liars
        self._done = 0
        self._marked = 0

    async def run(self) -> None:
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._done = os.lseek(self._file, 0, os.SEEK_END)
            if self._done > self._blob.size:
                os.truncate(self._file, 0)
                self._done = os.lseek(self._file, 0, os.SEEK_SET)
            self.resumed = self._done > 0
            self._marked = self._done
            self._arrived(self._done)
            async with asyncio.timeout(self._timeout) as self._limit:
                await self._repository.on_hosts(Capability.PULL, self._from_host)
        except TimeoutError:
            raise PullStalled(
                f"{self._blob.digest} stalled at {self._done} of {self._blob.size} bytes: less "
                f"than {_LEAST_PROGRESS >> 10} KiB came within {self._timeout:g} s.",
                "Pull again to go on from there, or look into the network.",
            ) from None
        finally:
            os.close(self._file)

    async def _from_host(self, host: Host) -> None:
        if host.origin in self._liars:
            raise BadContent(f"{host.name} gave other content for {self._blob.digest}.")
        while self._done < self._blob.size:
            before = self._done
            try:
                await self._from_its_places(host)
            except Passing as passing:
                if self._done == before:
                    raise
                await asyncio.sleep(max(passing.wait, _PAUSE))

    async def _from_its_places(self, host: Host) -> None:
        """From the registry, or where it has it not, from where the manifest says it is."""
        *rest, last = (f"blobs/{self._blob.digest}", *self._blob.urls)
        for path in rest:
            try:
                return await self._read(host, path)
            except ImageNotFound:
                continue
        return await self._read(host, last)

    async def _read(self, host: Host, path: str) -> None:
        start = self._done
        headers = {"Range": f"bytes={start}-"} if start else {}
        request = self._repository.request(host, "GET", path, headers=headers, accepted=_ANSWERS)
        async with request as response:
            known = self._known_of(response, host)
            async for data in response.content.iter_any():
                await self._write(data[known:], host)
                known -= min(known, len(data))
        if self._done < self._blob.size:
            raise Passing(
                RegistryUnavailable(
                    f"{host.name} ended {self._blob.digest} after {self._done} of "
                    f"{self._blob.size} bytes.",
                    "Try again, or look into the network between here and the registry.",
                )
            )

    def _known_of(self, response: aiohttp.ClientResponse, host: Host) -> int:
        """How many bytes of the answer are in the file already."""
        size: int | None = response.content_length
        known = self._done
        if response.status == 206:
            found = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
            if found is None or int(found[1]) > self._done:
                raise BadContent(f"{host.name} gave another part of a blob than it was asked for.")
            known -= int(found[1])
            size = int(found[2]) if found[2].isdecimal() else None
        if response.status == 416 or size not in (None, self._blob.size):
            has = "fewer bytes" if response.status == 416 else f"{size} bytes"
            raise BadContent(
                f"{host.name} has {has} for {self._blob.digest}, which has {self._blob.size}.",
                "The content is damaged where it is stored.",
            )
        return known

    async def _write(self, data: bytes, host: Host) -> None:
        if not data:
            return
        if self._done + len(data) > self._blob.size:
            raise BadContent(
                f"{host.name} gave more than the {self._blob.size} bytes of {self._blob.digest}.",
                "The content is damaged where it is stored.",
            )
        self.sources.add(host.origin)
        try:
            await finish(asyncio.to_thread(_write_all, self._file, data))
        except OSError as error:
            raise trouble(self._path.parent, error) from None
        self._done += len(data)
        self._arrived(self._done)
        if self._done - self._marked >= min(_LEAST_PROGRESS, self._blob.size - self._marked):
            self._marked = self._done
            self._limit.reschedule(asyncio.get_running_loop().time() + self._timeout)


async def finish(work: Coroutine[Any, Any, _T]) -> _T:
    """Do work that must not be left half done: a cancellation waits until it is."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
