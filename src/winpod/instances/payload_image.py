"""A payload that comes as an image: what `winpod image pack` made of a payload's directory.

It is pulled into a store like every image, and is read where the store has unpacked it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from winpod.images.credentials import CredentialSource
from winpod.images.layers.tree import FILES
from winpod.images.pull import pull
from winpod.images.store import Store
from winpod.instances.errors import BadPayload
from winpod.instances.payload import LIST, Payload, read_payload
from winpod.windows.builds import DEFAULT_HOST
from winpod.windows.handlers import PROCESS


async def pull_payload(
    image: str, root: Path, credentials: Sequence[CredentialSource] = ()
) -> Payload:
    """`root` is that of the store, which keeps the files for as long as it keeps the image."""
    with Store(root) as store:
        pulled = await pull(store, image, PROCESS, DEFAULT_HOST, credentials=credentials)
        return await asyncio.to_thread(_read, image, store.layers_of(pulled))


def _read(image: str, layers: Sequence[Path]) -> Payload:
    for layer in reversed(layers):
        if (layer / FILES / LIST).is_file():
            return read_payload(layer / FILES)
    raise BadPayload(
        f"the image {image} has no {LIST} in it.",
        "Make a payload with `winpod instance payload`, and pack it with `winpod image pack`.",
    )
