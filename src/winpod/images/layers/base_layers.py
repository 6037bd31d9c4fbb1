"""Recognition of Microsoft's base layers, which the Wine base replaces.

The base is the lowest layer, or the lowest two: the release and an update of it. It is recognised
by the history in the config, by being a foreign layer, or else by its first entries: a base layer
has the hives, `ntdll.dll`, the utility VM of Hyper-V isolation, and legacy links that only Windows
setup creates. Digests and media types alone are not sufficient, because bases are pushed
repeatedly, and as ordinary layers since 2023.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence

from winpod.images.errors import CorruptContent
from winpod.images.layers.tar import EntryType, TarEntry, TarStream, decompress_head, read_entries
from winpod.images.manifests import Descriptor

_BASE_ENTRY = re.compile(
    r"UtilityVM(?:/.*)?"
    r"|Hives/(?:DefaultUser|Sam|Security|Software|System)_Base"
    r"|Files/Windows/System32/(?:config/(?:DEFAULT|SAM|SECURITY|SOFTWARE|SYSTEM)|ntdll\.dll)",
    re.IGNORECASE,
)
_SETUP_LINK = re.compile(r"Files/Documents and Settings", re.IGNORECASE)


def is_base_layer(head: bytes, compression: str) -> bool:
    """Return whether the first bytes of a layer contain an entry of a base layer."""
    try:
        source = TarStream(decompress_head(head, compression))
        return any(map(_is_base_entry, read_entries(source)))
    except CorruptContent:
        return False


def _is_base_entry(entry: TarEntry) -> bool:
    name = entry.name.removeprefix("./").rstrip("/")
    if entry.kind is EntryType.LINK:
        return _SETUP_LINK.fullmatch(name) is not None
    return _BASE_ENTRY.fullmatch(name) is not None


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

_RELEASE_STEP = re.compile(r"Apply image\b")
_UPDATE_STEP = re.compile(r"Install update\b")

Peek = Callable[[Descriptor], Awaitable[bool]]
"""Downloads the start of a layer and returns whether it is a base layer."""


async def count_base_layers(
    layers: Sequence[Descriptor], made_by: Sequence[str], peek: Peek
) -> int:
    """Return how many of the lowest layers are the base: none, one or two."""
    declared = max(_count_by_history(made_by), _count_foreign(layers))
    if declared:
        return min(declared, len(layers))
    count = 0
    for layer in layers[:MAX_BASE_LAYERS]:
        if not await peek(layer):
            break
        count += 1
    return count


def _count_by_history(made_by: Sequence[str]) -> int:
    if not made_by or not _RELEASE_STEP.match(made_by[0]):
        return 0
    return 2 if len(made_by) > 1 and _UPDATE_STEP.match(made_by[1]) else 1


def _count_foreign(layers: Sequence[Descriptor]) -> int:
    count = 0
    for layer in layers[:MAX_BASE_LAYERS]:
        if layer.media_type not in FOREIGN_TYPES or not layer.urls:
            break
        count += 1
    return count
