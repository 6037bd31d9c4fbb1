r"""Import the registry hives of image layers into a container's Wine registry.

`Hives/` of a layer has a delta per registry hive: an ordinary hive whose keys and values can be
marked as deleted or as replacing those below (`docs/windows-registry.md`: sources, untested parts).
Layers are applied from the lowest up. All hives are read before the first change, so a damaged one
changes nothing.

libregf parses the hives: it is maintained, fuzzed, rejects damaged files and is twenty times faster
than regipy, which ignores damage and does not return the bytes of values. (python-registry: last
release in 2019; dissect.regf: AGPL; yarp: unpublished.) It ignores the delta marks and returns
values of one to three bytes wrongly, so the headers of keys and values are parsed here.
"""

from __future__ import annotations

import io
import logging
import os
import stat
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyregf  # type: ignore[import-not-found]

from winpod.images.errors import CorruptContent
from winpod.images.winreg.hive_rules import HiveRule, ImportPolicy, contains_wine_keys, rule_for
from winpod.images.winreg.wine_registry import (
    FILES,
    MAX_KEY_NAME,
    MAX_VALUE_NAME,
    RegistryFile,
    RegistryValue,
    ValueType,
    WineRegistry,
    casefold_key,
    with_build,
)
from winpod.windows.builds import Build

_MAX_DEPTH = 512  # limit of key nesting in Windows
_MAX_PATHS = 32 << 20  # characters in the paths of all keys; a full Windows has about 20 million


class DeltaKind(IntEnum):
    """How a key of a delta relates to the same key in the layers below it."""

    MERGED = 0
    DELETED = 1
    REPLACES_VALUES = 2
    REPLACES_TREE = 3


@dataclass(frozen=True, slots=True)
class KeyDelta:
    r"""The delta of one key; its path is relative to the hive's root: `ControlSet001\Control`."""

    path: str
    kind: DeltaKind
    is_link: bool
    values: dict[str, RegistryValue]
    deleted_values: tuple[str, ...]

    @property
    def is_change(self) -> bool:
        """False for a key that is only listed because of its subkeys, or is empty."""
        return self.kind is not DeltaKind.MERGED or bool(self.values or self.deleted_values)


@dataclass(frozen=True, slots=True)
class Hive:
    """The keys of a hive, each before its subkeys."""

    keys: tuple[KeyDelta, ...]
    was_closed: bool


def read_hive(data: bytes, where: str = "The hive") -> Hive:
    try:
        reader = pyregf.file()
        reader.open_file_object(io.BytesIO(data))
        root = reader.get_root_key()
        if root is None:
            raise ValueError("it has no root key")
        keys = tuple(_HiveWalker(data).keys(root))
    except (OSError, ValueError, struct.error, MemoryError) as error:
        detail = str(error) if type(error) is ValueError else "it is damaged"
        raise CorruptContent(
            f"{where} is not a readable registry hive: {detail}.", "Pull the image again."
        ) from None
    first, second = struct.unpack_from("<II", data, 4)
    return Hive(keys, was_closed=first == second)


