r"""The registry of a Wine prefix: the text files that Wine loads when it starts.

A file is kept as the text of its sections, one a key, and only a section that is read or changed is
parsed: the files have megabytes, and an edit has a few lines. What is not changed is written back
byte for byte. Names are compared as Windows does, whatever their case, and a path that leads
through a link (`System\CurrentControlSet`) ends where the link points to, as in Wine. The format is
that of Wine's `server/registry.c`; Wine takes sections in any order, so new ones go to the end.
"""

from __future__ import annotations

import re
import struct
from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from winpod.images.errors import BadContent
from winpod.windows.builds import Build
from winpod.windows.errors import InvalidInput
from winpod.windows.paths import collision_key

MAX_KEY_NAME = 255
MAX_VALUE_NAME = 16383

_SIGNATURE = b"WINE REGISTRY Version 2\n"
_SECTION = b"\n["
_ROOT = re.compile(r"\\REGISTRY\\(?:MACHINE|USER\\[^\\]+)\\", re.IGNORECASE)
_MAX_LINKS = 8


class Kind(IntEnum):
    """The types of values that have a name; a value may have any other number as its type."""

    NONE = 0
    SZ = 1
    EXPAND_SZ = 2
    BINARY = 3
    DWORD = 4
    LINK = 6
    MULTI_SZ = 7
    QWORD = 11


@dataclass(frozen=True, slots=True)
class Value:
    """A value as the registry has it: the number of its type, and bytes."""

    kind: int
    data: bytes

    @staticmethod
    def text(text: str) -> Value:
        return Value(Kind.SZ, _encode(text + "\0"))

    @staticmethod
    def dword(number: int) -> Value:
        return Value(Kind.DWORD, struct.pack("<I", number))


@dataclass(frozen=True, slots=True)
class Change:
    """A value that is set, or removed where there is no `value`; without a `name` the key goes."""

    key: str
    name: str | None = None
    value: Value | None = None


