"""Names in layers as Windows compares them, and the spelling that C: already has for them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from winpod.windows.paths import collision_key


def name_key(name: str) -> str:
    return name.upper() if name.isascii() else collision_key(name)


@dataclass(slots=True)
class NameMap:
    """A name as the base's C: spells it, and those beneath it by their key.

    Overlayfs merges directories only where they are spelled alike, so a layer's `Windows/System32`
    is unpacked as `windows/system32` where that is what the base has.
    """

    name: str = ""
    beneath: dict[str, NameMap] = field(default_factory=dict)

    @classmethod
    def of(cls, drive_c: Path) -> NameMap:
        root = cls()
        waiting = [(os.fspath(drive_c), root)]
        while waiting:
            path, names = waiting.pop()
            with os.scandir(path) as found:
                for one in found:
                    known = names.beneath.setdefault(name_key(one.name), cls(one.name))
                    if one.is_dir(follow_symlinks=False):
                        waiting.append((one.path, known))
        return root
