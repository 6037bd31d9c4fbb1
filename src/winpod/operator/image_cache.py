"""Cache of resolved images for callers with a deadline.

Digests are cached until evicted. Tags expire, but are still returned as stale while the registry
does not respond. Failures are cached briefly. Concurrent lookups of an image are shared and go on
after their callers time out, so that the next caller gets the result. An unresponsive registry is
waited for once, not by each caller.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from winpod.concurrency import KeyedLock
from winpod.errors import InvalidInput, PermissionDenied, WinpodError
from winpod.images.errors import ImageNotFound, RegistryUnavailable
from winpod.images.manifests import Descriptor
from winpod.images.references import Reference, parse_reference
from winpod.images.resolver import (
    DocumentCache,
    ImageResolver,
    guess_build_from_tag,
    parse_layout_name,
)
from winpod.windows.platforms import Image

if TYPE_CHECKING:  # `winpod explain` needs the cache without the packages of the operator
    from winpod.operator.admission.metrics import AdmissionMetrics

Secrets = Sequence[Mapping[str, Any]]
_UNRESPONSIVE_SECONDS = 60.0
"""How long a registry that did not respond in time is not waited for again."""


@dataclass(frozen=True, slots=True)
class CacheLimits:
    """Limits of the cache and of lookups.

    `manifests` counts those of all images: an index may have as many as a hundred other images.
    `at_once` limits concurrent lookups per registry, so a slow one does not delay the others.
    Failed lookups are not retried for `failure_seconds`.
    """

    images: int = 10_000
    manifests: int = 50_000
    at_once: int = 16
    lookup_seconds: float = 30.0
    failure_seconds: float = 10.0


@dataclass(frozen=True, slots=True)
class ImageLookupResult:
    """A resolved image, or the `problem`; `image` is then at best a guess from the tag.

    If `is_stale`, the tag may have moved since it was resolved. `caveat` is why a stale result is
    used after it expired: it could not be refreshed.
    """

    image: Image | None
    problem: str = ""
    is_stale: bool = False
    caveat: str = ""

    @property
    def is_certain(self) -> bool:
        return not self.problem


@dataclass(frozen=True, slots=True)
class _CacheEntry:
    result: ImageLookupResult
    until: float

    @property
    def manifests(self) -> int:
        return len(self.result.image.manifests) if self.result.image else 0


@dataclass(frozen=True, slots=True)
class _Lookup:
    task: asyncio.Task[ImageLookupResult]
    started: float


_Key = tuple[str, str]


class ImageCache:
    """Image cache; must be closed. `tag_seconds` is a callable because settings change."""

    def __init__(
        self,
        tag_seconds: Callable[[], float],
        metrics: AdmissionMetrics,
        limits: CacheLimits | None = None,
    ) -> None:
        self._tag_seconds = tag_seconds
        self._limits = limits or CacheLimits()
        self._metrics = metrics
        self._entries: OrderedDict[_Key, _CacheEntry] = OrderedDict()
        self._manifests = 0
        self._in_flight: dict[_Key, _Lookup] = {}
        self._unresponsive: dict[str, tuple[float, float]] = {}
        """Unresponsive registries: since when, and when that was detected."""
        self._semaphores = KeyedLock(lambda: asyncio.Semaphore(self._limits.at_once))

    async def close(self) -> None:
        tasks = tuple(lookup.task for lookup in self._in_flight.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def describe(self, text: str, secrets: Secrets, budget: float) -> ImageLookupResult:
        """Resolve an image within `budget` seconds, from the cache if fresh. Never raises."""
        try:
            reference = _reference(text)
        except InvalidInput as error:
            return ImageLookupResult(None, str(error))
        key = _key(reference, secrets)
        if cached := self._get_fresh(key):
            self._metrics.count_lookup("kept")
            return cached
        return _accept_stale(await self._lookup(key, reference, secrets, budget))

    async def describe_fresh(self, text: str, secrets: Secrets, budget: float) -> ImageLookupResult:
        """Resolve an image at the registry; a registry that does not respond is a problem."""
        try:
            reference = _reference(text)
        except InvalidInput as error:
            return ImageLookupResult(None, str(error))
        return await self._lookup(_key(reference, secrets), reference, secrets, budget)

    def cached(self, text: str) -> ImageLookupResult | None:
        """Return the certain cached result of a public image, without a registry lookup."""
        try:
            result = self._get_fresh(_key(_reference(text), ()))
        except InvalidInput:
            return None
        return result if result and result.is_certain else None

    async def _lookup(
        self, key: _Key, reference: Reference, secrets: Secrets, budget: float
    ) -> ImageLookupResult:
        if key not in self._in_flight:
            task = asyncio.create_task(self._resolve(key, reference, secrets))
            task.add_done_callback(lambda _: self._in_flight.pop(key, None))
            self._in_flight[key] = _Lookup(task, time.monotonic())
        lookup = self._in_flight[key]
        since = min(lookup.started, self._unresponsive_since(reference.registry))
        try:
            async with asyncio.timeout(since + budget - time.monotonic()):
                return await asyncio.shield(lookup.task)
        except TimeoutError:
            self._metrics.count_lookup("late")
            if not lookup.task.done():
                self._unresponsive.setdefault(reference.registry, (since, time.monotonic()))
            problem = f'image "{reference.familiar}" was not resolved within {budget:.1f} s.'
            return self._stale_or_guess(key, reference, problem)

    def _unresponsive_since(self, registry: str) -> float:
        """Return since when the registry is unresponsive; now if it responds."""
        now = time.monotonic()
        self._unresponsive = {
            name: (since, noticed)
            for name, (since, noticed) in self._unresponsive.items()
            if now < noticed + _UNRESPONSIVE_SECONDS
        }
        since, _ = self._unresponsive.get(registry, (now, now))
        return since

    def _get_fresh(self, key: _Key) -> ImageLookupResult | None:
        entry = self._entries.get(key)
        if entry is None or time.monotonic() >= entry.until:
            return None
        self._entries.move_to_end(key)
        return _accept_stale(entry.result)

    def _stale_or_guess(self, key: _Key, reference: Reference, problem: str) -> ImageLookupResult:
        """Return the stale result if there is one, else a guess from the tag."""
        entry = self._entries.get(key)
        if entry and (entry.result.is_certain or entry.result.is_stale):
            return ImageLookupResult(entry.result.image, problem, is_stale=True)
        return ImageLookupResult(guess_build_from_tag(reference), problem)

    async def _resolve(
        self, key: _Key, reference: Reference, secrets: Secrets
    ) -> ImageLookupResult:
        started = time.monotonic()
        try:
            result = ImageLookupResult(await self._query_registry(reference, secrets))
            seconds = float("inf") if reference.digest else self._tag_seconds()
            label, is_unresponsive = "found", False
        except WinpodError as error:
            result, seconds, label = self._failure_result(key, reference, error)
            is_unresponsive = isinstance(error, RegistryUnavailable)
        self._metrics.count_lookup(label, time.monotonic() - started)
        if not is_unresponsive:
            self._unresponsive.pop(reference.registry, None)
        by_tag = result.is_certain and not reference.digest
        cached = replace(result, is_stale=True) if by_tag else result
        self._store(key, _CacheEntry(cached, time.monotonic() + seconds))
        return result

    async def _query_registry(self, reference: Reference, secrets: Secrets) -> Image:
        """Resolve at the registry. The timeout includes the queue, so lookups do not pile up."""
        seconds = self._limits.lookup_seconds
        until = time.monotonic() + seconds
        semaphore = self._semaphores.lock(reference.registry)
        try:
            async with asyncio.timeout(seconds):
                await semaphore.acquire()
        except TimeoutError:
            raise RegistryUnavailable(
                f'image "{reference.familiar}" was not resolved within {seconds:g} s: '
                f"{reference.registry} did not respond to earlier lookups."
            ) from None
        try:
            async with ImageResolver(
                cache=_NULL_CACHE,
                sizes=False,
                time_limit=until - time.monotonic(),
                user_credentials=False,
            ) as resolver:
                return await resolver.describe(str(reference), secrets)
        finally:
            semaphore.release()

    def _failure_result(
        self, key: _Key, reference: Reference, error: WinpodError
    ) -> tuple[ImageLookupResult, float, str]:
        seconds = self._limits.failure_seconds
        if isinstance(error, ImageNotFound):
            return ImageLookupResult(None, error.message), seconds, "missing"
        if isinstance(error, PermissionDenied):
            guess = ImageLookupResult(guess_build_from_tag(reference), error.message)
            return guess, seconds, "denied"
        result = self._stale_or_guess(key, reference, error.message)
        return result, seconds, "stale" if result.is_stale else "failed"

    def _store(self, key: _Key, entry: _CacheEntry) -> None:
        if previous := self._entries.pop(key, None):
            self._manifests -= previous.manifests
        self._entries[key] = entry
        self._manifests += entry.manifests
        limits = self._limits
        while len(self._entries) > limits.images or self._manifests > limits.manifests:
            _, oldest = self._entries.popitem(last=False)
            self._manifests -= oldest.manifests


def _accept_stale(result: ImageLookupResult) -> ImageLookupResult:
    """Turn a stale result's problem into a caveat."""
    return (
        ImageLookupResult(result.image, is_stale=True, caveat=result.problem)
        if result.is_stale
        else result
    )


def _reference(text: str) -> Reference:
    if parse_layout_name(text):
        raise InvalidInput(f'"{text}" is a path on a node, which the operator cannot read.')
    return parse_reference(text)


def _key(reference: Reference, secrets: Secrets) -> _Key:
    """Return the cache key. It includes a digest of the secrets, never the secrets themselves."""
    if not secrets:
        return (str(reference), "")
    text = json.dumps(secrets, sort_keys=True, default=str)
    return (str(reference), hashlib.sha256(text.encode()).hexdigest())


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
