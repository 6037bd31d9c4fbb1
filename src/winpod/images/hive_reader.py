"""Reading a registry hive, and the marks that a delta has in it.

Hives are read by libregf: it is maintained and fuzzed, refuses what is damaged, and takes a
twentieth of the time of regipy, which is the maintained one in Python, passes over damage and does
not give a value's bytes. (python-registry had its last release in 2019, dissect.regf is under the
AGPL, yarp is not published.) libregf does not know of marks and gives values of one to three bytes
wrong, so the headers of keys and values are read here.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import pyregf  # type: ignore[import-not-found]

from winpod.images.errors import BadContent
from winpod.images.wine_registry import MAX_KEY_NAME, MAX_VALUE_NAME, Value

_MAX_DEPTH = 512  # of keys in Windows
_MAX_PATHS = 32 << 20  # characters in the paths of all keys; a whole Windows has some 20 million


class Mark(IntEnum):
    """How a key of a delta relates to the same key in the layers below it."""

    MERGED = 0
    DELETED = 1
    REPLACES_VALUES = 2
    REPLACES_TREE = 3


@dataclass(frozen=True, slots=True)
class KeyDelta:
    r"""What a delta says of one key; its path is from the hive's root: `ControlSet001\Control`."""

    path: str
    mark: Mark
    is_link: bool
    values: dict[str, Value]
    deleted_values: tuple[str, ...]

    @property
    def is_change(self) -> bool:
        """Or it is there because of the keys in it, or to be there."""
        return self.mark is not Mark.MERGED or bool(self.values or self.deleted_values)


@dataclass(frozen=True, slots=True)
class Hive:
    """The keys of a hive, each before those in it."""

    keys: tuple[KeyDelta, ...]
    was_closed: bool


def read_hive(data: bytes, where: str = "The hive") -> Hive:
    try:
        reader = pyregf.file()
        reader.open_file_object(io.BytesIO(data))
        root = reader.get_root_key()
        if root is None:
            raise ValueError("it has no root")
        keys = tuple(_Walk(data).keys(root))
    except (OSError, ValueError, struct.error, MemoryError) as error:
        detail = str(error) if type(error) is ValueError else "it is damaged"
        raise BadContent(
            f"{where} is no registry hive that can be read: {detail}.", "Pull the image again."
        ) from None
    first, second = struct.unpack_from("<II", data, 4)
    return Hive(keys, was_closed=first == second)


class _Walk:
    """From key to key of a hive that may be hostile: no circles, and no more than fits in it."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._room = len(data)
        self._paths = 0
        self._seen: set[int] = set()

    def keys(self, root: Any) -> Iterator[KeyDelta]:
        waiting = [(root, "", 0)]
        while waiting:
            key, parent, depth = waiting.pop()
            if key.offset in self._seen:
                raise ValueError("a key is in it twice")
            if depth > _MAX_DEPTH:
                raise ValueError(f"keys are nested deeper than {_MAX_DEPTH}")
            self._seen.add(key.offset)
            delta = self._key(key, parent, depth)
            yield delta
            children = [key.get_sub_key(at) for at in range(key.number_of_sub_keys)]
            waiting += [(child, delta.path, depth + 1) for child in reversed(children)]

    def _key(self, key: Any, parent: str, depth: int) -> KeyDelta:
        flags, layering = struct.unpack_from("<2xH9xB", self._data, key.offset)
        (length,) = struct.unpack_from("<H", self._data, key.offset + 72)
        name = self._name(key.offset + 76, length, is_short=bool(flags & 0x20))
        self._spend(76)
        if depth and not (0 < _units(name) <= MAX_KEY_NAME and "\\" not in name and name[0] > "\0"):
            raise ValueError("it has a key with a name that Windows does not allow")
        path = f"{parent}\\{name}" if depth > 1 else name if depth else ""
        self._paths += len(path)
        if self._paths > _MAX_PATHS:
            raise ValueError("the paths of its keys are too long")
        values: dict[str, Value] = {}
        deleted: list[str] = []
        for at in range(key.number_of_values):
            value_name, value = self._value(key.get_value(at))
            if value is None:
                deleted.append(value_name)
            else:
                values[value_name] = value
        return KeyDelta(path, Mark(layering & 3), bool(flags & 0x10), values, tuple(deleted))

    def _value(self, value: Any) -> tuple[str, Value | None]:
        length, size, kind, flags = struct.unpack_from("<2xHI4xIH", self._data, value.offset)
        name = self._name(value.offset + 20, length, is_short=bool(flags & 0x1))
        self._spend(20)
        if _units(name) > MAX_VALUE_NAME:
            raise ValueError("it has a value with a name that Windows does not allow")
        if flags & 0x2:
            return name, None
        if size & 0x80000000:
            size &= 0x7FFFFFFF
            if size > 4:
                raise ValueError("it has a value that does not fit where it is")
            return name, Value(kind, self._data[value.offset + 8 : value.offset + 8 + size])
        self._spend(size)
        content = value.data or b""
        if len(content) != size:
            raise ValueError("it has a value that is shorter than it says")
        return name, Value(kind, content)

    def _name(self, offset: int, length: int, *, is_short: bool) -> str:
        data = self._data[offset : offset + length]
        return data.decode("latin-1") if is_short else data.decode("utf-16-le", "surrogatepass")

    def _spend(self, size: int) -> None:
        self._room -= size
        if self._room < 0:
            raise ValueError("it holds more than there is room for in it")


def _units(name: str) -> int:
    return len(name.encode("utf-16-le", "surrogatepass")) // 2
