"""Push images to a registry: missing blobs first, then manifests, the tagged one last.

So a tag never points to missing content.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from winpod.concurrency import gather_or_cancel
from winpod.errors import InvalidInput
from winpod.images.errors import ImageNotFound, RegistryUnavailable
from winpod.images.manifests import Descriptor, ImageBundle
from winpod.images.references import Reference
from winpod.images.registry.auth import read_docker_config
from winpod.images.registry.client import RegistryClient, Repository, absolute_url
from winpod.images.registry.hosts import Capability, RegistryHost

_ACTIONS = "pull,push"
_CHUNK = 1 << 20
_MAX_CONCURRENT_UPLOADS = 4


async def push_image(
    reference: Reference, image: ImageBundle, progress: Callable[[int], None] = lambda _: None
) -> None:
    """Push an image to the registry and tag of its name."""
    if reference.digest or not reference.tag:
        raise InvalidInput(
            f'An image cannot be pushed to the digest in "{reference.familiar}".', "Use a tag."
        )
    config = read_docker_config()
    async with RegistryClient() as registry:
        repository = registry.repository(reference, (config,) if config else ())
        await _Push(repository, progress).run(reference.tag, image)


class _Push:
    def __init__(self, repository: Repository, progress: Callable[[int], None]) -> None:
        self._repository = repository
        self._progress = progress
        self._slots = asyncio.Semaphore(_MAX_CONCURRENT_UPLOADS)

    async def run(self, tag: str, image: ImageBundle) -> None:
        await gather_or_cancel([self._push_blob(*blob) for blob in image.blobs])
        for descriptor, data in image.manifests:
            target = tag if descriptor is image.root else descriptor.digest
            await self._push_manifest(descriptor, data, target)

    async def _push_blob(self, descriptor: Descriptor, content: bytes | Path) -> None:
        async def attempt(host: RegistryHost) -> None:
            if not await self._has_blob(host, descriptor):
                await self._upload(host, descriptor, content)

        async with self._slots:
            await self._repository.try_hosts(Capability.PUSH, attempt)
        self._progress(descriptor.size)

    async def _has_blob(self, host: RegistryHost, descriptor: Descriptor) -> bool:
        path = f"blobs/{descriptor.digest}"
        try:
            async with self._repository.request(host, "HEAD", path, actions=_ACTIONS):
                return True
        except ImageNotFound:
            return False

    async def _upload(
        self, host: RegistryHost, descriptor: Descriptor, content: bytes | Path
    ) -> None:
        start = self._repository.request(
            host, "POST", "blobs/uploads/", actions=_ACTIONS, accepted=frozenset({202})
        )
        async with start as response:
            location = response.headers.get("Location", "")
            if not location:
                raise RegistryUnavailable(
                    f"{host.name} started an upload without a Location header."
                )
            url = absolute_url(str(response.url), location, host)
        finish = self._repository.request(
            host,
            "PUT",
            f"{url}{'&' if '?' in url else '?'}digest={descriptor.digest}",
            actions=_ACTIONS,
            headers={
                "Content-Type": "application/octet-stream",
                "Content-Length": str(descriptor.size),
            },
            body=lambda: content if isinstance(content, bytes) else _chunks(content),
            accepted=frozenset({201}),
        )
        async with finish:
            pass

    async def _push_manifest(self, descriptor: Descriptor, data: bytes, target: str) -> None:
        async def attempt(host: RegistryHost) -> None:
            put = self._repository.request(
                host,
                "PUT",
                f"manifests/{target}",
                actions=_ACTIONS,
                headers={"Content-Type": descriptor.media_type},
                body=lambda: data,
                accepted=frozenset({201}),
            )
            async with put:
                pass

        await self._repository.try_hosts(Capability.PUSH, attempt)


async def _chunks(path: Path) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        while data := await asyncio.to_thread(file.read, _CHUNK):
            yield data
