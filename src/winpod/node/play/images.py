"""What the images of pods are, looked up once: in layouts of this machine, then at registries."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from winpod.images.references import parse_reference
from winpod.images.source import ImageSources, guess_from_tag, parse_layout_name
from winpod.windows.errors import InvalidInput, WinpodError
from winpod.windows.platforms import Image

_log = logging.getLogger(__name__)
_RETRY_SECONDS = 60.0


class Lookups:
    """An image that could not be looked up is looked for again after a while; until then its tag
    has to tell."""

    def __init__(self) -> None:
        self._known: dict[str, Image] = {}
        self._failed: dict[str, float] = {}
        """Until when each is not looked for again."""

    def known(self, images: Iterable[str]) -> dict[str, Image]:
        return {text: self._known[text] for text in images if text in self._known}

    async def look_up(
        self,
        images: Iterable[str],
        layouts: Sequence[Path],
        secrets: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        now = time.monotonic()
        wanted = [
            text
            for text in dict.fromkeys(images)
            if text not in self._known and now > self._failed.get(text, 0.0)
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
                    self._failed[text] = now + _RETRY_SECONDS
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
