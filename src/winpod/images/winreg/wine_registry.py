r"""Reader and editor of the registry files of a Wine prefix.

A file is kept as the text of its sections, one per key, and only sections that are accessed are
parsed: files have megabytes, and an edit a few lines. Unchanged sections are written back byte for
byte. Names are compared case-insensitively, and links in a path (`System\CurrentControlSet`) are
followed, as in Wine. The format is that of Wine's `server/registry.c`; Wine accepts sections in any
order, so new ones are appended.
"""

from __future__ import annotations

import re
import struct
from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from winpod.errors import InvalidInput
from winpod.images.errors import CorruptContent
from winpod.windows.builds import Build
from winpod.windows.paths import casefold_name

MAX_KEY_NAME = 255
MAX_VALUE_NAME = 16383

_SIGNATURE = b"WINE REGISTRY Version 2\n"
_SECTION = b"\n["
_ROOT = re.compile(r"\\REGISTRY\\(?:MACHINE|USER\\[^\\]+)\\", re.IGNORECASE)
_MAX_LINKS = 8


class ValueType(IntEnum):
    """Named value types; a value may have any other number as its type."""

    NONE = 0
    SZ = 1
    EXPAND_SZ = 2
    BINARY = 3
    DWORD = 4
    LINK = 6
    MULTI_SZ = 7
    QWORD = 11


@dataclass(frozen=True, slots=True)
class RegistryValue:
    """A registry value: its type number and bytes."""

    kind: int
    data: bytes

    @staticmethod
    def text(text: str) -> RegistryValue:
        return RegistryValue(ValueType.SZ, _encode(text + "\0"))

    @staticmethod
    def dword(number: int) -> RegistryValue:
        return RegistryValue(ValueType.DWORD, struct.pack("<I", number))


@dataclass(frozen=True, slots=True)
class RegistryDelta:
    """Sets a value; removes it if `value` is None; removes the key if `name` is None."""

    key: str
    name: str | None = None
    value: RegistryValue | None = None


