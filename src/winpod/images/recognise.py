"""Which layers of an image are Microsoft's base, for which the Wine base stands in.

The base is the lowest layer, or the lowest two: the image as released, and an update of it. They
are recognised by what they are: by how the config says they were made, by being kept elsewhere
than in registries, and else by what is in them. Digests and media types of their own say nothing,
because bases are pushed again and again, and as ordinary layers since 2023.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence

from winpod.images.manifests import Descriptor

FOREIGN_TYPES = frozenset(
    {
        "application/vnd.docker.image.rootfs.foreign.diff.tar",
        "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip",
        "application/vnd.oci.image.layer.nondistributable.v1.tar",
        "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip",
        "application/vnd.oci.image.layer.nondistributable.v1.tar+zstd",
    }
)
MAX_BASE_LAYERS = 2

_RELEASED = re.compile(r"Apply image\b")
_UPDATED = re.compile(r"Install update\b")

Peek = Callable[[Descriptor], Awaitable[bool]]
"""Looks at the first entries of a layer: whether it is one of a Windows base."""


async def count_base_layers(
    layers: Sequence[Descriptor], made_by: Sequence[str], peek: Peek
) -> int:
    """How many of the lowest layers are the base: none, one or two."""
    told = max(_told_by_history(made_by), _told_by_place(layers))
    if told:
        return min(told, len(layers))
    count = 0
    for layer in layers[:MAX_BASE_LAYERS]:
        if not await peek(layer):
            break
        count += 1
    return count


def _told_by_history(made_by: Sequence[str]) -> int:
    if not made_by or not _RELEASED.match(made_by[0]):
        return 0
    return 2 if len(made_by) > 1 and _UPDATED.match(made_by[1]) else 1


def _told_by_place(layers: Sequence[Descriptor]) -> int:
    count = 0
    for layer in layers[:MAX_BASE_LAYERS]:
        if layer.media_type not in FOREIGN_TYPES or not layer.urls:
            break
        count += 1
    return count
