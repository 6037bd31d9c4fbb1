"""Case-insensitive names in layers, and Windows link targets as relative Unix links inside C:.

A Windows target is `C:\\x`, `\\??\\C:\\x`, `\\x` or relative, with either slash. Windows resolves
`..` textually before following links, and `..` at the root stays at the root. So every target is a
list of names from the root of C:, and the resulting link never points above that root.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from winpod.windows.paths import casefold_name

_PREFIX = re.compile(r"[\\/](?:\?\?|[\\/][?.])[\\/]")
_DRIVE = re.compile(r"([A-Za-z]):(?=[\\/]|$)")
_SLASHES = re.compile(r"[\\/]+")


def resolve_link(link: str, directory: Sequence[str]) -> tuple[str, ...] | None:
    """Return the target of a link as names from the root of C:, or None if outside C:."""
    prefix = _PREFIX.match(link)
    rest = link[prefix.end() :] if prefix else link
    drive = _DRIVE.match(rest)
    if drive:
        if drive[1] not in "Cc":
            return None
        rest = rest[drive.end() :]
    elif prefix or link.startswith("\\\\") or link.startswith("//"):
        return None
    is_absolute = bool(drive) or rest.startswith(("\\", "/"))
    steps = [] if is_absolute else list(directory)
    for step in _SLASHES.split(rest):
        if step == "..":
            del steps[-1:]
        elif step not in ("", "."):
            steps.append(step)
    return tuple(steps)


def relative_link(target: Sequence[str], directory: Sequence[str]) -> str:
    """Return the relative link text from a directory to a target, both given from the root."""
    shared = 0
    while shared < min(len(target), len(directory)) and target[shared] == directory[shared]:
        shared += 1
    steps = [".."] * (len(directory) - shared) + list(target[shared:])
    return "/".join(steps) or "."


def name_key(name: str) -> str:
    return name.upper() if name.isascii() else casefold_name(name)


@dataclass(slots=True)
class NameMap:
    """A name in the base's spelling, with its children by case-insensitive key.

    Overlayfs merges only directories with identical names, so `Windows/System32` of a layer is
    unpacked as `windows/system32` if the base spells it so.
    """

    name: str = ""
    children: dict[str, NameMap] = field(default_factory=dict)

    @classmethod
    def read_drive(cls, drive_c: Path) -> NameMap:
        root = cls()
        pending = [(os.fspath(drive_c), root)]
        while pending:
            path, names = pending.pop()
            with os.scandir(path) as entries:
                for entry in entries:
                    child = names.children.setdefault(name_key(entry.name), cls(entry.name))
                    if entry.is_dir(follow_symlinks=False):
                        pending.append((entry.path, child))
        return root
