"""What the images of pods are, looked up once: in layouts of this machine, then at registries."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from lightkube.models import core_v1 as v1

from winpod.images.references import parse_reference
from winpod.images.source import ImageSources, guess_from_tag, parse_layout_name
from winpod.node.play.objects import Document, key_of
from winpod.node.play.pods import images_of
from winpod.node.play.pull_secrets import pull_secrets
from winpod.node.play.records import Records
from winpod.windows.errors import InvalidInput, WinpodError
from winpod.windows.platforms import Image

_log = logging.getLogger(__name__)
_RETRY_SECONDS = 60.0


class Lookups:
    """An image that could not be looked up is looked for again after a while; until then its tag
    has to tell."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._known: dict[str, Image] = {}
        self._failed: dict[str, tuple[float, str]] = {}
        """Until when each is not looked for again, and why it was not found."""

    async def of(self, pod: v1.Pod, new: Iterable[Document] = ()) -> dict[str, Image]:
        """What is known of a pod's images; `new` are objects that are not written down yet."""
        texts = images_of(pod)
        layouts = [Path(text) for text in self._records.setting("layouts")]
        await self._look_up(texts, layouts, self.secrets(pod, new))
        return {text: self._known[text] for text in texts if text in self._known}

    def troubles(self, pod: v1.Pod) -> tuple[str, ...]:
        """Why images of it could not be looked up."""
        return tuple(self._failed[text][1] for text in images_of(pod) if text in self._failed)

    def secrets(self, pod: v1.Pod, new: Iterable[Document] = ()) -> list[Document]:
        """Those to pull its images with."""
        asked = {key_of(document): document for document in new}
        return pull_secrets(pod, lambda key: asked.get(key) or self._records.document(key))

    async def _look_up(
        self, images: Iterable[str], layouts: Sequence[Path], secrets: Sequence[Document]
    ) -> None:
        now = time.monotonic()
        wanted = [
            text
            for text in dict.fromkeys(images)
            if text not in self._known and now > self._failed.get(text, (0.0, ""))[0]
        ]
        if not wanted:
            return
        present = [layout for layout in layouts if layout.exists()]
        async with ImageSources(layouts=present, sizes=False, time_limit=15) as sources:
            for text in wanted:
                try:
                    self._known[text] = await sources.describe(text, secrets)
                    self._failed.pop(text, None)
                except WinpodError as error:
                    _log.info("%s could not be looked up: %s", text, error)
                    self._failed[text] = (now + _RETRY_SECONDS, str(error))
                    self._guess(text)

    def _guess(self, text: str) -> None:
        if parse_layout_name(text):
            return
        try:
            guessed = guess_from_tag(parse_reference(text))
        except InvalidInput:
            return
        if guessed:
            self._known[text] = guessed

    def forget(self) -> None:
        """Everything, because what is looked up now may be different."""
        self._known.clear()
        self._failed.clear()
