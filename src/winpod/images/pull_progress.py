"""How far the layers of a pull have come, for who watches and for the log."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

LOG = logging.getLogger("winpod.images.pull")
_LOG_SECONDS = 10.0


class LayerState(StrEnum):
    BASE = "base layer, not pulled"
    HERE = "already here"
    WAITING = "waiting"
    DOWNLOADING = "downloading"
    UNPACKING = "unpacking"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class LayerProgress:
    digest: str
    state: LayerState
    done: int
    total: int


Progress = Callable[[LayerProgress], None]


def silent(_: LayerProgress) -> None:
    pass


class Notes:
    """Of one image: to the log what is new or a while ago, and to whoever watches everything."""

    def __init__(self, name: str, watching: Progress) -> None:
        self._name = name
        self._watching = watching
        self._logged: dict[str, tuple[LayerState | None, float]] = {}

    def take(self, progress: LayerProgress) -> None:
        state, at = self._logged.get(progress.digest, (None, 0.0))
        now = time.monotonic()
        if progress.state is not state or now - at > _LOG_SECONDS:
            self._logged[progress.digest] = (progress.state, now)
            LOG.info(
                "%s: %s %s (%d of %d bytes)",
                self._name,
                progress.digest,
                progress.state,
                progress.done,
                progress.total,
            )
        self._watching(progress)