class RegistryFile:
    r"""One file: `system.reg`, `user.reg` or `userdef.reg`. Keys are paths: `Software\Wine`."""

    def __init__(self, data: bytes, name: str = "The registry file") -> None:
        if not data.startswith(_SIGNATURE):
            raise BadContent(f"{name} is not a registry file of Wine.")
        self._name = name
        self._sections = data.split(_SECTION)
        self._places: dict[bytes, int] = {}
        self._links: dict[str, str] = {}
        self._longest_link = 0
        self._sorted: list[bytes] | None = None
        self._index(data.isascii())

    def copy(self) -> RegistryFile:
        """Another one that has the same content and is changed apart from this one."""
        other = object.__new__(RegistryFile)
        other._name = self._name
        other._sections = self._sections.copy()
        other._places = self._places.copy()
        other._links = self._links.copy()
        other._longest_link = self._longest_link
        other._sorted = None if self._sorted is None else self._sorted.copy()
        return other

    def to_bytes(self) -> bytes:
        return _SECTION.join(section for section in self._sections if section)

    def keys(self) -> Iterator[str]:
        """The keys that have a section; those that only hold other keys may have none."""
        for place in self._places.values():
            yield self._key_of(self._sections[place])

    def resolve(self, key: str) -> str:
        """Where a path ends that may lead through links."""
        for _ in range(_MAX_LINKS):
            folded = fold(key[: self._longest_link + 1])
            ends = [match.start() for match in _ENDS.finditer(folded)]
            end = next((end for end in ends if folded[:end] in self._links), None)
            if end is None:
                return key
            key = self._links[folded[:end]] + key[end:]
        raise BadContent(f'{self._name} has links that lead in a circle at "{key}".')

    def has_key(self, key: str) -> bool:
        spot = _spot(self.resolve(key))
        return spot in self._places or bool(self._below(spot))

    def values(self, key: str) -> dict[str, Value]:
        """The values of a key by their names, as they are spelled; "" is the default value."""
        lines = self._lines(key)
        return dict(self._parse(line) for name, line in lines.items() if isinstance(name, str))

    def value(self, key: str, name: str) -> Value | None:
        line = self._lines(key).get(fold(name))
        return None if line is None else self._parse(line)[1]

    def set(self, key: str, values: Mapping[str, Value]) -> None:
        """Creates the key if it is not there. Its other values stay."""
        key = self.resolve(key)
        place = self._places.get(_spot(key))
        if place is None:
            place = self._add(key)
        lines = _lines_of(self._sections[place])
        lines.update((fold(name), _value_line(name, value)) for name, value in values.items())
        self._sections[place] = b"".join(lines.values())

    def remove_values(self, key: str, *names: str) -> None:
        place = self._places.get(_spot(self.resolve(key)))
        if place is not None:
            gone = {fold(name) for name in names}
            lines = _lines_of(self._sections[place])
            self._sections[place] = b"".join(lines[name] for name in lines if name not in gone)

    def remove_key(self, key: str) -> None:
        """Removes a key and all below it. The key that it was in stays."""
        key = self.resolve(key)
        if not self.has_key(key):
            return
        for spot in (_spot(key), *self._below(_spot(key))):
            if (place := self._places.pop(spot, None)) is not None:
                self._sections[place] = b""
                order = self._order()
                del order[bisect_left(order, spot)]
        gone = fold(key) + "\\"
        self._links = {k: v for k, v in self._links.items() if not f"{k}\\".startswith(gone)}
        parent = key.rpartition("\\")[0]
        if parent and not self.has_key(parent):
            self._add(parent)

    def changes_from(self, before: RegistryFile) -> Iterator[Change]:
        """What turns another file into this one, in an order that can be followed."""
        for spot, place in before._places.items():
            if spot not in self._places:
                key = before._key_of(before._sections[place])
                names = before.values(key) if self.has_key(key) else (None,)
                yield from (Change(key, name) for name in names)
        for spot, place in self._places.items():
            known, now = before._places.get(spot), self._sections[place]
            then = before._sections[known] if known is not None else b""
            if now is then or now == then:
                continue
            key = self._key_of(now)
            old = before.values(key) if known is not None else {}
            new = self.values(key)
            if known is None and not new:
                yield Change(key, "")  # there is nothing to remove, and the key is made
            kept = {fold(name) for name in new}
            yield from (Change(key, name) for name in old if fold(name) not in kept)
            yield from (
                Change(key, name, value) for name, value in new.items() if old.get(name) != value
            )

    def _index(self, is_ascii: bool) -> None:
        for place, text in enumerate(self._sections[1:], 1):
            spot = text.partition(b"]")[0].upper()
            is_odd = b"\\X" in spot or b"\n" in spot or spot[-1:] == b"\\"
            if is_odd or len(spot) == len(text) or not is_ascii:
                spot = _spot(self._key_of(text))
            first = self._places.setdefault(spot, place)
            if first != place:  # Wine reads one after the other into the same key
                self._sections[first] += text.partition(b"\n")[2]
                self._sections[place] = b""
            if b"\n#link" in text:
                self._index_link(text)

    def _index_link(self, text: bytes) -> None:
        if target := self._target_of(text):
            link = fold(self._key_of(text))
            self._links[link] = target
            self._longest_link = max(self._longest_link, len(link))

    def _key_of(self, text: bytes) -> str:
        key, bracket, _ = text.partition(b"]")
        if key.endswith(b"\\"):
            match = _KEY.match(text)
            key, bracket = (match[1], b"]") if match else (b"", b"")
        if not bracket or b"\n" in key:
            start = text.partition(b"\n")[0].decode(errors="replace")
            raise BadContent(f'{self._name} has a key that does not end: "[{start}".')
        return _unescape(key)

    def _target_of(self, text: bytes) -> str:
        line = _lines_of(text).get("SYMBOLICLINKVALUE")
        if line is None:
            return ""
        return _ROOT.sub("", _decode(self._parse(line)[1].data), count=1)

    def _order(self) -> list[bytes]:
        if self._sorted is None:
            self._sorted = sorted(self._places)
        return self._sorted

    def _below(self, spot: bytes) -> list[bytes]:
        """The keys in a key, which are next to each other in the order of all."""
        order, start = self._order(), spot + b"\\\\"
        return order[bisect_left(order, start) : bisect_left(order, start + b"\xff")]

    def _lines(self, key: str) -> dict[str | int, bytes]:
        place = self._places.get(_spot(self.resolve(key)))
        return {} if place is None else _lines_of(self._sections[place])

    def _add(self, key: str) -> int:
        if not all(0 < _length(name) <= MAX_KEY_NAME for name in key.split("\\")):
            raise InvalidInput(
                f'"{key}" cannot be a key of the registry.',
                f"Every name in it must have 1 to {MAX_KEY_NAME} characters.",
            )
        if self._sections[-1][-1:] not in (b"", b"\n"):
            self._sections[-1] += b"\n"
        self._sections.append(_escape(key, "[]") + b"]\n")
        if self._sorted is not None:
            insort(self._sorted, _spot(key))
        place = self._places[_spot(key)] = len(self._sections) - 1
        return place

    def _parse(self, line: bytes) -> tuple[str, Value]:
        try:
            return _parse(line)
        except ValueError:
            shown = line.strip().decode(errors="replace")[:80]
            raise BadContent(f"{self._name} has a value that cannot be read: {shown}") from None


