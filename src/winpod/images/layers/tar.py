"""Tar archives, read as a stream: the headers of ustar, PAX and GNU, and where the content lies.

Only what a layer needs, and nothing is believed: a header that contradicts itself is `BadContent`.
Meta-headers are bounded, so that a hostile archive costs no more memory than an honest one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from zlib import adler32

from winpod.images.errors import BadContent

BLOCK = 512
META_LIMIT = 1 << 20
_ZEROES = bytes(BLOCK)
_LATEST_SECOND = (1 << 34) - 1

_PAX, _PAX_GLOBAL, _LONG_NAME, _LONG_LINK = b"x", b"g", b"L", b"K"
_PATH, _LINK_PATH, _SIZE, _MTIME = b"path", b"linkpath", b"size", b"mtime"
_ATTRIBUTES, _DESCRIPTOR = b"MSWINDOWS.fileattr", b"MSWINDOWS.rawsd"
_SPARSE = b"GNU.sparse."

_RECORD = re.compile(rb"([1-9][0-9]{0,8}) ([^=\n\0]+)=")
_SECONDS = re.compile(rb"(-?)([0-9]{1,20})(?:\.([0-9]*))?")

Records = Mapping[bytes, bytes]


class Kind(Enum):
    FILE = "a file"
    DIRECTORY = "a directory"
    LINK = "a symbolic link"
    HARD_LINK = "a hard link"
    CHARACTER_DEVICE = "a character device"
    BLOCK_DEVICE = "a block device"
    FIFO = "a pipe"


_KINDS = {
    b"\0": Kind.FILE,
    b"0": Kind.FILE,
    b"7": Kind.FILE,
    b"1": Kind.HARD_LINK,
    b"2": Kind.LINK,
    b"3": Kind.CHARACTER_DEVICE,
    b"4": Kind.BLOCK_DEVICE,
    b"5": Kind.DIRECTORY,
    b"6": Kind.FIFO,
}


class Truncated(BadContent):
    """The archive ends in the middle of something."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What a header says. Its content is the next `size` bytes of the source."""

    name: str
    kind: Kind
    size: int = 0
    mtime: int = 0
    """In nanoseconds since 1970."""
    link: str = ""
    attributes: int = 0
    has_descriptor: bool = False


class Source:
    """Bytes that come in pieces, taken in order."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._view = memoryview(b"")
        self._at = 0
        self._before = 0

    @property
    def position(self) -> int:
        return self._before + self._at

    def read(self, size: int) -> bytes:
        """So many bytes, fewer only at the end."""
        view, at = self._view, self._at
        if at + size <= len(view):
            self._at = at + size
            return bytes(view[at : at + size])
        return b"".join(bytes(part) for part in self._take(size))

    def skip_to(self, position: int) -> None:
        for _ in self._take(position - self.position):
            pass
        if self.position != position:
            raise Truncated("The layer's archive ends in the middle of a file.")

    def copy(self, size: int, file: int) -> None:
        """Write the next bytes to a file descriptor."""
        for part in self._take(size):
            size -= len(part)
            while len(part) > (written := os.write(file, part)):
                part = part[written:]
        if size:
            raise Truncated("The layer's archive ends in the middle of a file.")

    def drain(self) -> None:
        for _ in self._pieces:
            pass

    def _take(self, size: int) -> Iterator[memoryview]:
        while size > 0:
            if self._at == len(self._view):
                piece = next(self._pieces, None)
                if piece is None:
                    return
                self._before += len(self._view)
                self._view, self._at = memoryview(piece), 0
            part = self._view[self._at : self._at + size]
            self._at += len(part)
            size -= len(part)
            yield part


def read_entries(source: Source) -> Iterator[Entry]:
    """The entries in order. What of an entry's content is not read in between is skipped."""
    meta: dict[bytes, bytes] = {}
    while (header := source.read(BLOCK)) != b"":
        if len(header) < BLOCK:
            raise Truncated("The layer's archive ends in the middle of a header.")
        if header == _ZEROES:
            if meta or source.read(BLOCK) not in (_ZEROES, b""):
                raise BadContent("The layer's archive goes on where it says that it ends.")
            return
        if not _has_right_sum(header):
            raise BadContent(
                "The layer's archive is damaged: a header has a wrong checksum."
                if source.position > BLOCK
                else "The layer is no tar archive."
            )
        kind = header[156:157]
        if kind in (_PAX, _PAX_GLOBAL, _LONG_NAME, _LONG_LINK):
            if kind in meta:
                raise BadContent("The layer's archive has two extra headers for one entry.")
            content = _read_meta(source, _number(header[124:136]))
            if kind == _PAX_GLOBAL:
                _check_global(_parse_records(content))
            else:
                meta[kind] = content if kind == _PAX else _cut(content)
            continue
        entry = _read_entry(header, meta)
        meta = {}
        end = source.position + entry.size + -entry.size % BLOCK
        yield entry
        source.skip_to(end)
    if meta:
        raise Truncated("The layer's archive ends after an extra header.")


def _has_right_sum(header: bytes) -> bool:
    # The low half of Adler-32 is one more than the sum of up to 257 bytes, and it is fast.
    parts = (header[:148], header[156:400], header[400:])
    total = sum((adler32(part) & 0xFFFF) - 1 for part in parts) + 8 * ord(" ")
    try:
        said = _number(header[148:156])
    except BadContent:
        return False
    return said == total or said == total - 256 * _count_high(parts)


