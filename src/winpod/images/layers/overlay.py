"""Stack the layers of an image for overlayfs, which is case-sensitive.

If a layer spells a name differently than a layer below it, it is replaced in the stack by a
hard-linked copy with the lower spelling. Only directories that several layers share, and link
targets, are compared.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from winpod.images.layers.names import name_key, relative_link
from winpod.images.layers.tree import DOS_ATTRIBUTES, FILES
from winpod.images.layers.unpack import RECORD_FILE
from winpod.images.layers.whiteouts import OPAQUE_ATTRIBUTE

Names = tuple[str, ...]
"""A path as names from the root of a tree."""


@dataclass(slots=True, eq=False)
class _StackedLayer:
    """One tree of the stack, with the names and link targets to respell."""

    root: Path
    links: dict[Names, Names] = field(default_factory=dict)
    renames: dict[Names, str] = field(default_factory=dict)
    targets: dict[Names, Names] = field(default_factory=dict)
    _listings: dict[Names, list[tuple[str, bool]]] = field(default_factory=dict)

    def list(self, directory: Names) -> Sequence[tuple[str, bool]]:
        """Return the names in a directory, each with whether it is a directory."""
        if directory not in self._listings:
            with os.scandir(self.root.joinpath(*directory)) as entries:
                self._listings[directory] = [
                    (entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries
                ]
        return self._listings[directory]

    def translate_path(self, path: Names) -> Names:
        """Return a path of this tree in the spelling of the stack."""
        return tuple(self.renames.get(path[: end + 1], path[end]) for end in range(len(path)))


def overlay_lowerdirs(
    layers: Sequence[Path], scratch: Path, *, base: Path | None = None
) -> list[Path]:
    """Return the lowerdirs for overlayfs, topmost first.

    `layers` are directories of unpacked layers in the order of the manifest, lowest first; `base`
    is drive C: of the base below them. Respelled copies are created in `scratch`, an empty
    directory on the same filesystem.
    """
    stack = [_StackedLayer(base)] if base else []
    stack += [_StackedLayer(path / FILES, _read_links(path)) for path in layers]
    _compare_names(stack)
    _compare_targets(stack)
    roots = []
    for position, layer in enumerate(stack):
        root = layer.root
        if layer.renames or layer.targets:
            root = scratch / str(position)
            _copy(layer, root)
        roots.append(root)
    return roots[::-1]


def _read_links(layer: Path) -> dict[Names, Names]:
    links = json.loads((layer / RECORD_FILE).read_bytes())["links"]
    return {_split(path): _split(target) for path, target in links}


def _split(path: str) -> Names:
    return tuple(path.split("/")) if path else ()


def _compare_names(stack: Sequence[_StackedLayer]) -> None:
    """Record names that a lower tree spells differently, in directories that trees share."""
    pending: list[list[tuple[_StackedLayer, Names]]] = [[(layer, ()) for layer in stack]]
    while pending:
        spelled: dict[str, str] = {}
        directories: dict[str, list[tuple[_StackedLayer, Names]]] = {}
        for layer, directory in pending.pop():
            for name, is_directory in layer.list(directory):
                path, key = (*directory, name), name_key(name)
                if spelled.setdefault(key, name) != name and layer is not stack[0]:
                    layer.renames[path] = spelled[key]
                if is_directory:
                    directories.setdefault(key, []).append((layer, path))
        pending += [shared for shared in directories.values() if len(shared) > 1]


def _compare_targets(stack: Sequence[_StackedLayer]) -> None:
    """Record links whose target is spelled differently in the stack."""
    for layer in stack:
        for path, target in layer.links.items():
            actual = _respell(stack, target)
            if actual != target:
                layer.targets[path] = actual


def _respell(stack: Sequence[_StackedLayer], target: Names) -> Names:
    """Return a path in the spelling of the stack, as far as the stack has it."""
    directories: list[tuple[_StackedLayer, Names]] = [(layer, ()) for layer in stack]
    spelled: Names = ()
    for step in target:
        matches = [
            (layer, (*directory, name), is_directory)
            for layer, directory in directories
            for name, is_directory in layer.list(directory)
            if name_key(name) == name_key(step)
        ]
        spelled += (matches[0][1][-1] if matches else step,)
        directories = [(layer, path) for layer, path, is_directory in matches if is_directory]
    return spelled


def _copy(layer: _StackedLayer, target: Path) -> None:
    pending: list[Names] = [()]
    copied: list[tuple[Path, Path]] = []
    while pending:
        directory = pending.pop()
        origin, copy = (
            layer.root.joinpath(*directory),
            target.joinpath(*layer.translate_path(directory)),
        )
        copy.mkdir(0o755, parents=not directory)
        copied.append((origin, copy))
        for name, is_directory in layer.list(directory):
            path = (*directory, name)
            destination = copy / layer.renames.get(path, name)
            if is_directory:
                pending.append(path)
            elif path in layer.targets:
                text = relative_link(layer.targets[path], layer.translate_path(directory))
                destination.symlink_to(text)
            else:
                os.link(origin / name, destination, follow_symlinks=False)
    for origin, copy in copied:
        _copy_metadata(origin, copy)


def _copy_metadata(origin: Path, copy: Path) -> None:
    for name in {OPAQUE_ATTRIBUTE, DOS_ATTRIBUTES}.intersection(os.listxattr(origin)):
        os.setxattr(copy, name, os.getxattr(origin, name))
    status = origin.stat()
    copy.chmod(status.st_mode & 0o777)
    os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))