@dataclass(frozen=True, slots=True)
class WineRegistry:
    """The three files of a prefix: the machine, its one user, and the user of services."""

    system: RegistryFile
    user: RegistryFile
    default_user: RegistryFile

    @staticmethod
    def read(prefix: Path) -> WineRegistry:
        return WineRegistry(*(_read_file(prefix / name) for name in FILES))

    def copy(self) -> WineRegistry:
        return WineRegistry(self.system.copy(), self.user.copy(), self.default_user.copy())

    def files(self) -> dict[str, bytes]:
        """What to write into a prefix, by the names that Wine reads."""
        contents = (self.system, self.user, self.default_user)
        return {name: file.to_bytes() for name, file in zip(FILES, contents, strict=True)}


def with_build(registry: WineRegistry, build: Build) -> WineRegistry:
    """The same registry in which Windows is of the given build."""
    changed = registry.copy()
    for key in (_VERSION_KEY, _VERSION_KEY_32):
        if key == _VERSION_KEY or changed.system.has_key(key):
            changed.system.remove_values(key, *_VERSION_VALUES)
            changed.system.set(key, _version_values(build))
    changed.system.set(_PRODUCT_KEY, {"ProductType": Value.text("ServerNT")})
    changed.user.remove_values(_WINE_KEY, "Version")  # it would go before all of this
    return changed


def fold(name: str) -> str:
    """Equal for two names of keys or values that Windows takes for the same."""
    return name.upper() if name.isascii() else collision_key(name)


def _spot(key: str) -> bytes:
    """What a key's section begins with, whatever the case of either."""
    return _escape(fold(key), "[]").upper()


def _version_values(build: Build) -> dict[str, Value]:
    number = Value.text(str(build.number))
    values = {
        "CurrentVersion": Value.text("6.3"),  # as every Windows since 8.1 says
        "CurrentMajorVersionNumber": Value.dword(build.major),
        "CurrentMinorVersionNumber": Value.dword(build.minor),
        "CurrentBuild": number,
        "CurrentBuildNumber": number,
        "ProductName": Value.text(build.product_name),
        "EditionID": Value.text("ServerDatacenter"),
        "InstallationType": Value.text("Server Core"),
    }
    if build.revision is not None:
        values["UBR"] = Value.dword(build.revision)
    release_id, display_version = _RELEASE_NAMES.get(build.number, ("", ""))
    if release_id:
        values["ReleaseId"] = Value.text(release_id)
    if display_version:
        values["DisplayVersion"] = Value.text(display_version)
    return values


