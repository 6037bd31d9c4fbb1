"""How much a layer may be, and what came of one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Limits:
    size: int = 64 << 30
    """Bytes of the archive, uncompressed."""
    entries: int = 500_000
    depth: int = 128
    path: int = 3500
    """Bytes of a path in C:, so that with its place on this machine it can still be opened."""


@dataclass(frozen=True, slots=True)
class UnpackedLayer:
    diff_id: str
    size: int
    """Bytes of its files."""
    entries: int
    has_hives: bool
    left_out: Mapping[str, int] = field(default_factory=dict)
    """What of it means nothing here, and how often it was there."""
