"""Pulls of images before their pods are applied, with progress for the user.

A failed pull is reported and left to the nodes, which retry it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from winpod.config import Config
from winpod.errors import WinpodError
from winpod.images.errors import ImageNotPulled
from winpod.images.layout import open_layout
from winpod.images.pull.platform_match import resolve_handler
from winpod.images.pull.puller import find_variant, pull
from winpod.images.pull.singleflight import LayerProgress, LayerState
from winpod.images.references import parse_reference
from winpod.images.registry.auth import ResolvedCredentials, read_pull_secrets
from winpod.images.resolver import parse_layout_name
from winpod.images.store.store import Store
from winpod.play.apiserver.objects import Document
from winpod.windows.builds import Build
from winpod.windows.handlers import Handler

Report = Callable[[Document], None]
"""Receives the progress: documents with a `type`, as POST /apply streams them."""
_REPORT_SECONDS = 0.1


def ignore_report(_: Document) -> None:
    pass


@dataclass(frozen=True, slots=True)
class ImagePull:
    """An image that a pod needs, for the handler and build of its node.

    `secrets` are its pull secrets, each as JSON.
    """

    image: str
    handler: str
    build: Build
    secrets: tuple[str, ...] = ()


class ImagePuller:
    """Pulls images into the store that the nodes share."""

    def __init__(self, root: Path, config: Config) -> None:
        self._root = root
        self._config = config

    async def pull(
        self,
        pulls: Iterable[ImagePull],
        layouts: Sequence[str],
        credentials: ResolvedCredentials,
        report: Report = ignore_report,
    ) -> list[str]:
        """Pull the images and return those that came from a local OCI layout.

        The user's `credentials` are tried after the pull secrets.
        """
        local = []
        for wanted in pulls:
            name = await asyncio.to_thread(_find_in_layouts, wanted.image, layouts)
            try:
                await self._pull(wanted, name, credentials, report)
            except WinpodError as error:
                report({"type": "pull failed", "image": wanted.image, "message": str(error)})
            else:
                local += [wanted.image] if name else []
        return local

    async def _pull(
        self, wanted: ImagePull, local_name: str, credentials: ResolvedCredentials, report: Report
    ) -> None:
        """Pull an image unless it is in the store; one in a layout may have changed since."""
        handler = resolve_handler(self._config.handlers, wanted.handler)
        with Store(self._root, host=wanted.build, handlers=self._config.handlers) as store:
            if local_name:
                await pull(store, local_name, handler, wanted.build, settings=self._config.images)
            elif not await _is_stored(store, wanted, handler):
                started_at = time.monotonic()
                report({"type": "pulling", "image": wanted.image, "handler": handler.name})
                image = await pull(
                    store,
                    wanted.image,
                    handler,
                    wanted.build,
                    credentials=(
                        *read_pull_secrets([json.loads(text) for text in wanted.secrets]),
                        credentials,
                    ),
                    settings=self._config.images,
                    progress=_LayerReport(report),
                )
                seconds = time.monotonic() - started_at
                report(
                    {"type": "pulled", "image": wanted.image, "id": image.id, "seconds": seconds}
                )


async def _is_stored(store: Store, wanted: ImagePull, handler: Handler) -> bool:
    try:
        await find_variant(store, wanted.image, handler, wanted.build)
    except ImageNotPulled:
        return False
    return True


class _LayerReport:
    """Reports each change of a layer's state, and its bytes at most ten times a second."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._last: dict[str, tuple[LayerState, float]] = {}

    def __call__(self, layer: LayerProgress) -> None:
        state, reported_at = self._last.get(layer.digest, (None, 0.0))
        now = time.monotonic()
        if layer.state is state and now < reported_at + _REPORT_SECONDS:
            return
        self._last[layer.digest] = (layer.state, now)
        self._report(
            {
                "type": "layer",
                "digest": layer.digest,
                "state": layer.state.value,
                "done": layer.done,
                "total": layer.total,
            }
        )


def _find_in_layouts(image: str, layouts: Iterable[str]) -> str:
    """Return the image's name in the first layout that contains it, or an empty string."""
    if parse_layout_name(image):
        return image
    reference = parse_reference(image)
    for path in layouts:
        layout = open_layout(Path(path))
        try:
            if layout.find(reference):
                return f"oci:{path}:{image}"
        finally:
            layout.close()
    return ""
