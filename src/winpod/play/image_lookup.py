"""Lookup of the images of pods, in local OCI layouts first and then at registries."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from winpod.errors import InvalidInput, WinpodError
from winpod.images.lookup import CacheLimits, ImageLookup, Secrets
from winpod.images.references import Reference, parse_reference
from winpod.images.registry.auth import CredentialSource
from winpod.images.resolver import ImageResolver, guess_build_from_tag, parse_layout_name
from winpod.k8s.models import core_v1 as v1
from winpod.play.apiserver.objects import Document, key_of
from winpod.play.apiserver.pods import images_of, pull_secrets
from winpod.play.apiserver.store import ObjectStore
from winpod.windows.platforms import Image

_log = logging.getLogger(__name__)
_LIMITS = CacheLimits(failure_seconds=60.0, guess_seconds=float("inf"))
_LOOKUP_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class PodImages:
    """The images of a pod by name, and the errors of those that could not be looked up."""

    found: dict[str, Image]
    errors: tuple[str, ...]


class PodImageLookup:
    """Looks up the images of pods; a failed lookup falls back to the build in the tag."""

    def __init__(self, records: ObjectStore) -> None:
        self._records = records
        self._user_layouts: tuple[str, ...] = ()
        self._user_credentials: tuple[CredentialSource, ...] = ()
        self._images = ImageLookup(self._resolve, parse=_parse, limits=_LIMITS)

    @contextmanager
    def on_behalf_of_user(
        self, layouts: Sequence[str], credentials: CredentialSource
    ) -> Iterator[None]:
        """Use also the layouts and credentials of a user, for lookups in this context."""
        self._user_layouts, self._user_credentials = tuple(layouts), (credentials,)
        try:
            yield
        finally:
            self._user_layouts = self._user_credentials = ()

    async def look_up(self, pod: v1.Pod, new: Iterable[Document] = ()) -> PodImages:
        """Look up the images of a pod; `new` holds objects that are not stored yet."""
        names = list(dict.fromkeys(images_of(pod)))
        secrets = self.secrets(pod, new)
        results = await asyncio.gather(*(self._images.describe(name, secrets) for name in names))
        found: dict[str, Image] = {}
        errors = []
        for name, result in zip(names, results, strict=True):
            if image := result.image or _guess(name):
                found[name] = image
            if result.problem:
                errors.append(f"{result.problem} {result.hint}".rstrip())
        return PodImages(found, tuple(errors))

    def secrets(self, pod: v1.Pod, new: Iterable[Document] = ()) -> list[Document]:
        """Return the pod's pull secrets; `new` holds objects that are not stored yet."""
        unsaved = {key_of(document): document for document in new}
        return pull_secrets(pod, lambda key: unsaved.get(key) or self._records.document(key))

    def invalidate(self) -> None:
        """Drop all cached results, e.g. after a change of layouts or pull secrets."""
        self._images.invalidate()

    async def close(self) -> None:
        await self._images.close()

    async def _resolve(self, text: str, secrets: Secrets) -> Image:
        names = dict.fromkeys((*self._records.setting("layouts"), *self._user_layouts))
        sources = ImageResolver(
            layouts=[path for path in map(Path, names) if path.exists()],
            sizes=False,
            time_limit=_LOOKUP_SECONDS,
            credentials=self._user_credentials,
        )
        try:
            async with sources:
                return await sources.describe(text, secrets)
        except WinpodError as error:
            _log.info("Failed to look up image %s: %s", text, error)
            raise


def _parse(text: str) -> Reference | None:
    return None if parse_layout_name(text) else parse_reference(text)


def _guess(text: str) -> Image | None:
    """Guess the build of an image that its registry does not have; the node may have it."""
    try:
        reference = _parse(text)
    except InvalidInput:
        return None
    return guess_build_from_tag(reference) if reference else None