class _HiveWalker:
    """Walks an untrusted hive: rejects cycles, and more content than fits in the file."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._budget = len(data)
        self._paths = 0
        self._seen: set[int] = set()

    def keys(self, root: Any) -> Iterator[KeyDelta]:
        pending = [(root, "", 0)]
        while pending:
            key, parent, depth = pending.pop()
            if key.offset in self._seen:
                raise ValueError("a key occurs twice")
            if depth > _MAX_DEPTH:
                raise ValueError(f"keys are nested deeper than {_MAX_DEPTH}")
            self._seen.add(key.offset)
            delta = self._key(key, parent, depth)
            yield delta
            children = [key.get_sub_key(index) for index in range(key.number_of_sub_keys)]
            pending += [(child, delta.path, depth + 1) for child in reversed(children)]

    def _key(self, key: Any, parent: str, depth: int) -> KeyDelta:
        flags, layering = struct.unpack_from("<2xH9xB", self._data, key.offset)
        (length,) = struct.unpack_from("<H", self._data, key.offset + 72)
        name = self._name(key.offset + 76, length, is_latin1=bool(flags & 0x20))
        self._spend(76)
        if depth and not (0 < _units(name) <= MAX_KEY_NAME and "\\" not in name and name[0] > "\0"):
            raise ValueError("a key has a name that Windows does not allow")
        path = f"{parent}\\{name}" if depth > 1 else name if depth else ""
        self._paths += len(path)
        if self._paths > _MAX_PATHS:
            raise ValueError("the paths of its keys are too long")
        values: dict[str, RegistryValue] = {}
        deleted: list[str] = []
        for index in range(key.number_of_values):
            value_name, value = self._value(key.get_value(index))
            if value is None:
                deleted.append(value_name)
            else:
                values[value_name] = value
        return KeyDelta(path, DeltaKind(layering & 3), bool(flags & 0x10), values, tuple(deleted))

    def _value(self, value: Any) -> tuple[str, RegistryValue | None]:
        length, size, kind, flags = struct.unpack_from("<2xHI4xIH", self._data, value.offset)
        name = self._name(value.offset + 20, length, is_latin1=bool(flags & 0x1))
        self._spend(20)
        if _units(name) > MAX_VALUE_NAME:
            raise ValueError("a value has a name that Windows does not allow")
        if flags & 0x2:
            return name, None
        if size & 0x80000000:
            size &= 0x7FFFFFFF
            if size > 4:
                raise ValueError("an inline value is longer than 4 bytes")
            return name, RegistryValue(kind, self._data[value.offset + 8 : value.offset + 8 + size])
        self._spend(size)
        content = value.data or b""
        if len(content) != size:
            raise ValueError("a value is shorter than its declared size")
        return name, RegistryValue(kind, content)

    def _name(self, offset: int, length: int, *, is_latin1: bool) -> str:
        data = self._data[offset : offset + length]
        return data.decode("latin-1") if is_latin1 else data.decode("utf-16-le", "surrogatepass")

    def _spend(self, size: int) -> None:
        self._budget -= size
        if self._budget < 0:
            raise ValueError("its content is larger than the file")


def _units(name: str) -> int:
    return len(name.encode("utf-16-le", "surrogatepass")) // 2


_log = logging.getLogger(__name__)

_LINK = "links between keys are Wine's"
_DRIVER = "a container has no kernel to load a driver into"
_PROCESSOR = "the processor is that of the host"
_HAS_WINE_KEYS = "it contains keys of Wine"
_ROOT_VALUES = "Wine does not support them"

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
_SKIPPED_HIVES = {
    "SAM_DELTA": "the accounts of an image do not exist under Wine",
    "SECURITY_DELTA": "the security policy of an image does not exist under Wine",
}


def compose_registry(prefix: Path, build: Build, layers: Sequence[Path]) -> WineRegistry:
    """Return the registry of a container, composed of a base's prefix and an image's hives.

    `layers` are the unpacked layers of the image, lowest first.
    """
    registry = _read_cached(prefix, _file_states(prefix)).copy()
    for note in apply_hives(registry, [layer / "Hives" for layer in layers]):
        _log.info("%s", note)
    return with_build(registry, build)


def apply_hives(registry: WineRegistry, hives: Sequence[Path]) -> list[str]:
    """Apply the deltas in the `Hives` directories of layers, lowest layer first.

    Return messages about skipped content.
    """
    notes: list[str] = []
    deltas: list[tuple[str, str, Hive]] = []
    for directory in hives:
        for name, data in _hive_files(directory):
            where = f"{name} of layer {directory.parent.name}"
            if reason := _SKIPPED_HIVES.get(name.upper()):
                notes.append(f"{where} was skipped: {reason}.")
            elif root := _ROOTS.get(name.upper()):
                deltas.append((where, root, read_hive(data, where)))
    base = registry.copy()
    for where, root, hive in deltas:
        if not hive.was_closed:
            notes.append(f"{where} was not closed cleanly and may lack its last changes.")
        skipped: Counter[tuple[str, str]] = Counter()
        for file, original in _targets(registry, base, root):
            skipped |= _HiveMerge(file, original, root).apply(hive)
        notes += [
            f"{where}: skipped {count} of {key}: {reason}."
            for (key, reason), count in sorted(skipped.items())
        ]
    return notes


def _file_states(prefix: Path) -> tuple[tuple[int, int, int], ...]:
    """Return a value that changes when a registry file of the prefix is written."""
    try:
        states = [(prefix / name).stat() for name in FILES]
    except OSError:
        return ()
    return tuple((state.st_ino, state.st_size, state.st_mtime_ns) for state in states)


@lru_cache(maxsize=4)
def _read_cached(prefix: Path, _state: tuple[tuple[int, int, int], ...]) -> WineRegistry:
    """Read a base's prefix; cached, because reading takes ten times as long as editing."""
    return WineRegistry.read(prefix)