class RegistryFile:
    r"""A registry file, such as `system.reg`. Keys are paths such as `Software\Wine`."""

    def __init__(self, data: bytes, name: str = "The registry file") -> None:
        if not data.startswith(_SIGNATURE):
            raise CorruptContent(f"{name} is not a Wine registry file.")
        self._name = name
        self._sections = data.split(_SECTION)
        self._positions: dict[bytes, int] = {}
        self._links: dict[str, str] = {}
        self._longest_link = 0
        self._sorted: list[bytes] | None = None
        self._index(data.isascii())

    def copy(self) -> RegistryFile:
        """Return an independent copy."""
        other = object.__new__(RegistryFile)
        other._name = self._name
        other._sections = self._sections.copy()
        other._positions = self._positions.copy()
        other._links = self._links.copy()
        other._longest_link = self._longest_link
        other._sorted = None if self._sorted is None else self._sorted.copy()
        return other

    def to_bytes(self) -> bytes:
        return _SECTION.join(section for section in self._sections if section)

    def keys(self) -> Iterator[str]:
        """Yield the keys that have a section; keys with only subkeys may have none."""
        for position in self._positions.values():
            yield self._key_of(self._sections[position])

    def resolve(self, key: str) -> str:
        """Resolve the links in a path."""
        for _ in range(_MAX_LINKS):
            folded = casefold_key(key[: self._longest_link + 1])
            ends = [match.start() for match in _ENDS.finditer(folded)]
            end = next((end for end in ends if folded[:end] in self._links), None)
            if end is None:
                return key
            key = self._links[folded[:end]] + key[end:]
        raise CorruptContent(f'{self._name} has circular links at "{key}".')

    def has_key(self, key: str) -> bool:
        section_key = _section_key(self.resolve(key))
        return section_key in self._positions or bool(self._subkeys(section_key))

    def values(self, key: str) -> dict[str, RegistryValue]:
        """Return the values of a key by their names as spelled; "" is the default value."""
        lines = self._lines(key)
        return dict(self._parse(line) for name, line in lines.items() if isinstance(name, str))

    def value(self, key: str, name: str) -> RegistryValue | None:
        line = self._lines(key).get(casefold_key(name))
        return None if line is None else self._parse(line)[1]

    def set(self, key: str, values: Mapping[str, RegistryValue]) -> None:
        """Set values, creating the key if needed. Other values of the key are kept."""
        key = self.resolve(key)
        position = self._positions.get(_section_key(key))
        if position is None:
            position = self._add(key)
        lines = _lines_of(self._sections[position])
        lines.update(
            (casefold_key(name), _value_line(name, value)) for name, value in values.items()
        )
        self._sections[position] = b"".join(lines.values())

    def remove_values(self, key: str, *names: str) -> None:
        position = self._positions.get(_section_key(self.resolve(key)))
        if position is not None:
            removed = {casefold_key(name) for name in names}
            lines = _lines_of(self._sections[position])
            kept = (line for name, line in lines.items() if name not in removed)
            self._sections[position] = b"".join(kept)

    def remove_key(self, key: str) -> None:
        """Remove a key and its subkeys. The parent key is kept."""
        key = self.resolve(key)
        if not self.has_key(key):
            return
        for section_key in (_section_key(key), *self._subkeys(_section_key(key))):
            if (position := self._positions.pop(section_key, None)) is not None:
                self._sections[position] = b""
                order = self._order()
                del order[bisect_left(order, section_key)]
        prefix = casefold_key(key) + "\\"
        self._links = {k: v for k, v in self._links.items() if not f"{k}\\".startswith(prefix)}
        parent = key.rpartition("\\")[0]
        if parent and not self.has_key(parent):
            self._add(parent)

    def diff_from(self, before: RegistryFile) -> Iterator[RegistryDelta]:
        """Yield the deltas that turn another file into this one, in the order to apply them."""
        for section_key, position in before._positions.items():
            if section_key not in self._positions:
                key = before._key_of(before._sections[position])
                names = before.values(key) if self.has_key(key) else (None,)
                yield from (RegistryDelta(key, name) for name in names)
        for section_key, position in self._positions.items():
            old_position = before._positions.get(section_key)
            new_text = self._sections[position]
            old_text = before._sections[old_position] if old_position is not None else b""
            if new_text is old_text or new_text == old_text:
                continue
            key = self._key_of(new_text)
            old = before.values(key) if old_position is not None else {}
            new = self.values(key)
            if old_position is None and not new:
                yield RegistryDelta(key, "")  # creates the key, and there is no value to remove
            kept = {casefold_key(name) for name in new}
            yield from (RegistryDelta(key, name) for name in old if casefold_key(name) not in kept)
            yield from (
                RegistryDelta(key, name, value)
                for name, value in new.items()
                if old.get(name) != value
            )

    def _index(self, is_ascii: bool) -> None:
        for position, text in enumerate(self._sections[1:], 1):
            section_key = text.partition(b"]")[0].upper()
            needs_parsing = (
                b"\\X" in section_key or b"\n" in section_key or section_key[-1:] == b"\\"
            )
            if needs_parsing or len(section_key) == len(text) or not is_ascii:
                section_key = _section_key(self._key_of(text))
            first = self._positions.setdefault(section_key, position)
            if first != position:  # Wine merges duplicate sections into one key
                self._sections[first] += text.partition(b"\n")[2]
                self._sections[position] = b""
            if b"\n#link" in text:
                self._index_link(text)

    def _index_link(self, text: bytes) -> None:
        if target := self._target_of(text):
            link = casefold_key(self._key_of(text))
            self._links[link] = target
            self._longest_link = max(self._longest_link, len(link))

    def _key_of(self, text: bytes) -> str:
        key, bracket, _ = text.partition(b"]")
        if key.endswith(b"\\"):
            match = _KEY.match(text)
            key, bracket = (match[1], b"]") if match else (b"", b"")
        if not bracket or b"\n" in key:
            start = text.partition(b"\n")[0].decode(errors="replace")
            raise CorruptContent(f'{self._name} has an unterminated key: "[{start}".')
        return _unescape(key)

    def _target_of(self, text: bytes) -> str:
        line = _lines_of(text).get("SYMBOLICLINKVALUE")
        if line is None:
            return ""
        return _ROOT.sub("", _decode(self._parse(line)[1].data), count=1)

    def _order(self) -> list[bytes]:
        if self._sorted is None:
            self._sorted = sorted(self._positions)
        return self._sorted

    def _subkeys(self, section_key: bytes) -> list[bytes]:
        """Return all subkeys, which are adjacent in sorted order."""
        order, start = self._order(), section_key + b"\\\\"
        return order[bisect_left(order, start) : bisect_left(order, start + b"\xff")]

    def _lines(self, key: str) -> dict[str | int, bytes]:
        position = self._positions.get(_section_key(self.resolve(key)))
        return {} if position is None else _lines_of(self._sections[position])

    def _add(self, key: str) -> int:
        if not all(0 < _length(name) <= MAX_KEY_NAME for name in key.split("\\")):
            raise InvalidInput(
                f'"{key}" is not a valid registry key.',
                f"Every name in it must have 1 to {MAX_KEY_NAME} characters.",
            )
        if self._sections[-1][-1:] not in (b"", b"\n"):
            self._sections[-1] += b"\n"
        self._sections.append(_escape(key, "[]") + b"]\n")
        if self._sorted is not None:
            insort(self._sorted, _section_key(key))
        position = self._positions[_section_key(key)] = len(self._sections) - 1
        return position

    def _parse(self, line: bytes) -> tuple[str, RegistryValue]:
        try:
            return _parse(line)
        except ValueError:
            shown = line.strip().decode(errors="replace")[:80]
            raise CorruptContent(f"{self._name} has an invalid value: {shown}") from None


