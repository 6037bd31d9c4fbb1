"""Cached lookup of the images of pods, in local OCI layouts first and then at registries."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from lightkube.models import core_v1 as v1

from winpod.errors import InvalidInput, WinpodError
from winpod.images.references import parse_reference
from winpod.images.registry.auth import CredentialSource
from winpod.images.resolver import ImageResolver, guess_build_from_tag, parse_layout_name
from winpod.play.apiserver.objects import Document, key_of
from winpod.play.apiserver.pods import images_of, pull_secrets
from winpod.play.apiserver.store import ObjectStore
from winpod.windows.platforms import Image

_log = logging.getLogger(__name__)
_RETRY_SECONDS = 60.0


class ImageLookup:
    """Image lookup with a retry period; a failed lookup falls back to the build in the tag."""

    def __init__(self, records: ObjectStore) -> None:
        self._records = records
        self._user_layouts: tuple[str, ...] = ()
        self._user_credentials: tuple[CredentialSource, ...] = ()
        self._cache: dict[str, Image] = {}
        self._failed: dict[str, tuple[float, str]] = {}
        """By image: the time of the next attempt, and the last error."""

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

    async def images_of(self, pod: v1.Pod, new: Iterable[Document] = ()) -> dict[str, Image]:
        """Look up the images of a pod; `new` holds objects that are not stored yet."""
        names = images_of(pod)
        paths = dict.fromkeys((*self._records.setting("layouts"), *self._user_layouts))
        layouts = [Path(path) for path in paths]
        await self._look_up(names, layouts, self.secrets(pod, new))
        return {name: self._cache[name] for name in names if name in self._cache}

    def lookup_errors(self, pod: v1.Pod) -> tuple[str, ...]:
        """Return the errors of failed lookups of the pod's images."""
        return tuple(self._failed[text][1] for text in images_of(pod) if text in self._failed)

    def secrets(self, pod: v1.Pod, new: Iterable[Document] = ()) -> list[Document]:
        """Return the pod's pull secrets; `new` holds objects that are not stored yet."""
        unsaved = {key_of(document): document for document in new}
        return pull_secrets(pod, lambda key: unsaved.get(key) or self._records.document(key))

    async def _look_up(
        self, images: Iterable[str], layouts: Sequence[Path], secrets: Sequence[Document]
    ) -> None:
        now = time.monotonic()
        missing = [
            image
            for image in dict.fromkeys(images)
            if image not in self._cache and now > self._failed.get(image, (0.0, ""))[0]
        ]
        if not missing:
            return
        present = [layout for layout in layouts if layout.exists()]
        async with ImageResolver(
            layouts=present, sizes=False, time_limit=15, credentials=self._user_credentials
        ) as resolver:
            for image in missing:
                try:
                    self._cache[image] = await resolver.describe(image, secrets)
                    self._failed.pop(image, None)
                except WinpodError as error:
                    _log.info("Failed to look up image %s: %s", image, error)
                    self._failed[image] = (now + _RETRY_SECONDS, str(error))
                    self._guess(image)

    def _guess(self, image: str) -> None:
        if parse_layout_name(image):
            return
        try:
            guessed = guess_build_from_tag(parse_reference(image))
        except InvalidInput:
            return
        if guessed:
            self._cache[image] = guessed

    def invalidate(self) -> None:
        """Drop all cached results, e.g. after a change of layouts or pull secrets."""
        self._cache.clear()
        self._failed.clear()