class _HiveMerge:
    """Merges one delta into one registry file."""

    def __init__(self, file: RegistryFile, original: RegistryFile, root: str) -> None:
        self._file = file
        self._original = original
        self._root = root
        self._skipped: Counter[tuple[str, str]] = Counter()

    def apply(self, hive: Hive) -> Counter[tuple[str, str]]:
        drivers = {casefold_key(path) for path in self._drivers(hive)}
        for delta in hive.keys:
            key = self._file.resolve(
                _joined("" if self._root == "User" else self._root, delta.path)
            )
            rule_key = _joined(self._root, key) if self._root == "User" else key
            service = casefold_key("\\".join(rule_key.split("\\")[:4]))
            if not delta.path:
                self._skip("the values of its root", _ROOT_VALUES, len(delta.values))
            elif delta.is_link:
                self._skip("the links", _LINK)
            elif service in drivers:
                self._skip(_SERVICES, _DRIVER)
            else:
                self._apply_key(key, rule_key, delta)
        return self._skipped

    def _drivers(self, hive: Hive) -> Iterator[str]:
        for delta in hive.keys if self._root == "System" else ():
            key = self._file.resolve(_joined(self._root, delta.path))
            parent = key.rpartition("\\")[0]
            if casefold_key(parent) == casefold_key(_SERVICES) and any(
                map(_is_driver, delta.values.items())
            ):
                yield key

    def _apply_key(self, key: str, rule_key: str, delta: KeyDelta) -> None:
        rule = rule_for(rule_key)
        if rule.policy is ImportPolicy.NONE:
            self._skip(rule.key, rule.reason, int(delta.is_change))
            return
        kind = delta.kind
        is_wine_key = rule.policy is ImportPolicy.NEW and self._original.has_key(key)
        if kind is not DeltaKind.MERGED and (is_wine_key or contains_wine_keys(rule_key)):
            self._skip(rule.key, rule.reason or _HAS_WINE_KEYS)
            if kind is DeltaKind.DELETED:
                return
        elif kind in (DeltaKind.DELETED, DeltaKind.REPLACES_TREE):
            self._file.remove_key(key)
        elif kind is DeltaKind.REPLACES_VALUES:
            self._file.remove_values(key, *self._file.values(key))
        if kind is DeltaKind.DELETED:
            return
        kept = {casefold_key(name) for name in self._original.values(key)} if is_wine_key else set()
        if casefold_key(key) == casefold_key(_ENVIRONMENT):
            kept, rule = _PROCESSOR_VALUES, HiveRule(_ENVIRONMENT, ImportPolicy.NEW, _PROCESSOR)
        if delta.deleted_values:
            self._file.remove_values(
                key, *(n for n in delta.deleted_values if casefold_key(n) not in kept)
            )
        imported = {
            name: value for name, value in delta.values.items() if casefold_key(name) not in kept
        }
        self._skip(rule.key, rule.reason, len(delta.values) - len(imported))
        self._file.set(key, imported)

    def _skip(self, key: str, reason: str, count: int = 1) -> None:
        if count:
            self._skipped[key, reason] += count


def _is_driver(item: tuple[str, RegistryValue]) -> bool:
    name, value = item
    is_type = casefold_key(name) == "TYPE" and value.kind == ValueType.DWORD
    return is_type and bool(int.from_bytes(value.data[:4], "little") & _DRIVER_TYPES)


def _targets(
    registry: WineRegistry, base: WineRegistry, root: str
) -> tuple[tuple[RegistryFile, RegistryFile], ...]:
    if root == "User":
        return (registry.default_user, base.default_user), (registry.user, base.user)
    return ((registry.system, base.system),)


def _hive_files(directory: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the deltas in an untrusted directory, without following links."""
    try:
        directory_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return
    except OSError as error:
        raise CorruptContent(f"{directory} cannot be read: {error.strerror}.") from None
    try:
        for name in sorted(os.listdir(directory_fd)):  # noqa: PTH208 - a file descriptor
            if name.upper() in _ROOTS | _SKIPPED_HIVES:
                yield name, _read(name, directory_fd, directory)
    finally:
        os.close(directory_fd)


def _read(name: str, directory_fd: int, directory: Path) -> bytes:
    try:
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory_fd)
        with open(file, "rb") as stream:  # noqa: PTH123 - a file descriptor
            if stat.S_ISREG(os.fstat(file).st_mode):
                return stream.read()
    except OSError as error:
        raise CorruptContent(f"{directory / name} cannot be read: {error.strerror}.") from None
    raise CorruptContent(f"{directory / name} is not a file.")


def _joined(*parts: str) -> str:
    return "\\".join(part for part in parts if part)