@dataclass(frozen=True, slots=True)
class WineRegistry:
    """The registry files of a prefix: the machine, its one user, and the default user."""

    system: RegistryFile
    user: RegistryFile
    default_user: RegistryFile

    @staticmethod
    def read(prefix: Path) -> WineRegistry:
        return WineRegistry(*(_read_file(prefix / name) for name in FILES))

    def copy(self) -> WineRegistry:
        return WineRegistry(self.system.copy(), self.user.copy(), self.default_user.copy())

    def files(self) -> dict[str, bytes]:
        """Return the content of the files by their names in a prefix."""
        contents = (self.system, self.user, self.default_user)
        return {name: file.to_bytes() for name, file in zip(FILES, contents, strict=True)}


def with_build(registry: WineRegistry, build: Build) -> WineRegistry:
    """Return a copy of the registry that reports the given Windows build."""
    changed = registry.copy()
    for key in (_VERSION_KEY, _VERSION_KEY_32):
        if key == _VERSION_KEY or changed.system.has_key(key):
            changed.system.remove_values(key, *_VERSION_VALUES)
            changed.system.set(key, _version_values(build))
    changed.system.set(_PRODUCT_KEY, {"ProductType": RegistryValue.text("ServerNT")})
    changed.user.remove_values(_WINE_KEY, "Version")  # it would override the build
    return changed


def casefold_key(name: str) -> str:
    """Return a form that is equal for names that Windows considers the same."""
    return name.upper() if name.isascii() else casefold_name(name)


def _section_key(key: str) -> bytes:
    """Return the start of a key's section, case-folded."""
    return _escape(casefold_key(key), "[]").upper()


def _version_values(build: Build) -> dict[str, RegistryValue]:
    number = RegistryValue.text(str(build.number))
    values = {
        "CurrentVersion": RegistryValue.text("6.3"),  # as in every Windows since 8.1
        "CurrentMajorVersionNumber": RegistryValue.dword(build.major),
        "CurrentMinorVersionNumber": RegistryValue.dword(build.minor),
        "CurrentBuild": number,
        "CurrentBuildNumber": number,
        "ProductName": RegistryValue.text(build.product_name),
        "EditionID": RegistryValue.text("ServerDatacenter"),
        "InstallationType": RegistryValue.text("Server Core"),
    }
    if build.revision is not None:
        values["UBR"] = RegistryValue.dword(build.revision)
    release_id, display_version = _RELEASE_NAMES.get(build.number, ("", ""))
    if release_id:
        values["ReleaseId"] = RegistryValue.text(release_id)
    if display_version:
        values["DisplayVersion"] = RegistryValue.text(display_version)
    return values


