r"""Whether a layer is one of Microsoft's base layers, told from its leading entries.

A base layer is a Windows: it has the hives, `ntdll.dll`, the virtual machine that Hyper-V isolation
boots, and the old names of directories that only setup makes. A layer above it has none of them.
"""

from __future__ import annotations

import re

from winpod.images.errors import BadContent
from winpod.images.layers.streams import decompress_head
from winpod.images.layers.tar import Entry, Kind, Source, read_entries

_SIGNS = re.compile(
    r"UtilityVM(?:/.*)?"
    r"|Hives/(?:DefaultUser|Sam|Security|Software|System)_Base"
    r"|Files/Windows/System32/(?:config/(?:DEFAULT|SAM|SECURITY|SOFTWARE|SYSTEM)|ntdll\.dll)",
    re.IGNORECASE,
)
_SETUP_LINK = re.compile(r"Files/Documents and Settings", re.IGNORECASE)


def peek_base(head: bytes, compression: str) -> bool:
    """Whether the first bytes of a layer are those of a base layer."""
    try:
        source = Source(decompress_head(head, compression))
        return any(map(_is_sign, read_entries(source)))
    except BadContent:
        return False


def _is_sign(entry: Entry) -> bool:
    name = entry.name.removeprefix("./").rstrip("/")
    if entry.kind is Kind.LINK:
        return _SETUP_LINK.fullmatch(name) is not None
    return _SIGNS.fullmatch(name) is not None
