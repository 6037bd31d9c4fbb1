r"""Where the links of Windows lead, as links that Unix follows to the same place inside C:.

A target is `C:\x`, `\??\C:\x`, `\x` or relative, with either slash. Windows takes `..` away before
it follows anything, and `..` at the root stays there: so every target is a plain list of names from
the root of C:, and the link that is made climbs no higher than that root.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_PREFIX = re.compile(r"[\\/](?:\?\?|[\\/][?.])[\\/]")
_DRIVE = re.compile(r"([A-Za-z]):(?=[\\/]|$)")
_SLASHES = re.compile(r"[\\/]+")


def target_of(link: str, directory: Sequence[str]) -> tuple[str, ...] | None:
    """The names from the root of C: to where a link leads, None where it leads out of C:."""
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
    """The text of a link in a directory that leads to a target, both counted from the root."""
    shared = 0
    while shared < min(len(target), len(directory)) and target[shared] == directory[shared]:
        shared += 1
    steps = [".."] * (len(directory) - shared) + list(target[shared:])
    return "/".join(steps) or "."
