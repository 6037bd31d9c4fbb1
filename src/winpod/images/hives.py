r"""The registry that an image's build left in its layers, brought into a container's registry.

A layer of a Windows image has in `Hives/` what changed in each hive of the registry. A delta is an
ordinary hive in which keys and values can be marked: as deleted, or as replacing what lies below
(`docs/registry.md` says where that is known from, and what of it no test has seen). Layers are
applied from the lowest up. All hives are read before anything is changed, so a damaged one changes
nothing.
"""

from __future__ import annotations

import logging
import os
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from winpod.images.errors import BadContent
from winpod.images.hive_reader import Hive, KeyDelta, Mark, read_hive
from winpod.images.hive_rules import Rule, Taking, holds_wines_keys, rule_for
from winpod.images.wine_registry import (
    FILES,
    Kind,
    RegistryFile,
    Value,
    WineRegistry,
    fold,
    with_build,
)
from winpod.windows.builds import Build

_log = logging.getLogger(__name__)

_LINK = "links between keys are Wine's"
_DRIVER = "a container has no kernel to load a driver into"
_PROCESSOR = "the processors are those of the machine that it runs on"
_HOLDS_WINES = "it holds keys that are Wine's"
_ROOT_VALUES = "Wine has no place for them"

_PROCESSOR_VALUES = {
    "NUMBER_OF_PROCESSORS",
    "PROCESSOR_ARCHITECTURE",
    "PROCESSOR_IDENTIFIER",
    "PROCESSOR_LEVEL",
    "PROCESSOR_REVISION",
}
_ENVIRONMENT = r"System\ControlSet001\Control\Session Manager\Environment"
_SERVICES = r"System\ControlSet001\Services"
_DRIVER_TYPES = 0x1 | 0x2 | 0x4 | 0x8

_ROOTS = {"SYSTEM_DELTA": "System", "SOFTWARE_DELTA": "Software", "DEFAULTUSER_DELTA": "User"}
_LEFT_OUT = {
    "SAM_DELTA": "the accounts of an image do not exist under Wine",
    "SECURITY_DELTA": "the security policy of an image does not exist under Wine",
}


def compose_registry(prefix: Path, build: Build, layers: Sequence[Path]) -> WineRegistry:
    """The registry of a container, from a base's prefix.

    `layers` are the unpacked layers of its image, the lowest first.
    """
    registry = _read_once(prefix, _state_of(prefix)).copy()
    for note in apply_hives(registry, [layer / "Hives" for layer in layers]):
        _log.info("%s", note)
    return with_build(registry, build)


def apply_hives(registry: WineRegistry, hives: Sequence[Path]) -> list[str]:
    """Applies the deltas in the `Hives` directories of layers, the lowest layer first.

    Returns sentences that say what was left out, and why.
    """
    notes: list[str] = []
    deltas: list[tuple[str, str, Hive]] = []
    for directory in hives:
        for name, data in _hive_files(directory):
            where = f"{name} of layer {directory.parent.name}"
            if reason := _LEFT_OUT.get(name.upper()):
                notes.append(f"{where} was left out: {reason}.")
            elif root := _ROOTS.get(name.upper()):
                deltas.append((where, root, read_hive(data, where)))
    base = registry.copy()
    for where, root, hive in deltas:
        if not hive.was_closed:
            notes.append(f"{where} was not closed by Windows, and may lack its last changes.")
        left_out: Counter[tuple[str, str]] = Counter()
        for file, original in _targets(registry, base, root):
            left_out |= _Merge(file, original, root).apply(hive)
        notes += [
            f"{where}: {count} of {key} left out: {reason}."
            for (key, reason), count in sorted(left_out.items())
        ]
    return notes


def _state_of(prefix: Path) -> tuple[tuple[int, int, int], ...]:
    """Another one if a file of the prefix was written since."""
    try:
        states = [(prefix / name).stat() for name in FILES]
    except OSError:
        return ()
    return tuple((one.st_ino, one.st_size, one.st_mtime_ns) for one in states)


@lru_cache(maxsize=4)
def _read_once(prefix: Path, _state: tuple[tuple[int, int, int], ...]) -> WineRegistry:
    """A base's prefix does not change, and to read it takes ten times as long as to edit it."""
    return WineRegistry.read(prefix)


