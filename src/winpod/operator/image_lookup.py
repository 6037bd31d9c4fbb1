"""Image lookups of the operator, on behalf of the users of a cluster.

They use the pods' pull secrets and never the operator's own logins or files, and leave nothing on
disk.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from winpod.errors import InvalidInput
from winpod.images.errors import RegistryUnavailable
from winpod.images.lookup import CacheLimits, ImageLookup, Secrets
from winpod.images.manifests import Descriptor
from winpod.images.references import Reference, parse_reference
from winpod.images.resolver import DocumentCache, ImageResolver, parse_layout_name
from winpod.operator.admission.metrics import AdmissionMetrics
from winpod.windows.platforms import Image


@dataclass(frozen=True)
class RegistryQueue:
    """Resolves images at registries, with a queue for each so that a slow one delays no other.

    `at_once` limits concurrent lookups per registry. `lookup_seconds` includes the time in the
    queue, so lookups do not pile up.
    """

    at_once: int = 16
    lookup_seconds: float = 30.0
    _semaphores: WeakValueDictionary[str, asyncio.Semaphore] = field(
        default_factory=WeakValueDictionary, init=False
    )

    async def resolve(self, text: str, secrets: Secrets) -> Image:
        reference = parse_reference(text)
        until = time.monotonic() + self.lookup_seconds
        semaphore = self._semaphores.setdefault(reference.registry, asyncio.Semaphore(self.at_once))
        try:
            async with asyncio.timeout(self.lookup_seconds):
                await semaphore.acquire()
        except TimeoutError:
            raise RegistryUnavailable(
                f'image "{reference.familiar}" was not resolved within '
                f"{self.lookup_seconds:g} s: "
                f"{reference.registry} did not respond to earlier lookups."
            ) from None
        try:
            async with ImageResolver(
                cache=_NULL_CACHE,
                sizes=False,
                time_limit=until - time.monotonic(),
                user_credentials=False,
            ) as resolver:
                return await resolver.describe(text, secrets)
        finally:
            semaphore.release()


def operator_lookup(
    tag_seconds: Callable[[], float],
    metrics: AdmissionMetrics,
    limits: CacheLimits | None = None,
    queue: RegistryQueue | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> ImageLookup:
    return ImageLookup(
        (queue or RegistryQueue()).resolve,
        parse=_parse,
        tag_seconds=tag_seconds,
        limits=limits,
        observe=metrics.count_lookup,
        clock=clock,
    )


def _parse(text: str) -> Reference:
    """Parse a reference. Errors contain their hint, because reviews only show the message."""
    try:
        if parse_layout_name(text):
            raise InvalidInput(f'"{text}" is a path on a node, which the operator cannot read.')
        return parse_reference(text)
    except InvalidInput as error:
        raise InvalidInput(str(error)) from None


class _NullDocumentCache(DocumentCache):
    """Disables the on-disk document cache: results are cached in memory, with limits."""

    def read(self, descriptor: Descriptor) -> bytes | None:
        del descriptor
        return None

    def write(self, digest: str, data: bytes) -> None:
        del digest, data

    def store_tag_digest(self, reference: Reference, digest: str) -> None:
        del reference, digest


_NULL_CACHE = _NullDocumentCache()