def _count_high(parts: Iterable[bytes]) -> int:
    """Some old programs took bytes for signed when they summed them up."""
    return sum(byte > 127 for part in parts for byte in part)


def _number(field: bytes) -> int:
    """Octal digits, or a big-endian number where they do not suffice."""
    if field[0] & 0x80:
        if field[0] & 0x40:
            return int.from_bytes(field, "big", signed=True)
        return int.from_bytes(field, "big") & ((1 << (8 * len(field) - 1)) - 1)
    digits = field.partition(b"\0")[0].strip(b" ")
    try:
        return int(digits, 8) if digits.isdigit() else _no_number(field)
    except ValueError:
        return _no_number(field)


def _no_number(field: bytes) -> int:
    if not field.strip(b" \0"):
        return 0
    raise BadContent(f"The layer's archive has {field!r} where a number belongs.")


def _read_meta(source: Source, size: int) -> bytes:
    if not 0 <= size <= META_LIMIT:
        raise BadContent(
            f"The layer's archive has an extra header of {size} bytes; at most {META_LIMIT} are "
            "read."
        )
    content = source.read(size)
    source.skip_to(source.position + -size % BLOCK)
    return content


def _parse_records(content: bytes) -> dict[bytes, bytes]:
    """PAX records: the length of the whole record, a key, a value."""
    records = {}
    at = 0
    while at < len(content):
        found = _RECORD.match(content, at)
        end = at + int(found[1]) if found else 0
        if not found or end <= found.end() or content[end - 1 : end] != b"\n":
            raise BadContent("The layer's archive has a PAX header that cannot be read.")
        records[found[2]] = content[found.end() : end - 1]
        at = end
    return records


def _check_global(records: Records) -> None:
    for key in records:
        if key in (_PATH, _LINK_PATH, _SIZE) or key.startswith(_SPARSE):
            raise BadContent(
                f'The layer\'s archive sets "{key.decode(errors="replace")}" for all entries at '
                "once."
            )


def _read_entry(header: bytes, meta: Mapping[bytes, bytes]) -> Entry:
    records = _parse_records(meta[_PAX]) if _PAX in meta else {}
    name = _text(_first(records.get(_PATH), meta.get(_LONG_NAME), _header_name(header)))
    if not name:
        raise BadContent("The layer's archive has an entry without a name.")
    letter = header[156:157]
    if letter == b"S" or any(key.startswith(_SPARSE) for key in records):
        raise BadContent(f"{quoted(name)} in the layer is sparse, which files of layers are not.")
    kind = _KINDS.get(letter)
    if kind is None:
        raise BadContent(
            f"{quoted(name)} in the layer is of the unknown kind {letter.decode('latin-1')!r}."
        )
    if letter == b"\0" and name.endswith("/"):
        kind = Kind.DIRECTORY
    link = _first(records.get(_LINK_PATH), meta.get(_LONG_LINK), _cut(header[157:257]))
    return Entry(
        name,
        kind,
        _size(name, records.get(_SIZE), header) if kind is Kind.FILE else 0,
        _time(name, records.get(_MTIME), header),
        _text(link) if kind in (Kind.LINK, Kind.HARD_LINK) else "",
        _attributes(name, records.get(_ATTRIBUTES, b"0")),
        _DESCRIPTOR in records,
    )


def _first(in_pax: bytes | None, in_gnu: bytes | None, in_header: bytes) -> bytes:
    """Where a name is said more than once, the first counts, even if it is empty."""
    if in_pax is not None:
        return in_pax
    return in_header if in_gnu is None else in_gnu


def _header_name(header: bytes) -> bytes:
    name = _cut(header[:100])
    if header[257:263] == b"ustar\0" and (prefix := _cut(header[345:500])):
        return prefix + b"/" + name
    return name


def _cut(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _text(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError:
        shown = name.decode(errors="backslashreplace")
        raise BadContent(f"{quoted(shown)} in the layer is a name that is not UTF-8.") from None


def _size(name: str, record: bytes | None, header: bytes) -> int:
    if record and not (record.isdigit() and len(record) < 20):
        raise BadContent(f"{quoted(name)} in the layer has no size that can be read.")
    size = int(record) if record else _number(header[124:136])
    if size < 0:
        raise BadContent(f"{quoted(name)} in the layer has a size below zero.")
    return size


def _time(name: str, record: bytes | None, header: bytes) -> int:
    """Times before 1970 and after what a filesystem can keep are the nearest that it can."""
    if not record:
        return min(max(_number(header[136:148]), 0), _LATEST_SECOND) * 10**9
    found = _SECONDS.fullmatch(record)
    if not found:
        raise BadContent(f"{quoted(name)} in the layer has no time that can be read.")
    if found[1]:
        return 0
    fraction = int((found[3] or b"")[:9].ljust(9, b"0"))
    return min(int(found[2]), _LATEST_SECOND) * 10**9 + fraction


def _attributes(name: str, record: bytes) -> int:
    if not (record.isdigit() and len(record) < 11):
        raise BadContent(f"{quoted(name)} in the layer has no file attributes that can be read.")
    return int(record)


def quoted(name: str, shown: int = 100) -> str:
    """A name from a layer as a sentence can have it: short, and with nothing to fool a terminal."""
    text = name if len(name) <= shown else name[: shown - 1] + "…"
    safe = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return f'"{safe}"'