class _Merge:
    """One delta on its way into one file of the registry."""

    def __init__(self, file: RegistryFile, original: RegistryFile, root: str) -> None:
        self._file = file
        self._original = original
        self._root = root
        self._left_out: Counter[tuple[str, str]] = Counter()

    def apply(self, hive: Hive) -> Counter[tuple[str, str]]:
        drivers = {fold(path) for path in self._drivers(hive)}
        for delta in hive.keys:
            key = self._file.resolve(
                _joined("" if self._root == "User" else self._root, delta.path)
            )
            known = _joined(self._root, key) if self._root == "User" else key
            service = fold("\\".join(known.split("\\")[:4]))
            if not delta.path:
                self._leave("the values of its root", _ROOT_VALUES, len(delta.values))
            elif delta.is_link:
                self._leave("the links", _LINK)
            elif service in drivers:
                self._leave(_SERVICES, _DRIVER)
            else:
                self._apply_key(key, known, delta)
        return self._left_out

    def _drivers(self, hive: Hive) -> Iterator[str]:
        for delta in hive.keys if self._root == "System" else ():
            key = self._file.resolve(_joined(self._root, delta.path))
            parent = key.rpartition("\\")[0]
            if fold(parent) == fold(_SERVICES) and any(map(_is_driver, delta.values.items())):
                yield key

    def _apply_key(self, key: str, known: str, delta: KeyDelta) -> None:
        rule = rule_for(known)
        if rule.taking is Taking.NOTHING:
            self._leave(rule.key, rule.reason, int(delta.is_change))
            return
        mark = delta.mark
        has_own = rule.taking is Taking.NEW and self._original.has_key(key)
        if mark is not Mark.MERGED and (has_own or holds_wines_keys(known)):
            self._leave(rule.key, rule.reason or _HOLDS_WINES)
            if mark is Mark.DELETED:
                return
        elif mark in (Mark.DELETED, Mark.REPLACES_TREE):
            self._file.remove_key(key)
        elif mark is Mark.REPLACES_VALUES:
            self._file.remove_values(key, *self._file.values(key))
        if mark is Mark.DELETED:
            return
        kept = {fold(name) for name in self._original.values(key)} if has_own else set()
        if fold(key) == fold(_ENVIRONMENT):
            kept, rule = _PROCESSOR_VALUES, Rule(_ENVIRONMENT, Taking.NEW, _PROCESSOR)
        if delta.deleted_values:
            self._file.remove_values(key, *(n for n in delta.deleted_values if fold(n) not in kept))
        taken = {name: value for name, value in delta.values.items() if fold(name) not in kept}
        self._leave(rule.key, rule.reason, len(delta.values) - len(taken))
        self._file.set(key, taken)

    def _leave(self, key: str, reason: str, count: int = 1) -> None:
        if count:
            self._left_out[key, reason] += count


def _is_driver(item: tuple[str, Value]) -> bool:
    name, value = item
    is_type = fold(name) == "TYPE" and value.kind == Kind.DWORD
    return is_type and bool(int.from_bytes(value.data[:4], "little") & _DRIVER_TYPES)


def _targets(
    registry: WineRegistry, base: WineRegistry, root: str
) -> tuple[tuple[RegistryFile, RegistryFile], ...]:
    if root == "User":
        return (registry.default_user, base.default_user), (registry.user, base.user)
    return ((registry.system, base.system),)


def _hive_files(directory: Path) -> Iterator[tuple[str, bytes]]:
    """The deltas in a directory that came with an image: no link leads out of it."""
    try:
        place = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return
    except OSError as error:
        raise BadContent(f"{directory} cannot be read: {error.strerror}.") from None
    try:
        for name in sorted(os.listdir(place)):  # noqa: PTH208 - it is a descriptor
            if name.upper() in _ROOTS | _LEFT_OUT:
                yield name, _read(name, place, directory)
    finally:
        os.close(place)


def _read(name: str, place: int, directory: Path) -> bytes:
    try:
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=place)
        with open(file, "rb") as stream:  # noqa: PTH123 - it is a descriptor
            if stat.S_ISREG(os.fstat(file).st_mode):
                return stream.read()
    except OSError as error:
        raise BadContent(f"{directory / name} cannot be read: {error.strerror}.") from None
    raise BadContent(f"{directory / name} is not a file.")


def _joined(*parts: str) -> str:
    return "\\".join(part for part in parts if part)