def _read_file(path: Path) -> RegistryFile:
    try:
        return RegistryFile(path.read_bytes(), str(path))
    except OSError as error:
        raise BadContent(f"{path} cannot be read: {error.strerror}.") from None


def _lines_of(text: bytes) -> dict[str | int, bytes]:
    """The lines of a section: values by their folded names, all others by their numbers."""
    if not text.endswith(b"\n"):
        text += b"\n"
    lines: dict[str | int, bytes] = {}
    for number, line in enumerate(_LINE.findall(text)):
        match = _NAME.match(line) if number else None
        lines[number if match is None else fold(_unescape(match[1] or b""))] = line
    return lines


def _value_line(name: str, value: Value) -> bytes:
    if _length(name) > MAX_VALUE_NAME:
        raise InvalidInput(
            f'A value of the registry has a name of {_length(name)} characters: "{name[:40]}…".',
            f"Give it at most {MAX_VALUE_NAME}.",
        )
    start = b'"%b"=' % _escape(name, '"') if name else b"@="
    if value.kind in _TEXTS and value.data.endswith(b"\0\0") and len(value.data) % 2 == 0:
        return start + b'%b"%b"\n' % (_TEXTS[value.kind], _escape(_decode(value.data[:-2]), '"'))
    if value.kind == Kind.DWORD and len(value.data) == 4:
        return start + b"dword:%08x\n" % int.from_bytes(value.data, "little")
    start += b"hex:" if value.kind == Kind.BINARY else b"hex(%x):" % value.kind
    return start + _hex(value.data, room=_LINE_LENGTH - len(start)) + b"\n"


