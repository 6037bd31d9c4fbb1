"""The layers of one image stacked for overlayfs, which tells `App` and `app` apart.

Every layer is spelled by itself. Where one spells a name otherwise than a layer below it, it is
replaced in the stack by a copy with the lower spelling, made of hard links. Only directories that
two layers share are looked at, and the targets of links.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from winpod.images.layers.links import relative_link
from winpod.images.layers.names import name_key
from winpod.images.layers.tree import DOS_ATTRIBUTES, FILES, OPAQUE
from winpod.images.layers.unpack import RECORD

Names = tuple[str, ...]
"""Names from the root of a tree."""


@dataclass(slots=True, eq=False)
class _Stacked:
    """One tree of the stack, and what of it is spelled otherwise in the stack."""

    root: Path
    links: dict[Names, Names] = field(default_factory=dict)
    renames: dict[Names, str] = field(default_factory=dict)
    targets: dict[Names, Names] = field(default_factory=dict)
    _listed: dict[Names, list[tuple[str, bool]]] = field(default_factory=dict)

    def list(self, directory: Names) -> Sequence[tuple[str, bool]]:
        """The names in a directory, and whether each is a directory."""
        if directory not in self._listed:
            with os.scandir(self.root.joinpath(*directory)) as found:
                self._listed[directory] = [(e.name, e.is_dir(follow_symlinks=False)) for e in found]
        return self._listed[directory]

    def spell(self, path: Names) -> Names:
        """A path of this tree as the stack spells it."""
        return tuple(self.renames.get(path[: end + 1], path[end]) for end in range(len(path)))


def lower_directories(
    layers: Sequence[Path], scratch: Path, *, base: Path | None = None
) -> list[Path]:
    """The lower directories for overlayfs, topmost first.

    `layers` are directories of unpacked layers in the order of the manifest, lowest first; `base`
    is a C: below them all. Corrected copies are made in `scratch`, an empty directory on the same
    filesystem.
    """
    stack = [_Stacked(base)] if base else []
    stack += [_Stacked(layer / FILES, _links_of(layer)) for layer in layers]
    _compare_names(stack)
    _compare_targets(stack)
    found = []
    for place, one in enumerate(stack):
        root = one.root
        if one.renames or one.targets:
            root = scratch / str(place)
            _copy(one, root)
        found.append(root)
    return found[::-1]


def _links_of(layer: Path) -> dict[Names, Names]:
    links = json.loads((layer / RECORD).read_bytes())["links"]
    return {_split(path): _split(target) for path, target in links}


def _split(path: str) -> Names:
    return tuple(path.split("/")) if path else ()


def _compare_names(stack: Sequence[_Stacked]) -> None:
    """Find the names that a lower tree spells otherwise, in directories that trees share."""
    waiting: list[list[tuple[_Stacked, Names]]] = [[(one, ()) for one in stack]]
    while waiting:
        spelled: dict[str, str] = {}
        directories: dict[str, list[tuple[_Stacked, Names]]] = {}
        for one, directory in waiting.pop():
            for name, is_directory in one.list(directory):
                path, key = (*directory, name), name_key(name)
                if spelled.setdefault(key, name) != name and one is not stack[0]:
                    one.renames[path] = spelled[key]
                if is_directory:
                    directories.setdefault(key, []).append((one, path))
        waiting += [shared for shared in directories.values() if len(shared) > 1]


def _compare_targets(stack: Sequence[_Stacked]) -> None:
    """Find the links whose target is spelled otherwise where it is."""
    for one in stack:
        for path, target in one.links.items():
            found = _find(stack, target)
            if found != target:
                one.targets[path] = found


def _find(stack: Sequence[_Stacked], target: Names) -> Names:
    """A path as the stack spells it, as far as the stack has it."""
    places: list[tuple[_Stacked, Names]] = [(one, ()) for one in stack]
    spelled: Names = ()
    for step in target:
        found = [
            (one, (*directory, name), is_directory)
            for one, directory in places
            for name, is_directory in one.list(directory)
            if name_key(name) == name_key(step)
        ]
        spelled += (found[0][1][-1] if found else step,)
        places = [(one, path) for one, path, is_directory in found if is_directory]
    return spelled


def _copy(one: _Stacked, target: Path) -> None:
    waiting: list[Names] = [()]
    made: list[tuple[Path, Path]] = []
    while waiting:
        directory = waiting.pop()
        origin, copy = one.root.joinpath(*directory), target.joinpath(*one.spell(directory))
        copy.mkdir(0o755, parents=not directory)
        made.append((origin, copy))
        for name, is_directory in one.list(directory):
            path = (*directory, name)
            place = copy / one.renames.get(path, name)
            if is_directory:
                waiting.append(path)
            elif path in one.targets:
                place.symlink_to(relative_link(one.targets[path], one.spell(directory)))
            else:
                os.link(origin / name, place, follow_symlinks=False)
    for origin, copy in made:
        _copy_description(origin, copy)


def _copy_description(origin: Path, copy: Path) -> None:
    for name in {OPAQUE, DOS_ATTRIBUTES}.intersection(os.listxattr(origin)):
        os.setxattr(copy, name, os.getxattr(origin, name))
    status = origin.stat()
    copy.chmod(status.st_mode & 0o777)
    os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))
