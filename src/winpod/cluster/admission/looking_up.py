"""What images are, for those who cannot wait: answers are kept, shared, and given in time.

What a digest names is kept for ever, as far as there is room; what a tag names, for a while, and
longer where the registry does not answer, but as an old answer; a failure, shortly. Many who ask at
once are one lookup, which goes on after the time of those who asked is up, so that the next who
asks is answered. A registry that says nothing is waited for once, and not by each who asks.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakValueDictionary

from winpod.cluster.admission.metrics import AdmissionMetrics
from winpod.images.cache import Cache
from winpod.images.errors import ImageNotFound, RegistryUnavailable
from winpod.images.manifests import Descriptor
from winpod.images.references import Reference, parse_reference
from winpod.images.source import ImageSources, guess_from_tag, parse_layout_name
from winpod.windows.errors import InvalidInput, PermissionDenied, WinpodError
from winpod.windows.platforms import Image

Secrets = Sequence[Mapping[str, Any]]
_SILENCE_SECONDS = 60.0
"""How long a registry that did not answer in time is not waited for again."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of what is kept and asked for.

    Manifests are those of all images together: one may have as many as a hundred others. At one
    registry so many lookups go on `at_once`; a slow one does not hold up the others. What failed
    is not asked for again for `failure_seconds`.
    """

    images: int = 10_000
    manifests: int = 50_000
    at_once: int = 16
    lookup_seconds: float = 30.0
    failure_seconds: float = 10.0


@dataclass(frozen=True, slots=True)
class Found:
    """What an image is, or why that is not known; then `image` is at best a guess from its tag.

    Where it `is_old`, the image is what its tag named before: the registry may know better by now.
    `doubt` is why an old answer is believed although its time is over: it could not be renewed.
    """

    image: Image | None
    problem: str = ""
    is_old: bool = False
    doubt: str = ""

    @property
    def is_certain(self) -> bool:
        return not self.problem


@dataclass(frozen=True, slots=True)
class _Kept:
    found: Found
    until: float

    @property
    def manifests(self) -> int:
        return len(self.found.image.manifests) if self.found.image else 0


@dataclass(frozen=True, slots=True)
class _Lookup:
    task: asyncio.Task[Found]
    began: float


_Key = tuple[str, str]


class Images:
    """Close it at the end. `tag_seconds` is asked each time, since settings change."""

    def __init__(
        self,
        tag_seconds: Callable[[], float],
        metrics: AdmissionMetrics,
        bounds: Bounds | None = None,
    ) -> None:
        self._tag_seconds = tag_seconds
        self._bounds = bounds or Bounds()
        self._metrics = metrics
        self._kept: OrderedDict[_Key, _Kept] = OrderedDict()
        self._manifests = 0
        self._under_way: dict[_Key, _Lookup] = {}
        self._silent: dict[str, tuple[float, float]] = {}
        """Registries, since when each has said nothing, and when that was noticed."""
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def close(self) -> None:
        tasks = tuple(lookup.task for lookup in self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def describe(self, text: str, secrets: Secrets, budget: float) -> Found:
        """Never raises, and answers within `budget` seconds."""
        try:
            reference = _reference(text)
        except InvalidInput as error:
            return Found(None, str(error))
        key = _key(reference, secrets)
        if fresh := self._fresh(key):
            self._metrics.count_lookup("kept")
            return fresh
        return _believed(await self._ask(key, reference, secrets, budget))

    async def describe_anew(self, text: str, secrets: Secrets, budget: float) -> Found:
        """What the registry says now; where it says nothing, that is a problem."""
        try:
            reference = _reference(text)
        except InvalidInput as error:
            return Found(None, str(error))
        return await self._ask(_key(reference, secrets), reference, secrets, budget)

    def known(self, text: str) -> Found | None:
        """What is known for certain of an image that everybody may pull; nobody is asked."""
        try:
            found = self._fresh(_key(_reference(text), ()))
        except InvalidInput:
            return None
        return found if found and found.is_certain else None

    async def _ask(self, key: _Key, reference: Reference, secrets: Secrets, budget: float) -> Found:
        if key not in self._under_way:
            task = asyncio.create_task(self._look_up(key, reference, secrets))
            task.add_done_callback(lambda _: self._under_way.pop(key, None))
            self._under_way[key] = _Lookup(task, time.monotonic())
        lookup = self._under_way[key]
        since = min(lookup.began, self._silent_since(reference.registry))
        try:
            async with asyncio.timeout(since + budget - time.monotonic()):
                return await asyncio.shield(lookup.task)
        except TimeoutError:
            self._metrics.count_lookup("late")
            if not lookup.task.done():
                self._silent.setdefault(reference.registry, (since, time.monotonic()))
            problem = f'"{reference.familiar}" could not be looked up within {budget:.1f} s.'
            return self._unanswered(key, reference, problem)

    def _silent_since(self, registry: str) -> float:
        """Now, for a registry that answers."""
        now = time.monotonic()
        self._silent = {
            name: (since, noticed)
            for name, (since, noticed) in self._silent.items()
            if now < noticed + _SILENCE_SECONDS
        }
        since, _ = self._silent.get(registry, (now, now))
        return since

    def _fresh(self, key: _Key) -> Found | None:
        kept = self._kept.get(key)
        if kept is None or time.monotonic() >= kept.until:
            return None
        self._kept.move_to_end(key)
        return _believed(kept.found)

    def _unanswered(self, key: _Key, reference: Reference, problem: str) -> Found:
        """With what was known once: better than a guess while the registry says nothing."""
        kept = self._kept.get(key)
        if kept and (kept.found.is_certain or kept.found.is_old):
            return Found(kept.found.image, problem, is_old=True)
        return Found(guess_from_tag(reference), problem)

    async def _look_up(self, key: _Key, reference: Reference, secrets: Secrets) -> Found:
        began = time.monotonic()
        try:
            found = Found(await self._from_registry(reference, secrets))
            seconds = float("inf") if reference.digest else self._tag_seconds()
            result, is_silent = "found", False
        except WinpodError as error:
            found, seconds, result = self._failed(key, reference, error)
            is_silent = isinstance(error, RegistryUnavailable)
        self._metrics.count_lookup(result, time.monotonic() - began)
        if not is_silent:
            self._silent.pop(reference.registry, None)
        by_tag = found.is_certain and not reference.digest
        kept = replace(found, is_old=True) if by_tag else found
        self._keep(key, _Kept(kept, time.monotonic() + seconds))
        return found

    async def _from_registry(self, reference: Reference, secrets: Secrets) -> Image:
        """The wait for its turn is part of its time, so that those who wait do not pile up."""
        seconds = self._bounds.lookup_seconds
        until = time.monotonic() + seconds
        turn = self._turns.setdefault(reference.registry, asyncio.Semaphore(self._bounds.at_once))
        try:
            async with asyncio.timeout(seconds):
                await turn.acquire()
        except TimeoutError:
            raise RegistryUnavailable(
                f'"{reference.familiar}" could not be looked up within {seconds:g} s: '
                f"{reference.registry} did not answer those who asked before."
            ) from None
        try:
            async with ImageSources(
                cache=_KEEPS_NOTHING,
                sizes=False,
                time_limit=until - time.monotonic(),
                user_credentials=False,
            ) as sources:
                return await sources.describe(str(reference), secrets)
        finally:
            turn.release()

    def _failed(
        self, key: _Key, reference: Reference, error: WinpodError
    ) -> tuple[Found, float, str]:
        seconds = self._bounds.failure_seconds
        if isinstance(error, ImageNotFound):
            return Found(None, error.sentence), seconds, "missing"
        if isinstance(error, PermissionDenied):
            guess = Found(guess_from_tag(reference), error.sentence)
            return guess, seconds, "denied"
        found = self._unanswered(key, reference, error.sentence)
        return found, seconds, "stale" if found.is_old else "failed"

    def _keep(self, key: _Key, kept: _Kept) -> None:
        if before := self._kept.pop(key, None):
            self._manifests -= before.manifests
        self._kept[key] = kept
        self._manifests += kept.manifests
        bounds = self._bounds
        while len(self._kept) > bounds.images or self._manifests > bounds.manifests:
            _, oldest = self._kept.popitem(last=False)
            self._manifests -= oldest.manifests


def _believed(found: Found) -> Found:
    """An old answer is one while there is no better."""
    return Found(found.image, is_old=True, doubt=found.problem) if found.is_old else found


def _reference(text: str) -> Reference:
    if parse_layout_name(text):
        raise InvalidInput(f'"{text}" is a directory or file of a node, which only the node reads.')
    return parse_reference(text)


def _key(reference: Reference, secrets: Secrets) -> _Key:
    """Who may pull one image and who may not are told apart, and no secret is kept."""
    if not secrets:
        return (str(reference), "")
    text = json.dumps(secrets, sort_keys=True, default=str)
    return (str(reference), hashlib.sha256(text.encode()).hexdigest())


class _NoCache(Cache):
    """Documents are not kept on disk: what they say is kept here, and bounded."""

    def read(self, descriptor: Descriptor) -> bytes | None:
        del descriptor
        return None

    def write(self, digest: str, data: bytes) -> None:
        del digest, data

    def remember(self, reference: Reference, digest: str) -> None:
        del reference, digest


_KEEPS_NOTHING = _NoCache()
