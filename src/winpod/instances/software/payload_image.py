"""A payload out of an image: what `winpod image pack` made of a payload's directory.

It is pulled like every image, and its files are laid into a directory, which is then the payload.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path

from winpod.images.credentials import CredentialSource
from winpod.images.layers.tree import FILES
from winpod.images.pull import pull
from winpod.images.store import Store
from winpod.instances.errors import BadPayload
from winpod.instances.software.payload import LIST, Payload, read_payload
from winpod.windows.builds import DEFAULT_HOST
from winpod.windows.errors import InvalidInput
from winpod.windows.handlers import PROCESS


async def fetch_payload(
    image: str, directory: Path, root: Path, credentials: Sequence[CredentialSource] = ()
) -> Payload:
    """Into a new directory; `root` is that of the store that it is pulled into."""
    with Store(root) as store:
        pulled = await pull(store, image, PROCESS, DEFAULT_HOST, credentials=credentials)
        return await asyncio.to_thread(_copy, image, store.layers_of(pulled), directory)


def _copy(image: str, layers: Sequence[Path], directory: Path) -> Payload:
    """The list is copied last: without it, a copy that was cut short is no payload."""
    layer = next((one / FILES for one in layers if (one / FILES / LIST).is_file()), None)
    if layer is None:
        raise BadPayload(
            f"the image {image} has no {LIST} in it.",
            "Make a payload with `winpod instance payload`, and pack it with `winpod image pack`.",
        )
    if (directory / LIST).exists():
        raise InvalidInput(f"{directory} has a payload already.", "Name another directory.")
    for file in read_payload(layer).files.values():
        target = directory / file.source.relative_to(layer)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file.source, target)
    shutil.copyfile(layer / LIST, directory / LIST)
    return read_payload(directory)
