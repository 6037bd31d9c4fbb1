"""Cached lookup of images, for callers that need a result rather than an error.

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
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from winpod.errors import InvalidInput, NotFound, PermissionDenied, WinpodError
from winpod.images.errors import RegistryUnavailable
from winpod.images.references import Reference, parse_reference
from winpod.images.resolver import guess_build_from_tag
from winpod.windows.platforms import Image

Secrets = Sequence[Mapping[str, Any]]
Resolve = Callable[[str, Secrets], Awaitable[Image]]
_UNRESPONSIVE_SECONDS = 60.0
"""How long a registry that did not respond in time is not waited for again."""
_NEVER = float("-inf")


@dataclass(frozen=True, slots=True)
class CacheLimits:
    """Limits of the cache.

    `manifests` counts those of all images: an index may have as many as a hundred other images.
    Failed lookups are not retried for `failure_seconds`, or `guess_seconds` if the build could be
    guessed from the tag.
    """

    images: int = 10_000
    manifests: int = 50_000
    failure_seconds: float = 10.0
    guess_seconds: float = 10.0


@dataclass(frozen=True, slots=True)
class ImageLookupResult:
    """A resolved image, or the `problem`; `image` is then at best a guess from the tag.

    If `is_stale`, the tag may have moved since it was resolved. `caveat` is why a stale result is
    used after it expired: it could not be refreshed. If `is_missing`, the image cannot be pulled at
    all: its name is invalid, or the registry does not have it.
    """

    image: Image | None
    problem: str = ""
    is_stale: bool = False
    caveat: str = ""
    hint: str = ""
    is_missing: bool = False

    @property
    def is_certain(self) -> bool:
        return not self.problem


@dataclass(frozen=True, slots=True)
class _CacheEntry:
    """`resolved_at` is when the image was last resolved, also if a later lookup failed."""

    result: ImageLookupResult
    until: float
    resolved_at: float

    @property
    def manifests(self) -> int:
        return len(self.result.image.manifests) if self.result.image else 0


@dataclass(frozen=True, slots=True)
class _Lookup:
    task: asyncio.Task[ImageLookupResult]
    started: float


_Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class _Request:
    """An image to look up. `reference` is None for the name of a local layout."""

    text: str
    reference: Reference | None
    secrets: Secrets

    @property
    def key(self) -> _Key:
        """The cache key. It includes a digest of the secrets, never the secrets themselves."""
        if not self.secrets:
            return (self.name, "")
        text = json.dumps(self.secrets, sort_keys=True, default=str)
        return (self.name, hashlib.sha256(text.encode()).hexdigest())

    @property
    def name(self) -> str:
        return str(self.reference) if self.reference else self.text

    @property
    def registry(self) -> str:
        return self.reference.registry if self.reference else ""

    @property
    def has_digest(self) -> bool:
        return bool(self.reference and self.reference.digest)

    def guess(self) -> Image | None:
        return guess_build_from_tag(self.reference) if self.reference else None


def _forever() -> float:
    return float("inf")


def _ignore(outcome: str, seconds: float | None) -> None:
    del outcome, seconds


class ImageLookup:
    """Looks images up with `resolve`, and caches the results; must be closed.

    `parse` returns None for the names of layouts that `resolve` can read, and raises InvalidInput.
    `tag_seconds` is how long tags are cached; a callable because settings change. `observe` gets
    the outcome of each lookup, and its duration if it was resolved.
    """

    def __init__(
        self,
        resolve: Resolve,
        *,
        parse: Callable[[str], Reference | None] = parse_reference,
        tag_seconds: Callable[[], float] = _forever,
        limits: CacheLimits | None = None,
        observe: Callable[[str, float | None], None] = _ignore,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._resolve_image = resolve
        self._parse = parse
        self._tag_seconds = tag_seconds
        self._limits = limits or CacheLimits()
        self._observe = observe
        self._clock = clock
        self._entries: OrderedDict[_Key, _CacheEntry] = OrderedDict()
        self._manifests = 0
        self._generation = 0
        self._in_flight: dict[tuple[int, _Key], _Lookup] = {}
        self._unresponsive: dict[str, tuple[float, float]] = {}
        """Unresponsive registries: since when, and when that was detected."""

    async def close(self) -> None:
        tasks = tuple(lookup.task for lookup in self._in_flight.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def describe(
        self,
        text: str,
        secrets: Secrets = (),
        budget: float | None = None,
        *,
        max_age: float | None = None,
    ) -> ImageLookupResult:
        """Look an image up, within `budget` seconds if set. Never raises a WinpodError.

        If `max_age` is set, a tag must have been resolved within that time, whatever its usual
        time in the cache: an older result is refreshed, and a failure to do so is a problem.
        """
        try:
            request = _Request(text, self._parse(text), secrets)
        except InvalidInput as error:
            return ImageLookupResult(None, error.message, hint=error.hint, is_missing=True)
        if cached := self._cached(request.key, max_age):
            self._observe("kept", None)
            return cached
        result = await self._look_up(request, budget)
        return _accept_stale(result) if max_age is None else result

    def cached(self, text: str) -> ImageLookupResult | None:
        """Return the certain cached result of a public image, without a lookup."""
        try:
            result = self._cached(_Request(text, self._parse(text), ()).key, None)
        except InvalidInput:
            return None
        return result if result and result.is_certain else None

    def invalidate(self) -> None:
        """Drop all results, also of lookups in flight, as after a change of layouts."""
        self._entries.clear()
        self._manifests = 0
        self._generation += 1

    async def _look_up(self, request: _Request, budget: float | None) -> ImageLookupResult:
        key, registry = (self._generation, request.key), request.registry
        if key not in self._in_flight:
            task = asyncio.create_task(self._resolve(request))
            task.add_done_callback(lambda _: self._in_flight.pop(key, None))
            self._in_flight[key] = _Lookup(task, self._clock())
        lookup = self._in_flight[key]
        if budget is None:
            return await asyncio.shield(lookup.task)
        since = min(lookup.started, self._unresponsive_since(registry))
        try:
            async with asyncio.timeout(since + budget - self._clock()):
                return await asyncio.shield(lookup.task)
        except TimeoutError:
            self._observe("late", None)
            if not lookup.task.done():
                self._unresponsive.setdefault(registry, (since, self._clock()))
            name = request.reference.familiar if request.reference else request.text
            problem = f'image "{name}" was not resolved within {budget:.1f} s.'
            return self._stale_or_guess(request, problem)

    def _unresponsive_since(self, registry: str) -> float:
        """Return since when the registry is unresponsive; now if it responds."""
        now = self._clock()
        self._unresponsive = {
            name: (since, noticed)
            for name, (since, noticed) in self._unresponsive.items()
            if now < noticed + _UNRESPONSIVE_SECONDS
        }
        since, _ = self._unresponsive.get(registry, (now, now))
        return since

    def _cached(self, key: _Key, max_age: float | None) -> ImageLookupResult | None:
        entry, now = self._entries.get(key), self._clock()
        if entry is None:
            return None
        is_aged = max_age is not None and entry.result.is_stale
        until = entry.resolved_at + (max_age or 0.0) if is_aged else entry.until
        if now >= until:
            return None
        self._entries.move_to_end(key)
        return ImageLookupResult(entry.result.image) if is_aged else _accept_stale(entry.result)

    def _stale_or_guess(self, request: _Request, problem: str, hint: str = "") -> ImageLookupResult:
        """Return the stale result if there is one, else a guess from the tag."""
        entry = self._entries.get(request.key)
        if entry and (entry.result.is_certain or entry.result.is_stale):
            return ImageLookupResult(entry.result.image, problem, is_stale=True, hint=hint)
        return ImageLookupResult(request.guess(), problem, hint=hint)

    async def _resolve(self, request: _Request) -> ImageLookupResult:
        started, generation = self._clock(), self._generation
        try:
            image = await self._resolve_image(request.name, request.secrets)
            result, outcome, is_unresponsive = ImageLookupResult(image), "found", False
        except WinpodError as error:
            result, outcome = self._failure(request, error)
            is_unresponsive = isinstance(error, RegistryUnavailable)
        self._observe(outcome, self._clock() - started)
        if not is_unresponsive:
            self._unresponsive.pop(request.registry, None)
        if generation == self._generation:
            self._store(request, result)
        return result

    def _failure(self, request: _Request, error: WinpodError) -> tuple[ImageLookupResult, str]:
        message, hint = error.message, error.hint
        if isinstance(error, NotFound):
            return ImageLookupResult(None, message, hint=hint, is_missing=True), "missing"
        if isinstance(error, PermissionDenied):
            return ImageLookupResult(request.guess(), message, hint=hint), "denied"
        result = self._stale_or_guess(request, message, hint)
        return result, "stale" if result.is_stale else "failed"

    def _store(self, request: _Request, result: ImageLookupResult) -> None:
        now, limits = self._clock(), self._limits
        previous = self._entries.pop(request.key, None)
        if previous:
            self._manifests -= previous.manifests
        if result.is_certain:
            seconds = float("inf") if request.has_digest else self._tag_seconds()
            cached, resolved_at = replace(result, is_stale=not request.has_digest), now
        else:
            is_guess = result.image is not None and result.image.is_guess
            seconds = limits.guess_seconds if is_guess else limits.failure_seconds
            cached, resolved_at = result, previous.resolved_at if previous else _NEVER
        entry = _CacheEntry(cached, now + seconds, resolved_at)
        self._entries[request.key] = entry
        self._manifests += entry.manifests
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