def _read_file(path: Path) -> RegistryFile:
    try:
        return RegistryFile(path.read_bytes(), str(path))
    except OSError as error:
        raise CorruptContent(f"{path} cannot be read: {error.strerror}.") from None


def _lines_of(text: bytes) -> dict[str | int, bytes]:
    """Return the lines of a section: values by case-folded name, others by line number."""
    if not text.endswith(b"\n"):
        text += b"\n"
    lines: dict[str | int, bytes] = {}
    for number, line in enumerate(_LINE.findall(text)):
        match = _NAME.match(line) if number else None
        lines[number if match is None else casefold_key(_unescape(match[1] or b""))] = line
    return lines


def _value_line(name: str, value: RegistryValue) -> bytes:
    if _length(name) > MAX_VALUE_NAME:
        raise InvalidInput(
            f'The name of a registry value has {_length(name)} characters: "{name[:40]}…".',
            f"Use at most {MAX_VALUE_NAME} characters.",
        )
    start = b'"%b"=' % _escape(name, '"') if name else b"@="
    if value.kind in _TEXTS and value.data.endswith(b"\0\0") and len(value.data) % 2 == 0:
        return start + b'%b"%b"\n' % (_TEXTS[value.kind], _escape(_decode(value.data[:-2]), '"'))
    if value.kind == ValueType.DWORD and len(value.data) == 4:
        return start + b"dword:%08x\n" % int.from_bytes(value.data, "little")
    start += b"hex:" if value.kind == ValueType.BINARY else b"hex(%x):" % value.kind
    return start + _hex(value.data, first_line=_LINE_LENGTH - len(start)) + b"\n"


def _hex(data: bytes, first_line: int) -> bytes:
    """Format hexadecimal digits in lines of the same length as Wine."""
    first = max(1, first_line // 3 + 1)
    count = (_LINE_LENGTH - 2) // 3 + 1
    parts = [data[:first], *(data[i : i + count] for i in range(first, len(data), count))]
    return b",\\\n  ".join(part.hex(",").encode() for part in parts)


def _parse(line: bytes) -> tuple[str, RegistryValue]:
    match = _VALUE.fullmatch(line.rstrip())
    if match is None:
        raise ValueError
    name, tag, number, text = match.groups()
    kind = int(number, 16) if number else _KIND_OF[tag]
    return _unescape(name or b""), RegistryValue(kind, _data(tag, text))


def _data(tag: bytes | None, text: bytes) -> bytes:
    if tag == b"dword":
        return struct.pack("<I", int(text, 16) & 0xFFFFFFFF)
    if tag == b"hex":
        return bytes.fromhex(_GAPS.sub(b" ", text).decode("ascii", "replace"))
    if not (quoted := _QUOTED.match(text)):
        raise ValueError
    return _encode(_unescape(quoted[1]) + "\0")


def _escape(text: str, quotes: str) -> bytes:
    """Escape text as Wine does: ASCII, other characters as numbers of UTF-16 units."""
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
    """Return the length in UTF-16 units, as Windows counts."""
    return len(name) if name.isascii() else len(_encode(name)) // 2


FILES = ("system.reg", "user.reg", "userdef.reg")

_VERSION_KEY = r"Software\Microsoft\Windows NT\CurrentVersion"
_VERSION_KEY_32 = r"Software\Wow6432Node\Microsoft\Windows NT\CurrentVersion"
_PRODUCT_KEY = r"System\CurrentControlSet\Control\ProductOptions"
_WINE_KEY = r"Software\Wine"
_VERSION_VALUES = ("UBR", "ReleaseId", "DisplayVersion", "CSDVersion")

# ReleaseId and DisplayVersion by build. ReleaseId stayed at 2009 after DisplayVersion was added.
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

_KIND_OF = {
    None: ValueType.SZ,
    b"str": ValueType.SZ,
    b"hex": ValueType.BINARY,
    b"dword": ValueType.DWORD,
}
_TEXTS: dict[int, bytes] = {
    ValueType.SZ: b"",
    ValueType.EXPAND_SZ: b"str(2):",
    ValueType.MULTI_SZ: b"str(7):",
}
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