def _hex(data: bytes, room: int) -> bytes:
    """Digits in lines that are as long as Wine makes them."""
    first = max(1, room // 3 + 1)
    each = (_LINE_LENGTH - 2) // 3 + 1
    parts = [data[:first], *(data[at : at + each] for at in range(first, len(data), each))]
    return b",\\\n  ".join(part.hex(",").encode() for part in parts)


def _parse(line: bytes) -> tuple[str, Value]:
    match = _VALUE.fullmatch(line.rstrip())
    if match is None:
        raise ValueError
    name, tag, number, text = match.groups()
    kind = int(number, 16) if number else _KIND_OF[tag]
    return _unescape(name or b""), Value(kind, _data(tag, text))


def _data(tag: bytes | None, text: bytes) -> bytes:
    if tag == b"dword":
        return struct.pack("<I", int(text, 16) & 0xFFFFFFFF)
    if tag == b"hex":
        return bytes.fromhex(_GAPS.sub(b" ", text).decode("ascii", "replace"))
    if not (quoted := _QUOTED.match(text)):
        raise ValueError
    return _encode(_unescape(quoted[1]) + "\0")


def _escape(text: str, quotes: str) -> bytes:
    """Text as Wine writes it: ASCII, all else by number, UTF-16 unit for unit."""
    if text.isascii() and text.isprintable():
        text = text.replace("\\", "\\\\")
        for quote in quotes:
            text = text.replace(quote, "\\" + quote)
        return text.encode("ascii")

    def replace(match: re.Match[str]) -> str:
        char, following = match[0], text[match.end() : match.end() + 1]
        if char == "\\" or char in quotes:
            return "\\" + char
        if char in '"[]':
            return char
        if char in _LETTER_OF:
            return "\\" + _LETTER_OF[char]
        if char < " ":
            return f"\\{ord(char):03o}" if following in _OCTAL else f"\\{ord(char):o}"
        if char > "\uffff":
            return "".join(f"\\x{unit:x}" for unit in struct.unpack("<2H", _encode(char)))
        return f"\\x{ord(char):04x}" if following in _HEX else f"\\x{ord(char):x}"

    return _TO_ESCAPE.sub(replace, text).encode("ascii")


def _unescape(text: bytes) -> str:
    if b"\\" not in text and text.isascii():
        return text.decode("ascii")
    return _decode(_encode(_ESCAPED.sub(_unescaped, text.decode(errors="ignore"))))


def _unescaped(match: re.Match[str]) -> str:
    number, octal, char = match.groups()
    if number:
        return chr(int(number, 16))
    if octal:
        return chr(int(octal, 8))
    return _CHAR_OF.get(char, char)


def _encode(text: str) -> bytes:
    return text.encode("utf-16-le", "surrogatepass")


def _decode(data: bytes) -> str:
    return data.decode("utf-16-le", "surrogatepass")


def _length(name: str) -> int:
    """As Windows counts: in UTF-16 units."""
    return len(name) if name.isascii() else len(_encode(name)) // 2


FILES = ("system.reg", "user.reg", "userdef.reg")

_VERSION_KEY = r"Software\Microsoft\Windows NT\CurrentVersion"
_VERSION_KEY_32 = r"Software\Wow6432Node\Microsoft\Windows NT\CurrentVersion"
_PRODUCT_KEY = r"System\CurrentControlSet\Control\ProductOptions"
_WINE_KEY = r"Software\Wine"
_VERSION_VALUES = ("UBR", "ReleaseId", "DisplayVersion", "CSDVersion")

# What Windows says of itself besides the number: ReleaseId stopped at 2009, DisplayVersion came
# with it.
_RELEASE_NAMES = {
    14393: ("1607", ""),
    15063: ("1703", ""),
    16299: ("1709", ""),
    17134: ("1803", ""),
    17763: ("1809", ""),
    18362: ("1903", ""),
    18363: ("1909", ""),
    19041: ("2004", ""),
    19042: ("2009", "20H2"),
    19043: ("2009", "21H1"),
    19044: ("2009", "21H2"),
    19045: ("2009", "22H2"),
    20348: ("2009", "21H2"),
    22000: ("2009", "21H2"),
    22621: ("2009", "22H2"),
    25398: ("2009", "23H2"),
    26100: ("2009", "24H2"),
}

_KIND_OF = {None: Kind.SZ, b"str": Kind.SZ, b"hex": Kind.BINARY, b"dword": Kind.DWORD}
_TEXTS: dict[int, bytes] = {Kind.SZ: b"", Kind.EXPAND_SZ: b"str(2):", Kind.MULTI_SZ: b"str(7):"}
_LINE_LENGTH = 76
_CHAR_OF = dict(zip("abtnvfre", "\a\b\t\n\v\f\r\x1b", strict=True))
_LETTER_OF = {char: letter for letter, char in _CHAR_OF.items()}
_OCTAL = tuple("01234567")
_HEX = tuple("0123456789abcdefABCDEF")

_KEY = re.compile(rb"((?:[^\\\]\n]|\\.)*)\]")
_ENDS = re.compile(r"\\|$")
_LINE = re.compile(rb'(?:["@][^\n]*\\\r?\n(?:[^\n]*\\\r?\n)*)?[^\n]*\n')
_NAME = re.compile(rb'(?:@|"((?:[^"\\]|\\.)*)")\s*=', re.DOTALL)
_VALUE = re.compile(
    _NAME.pattern + rb"\s*(?:(str|hex|dword)(?:\(([0-9a-fA-F]{1,8})\))?:)?(.*)", re.DOTALL
)
_QUOTED = re.compile(rb'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_GAPS = re.compile(rb"[\s,\\]+")
_TO_ESCAPE = re.compile(r'[^ -~\x7f]|["\\\[\]]')
_ESCAPED = re.compile(r"\\(?:x([0-9a-fA-F]{1,4})|([0-7]{1,3})|(.))", re.DOTALL)
