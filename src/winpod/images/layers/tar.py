"""Streaming decompression and tar parsing (ustar, PAX and GNU headers) of layers.

As in containerd, the magic bytes determine the compression, and the manifest only states whether
uncompressed content is expected. Archives are untrusted: an inconsistent header raises
`CorruptContent`, and chunks and extended headers have a size limit, which bounds memory usage.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from typing import IO, cast
from zlib import adler32

import zstandard
from isal import igzip_lib

from winpod.images.errors import CorruptContent

GZIP, ZSTD, NONE = "gzip", "zstd", "none"

_CHUNK_SIZE = 1 << 20
_GZIP_MAGIC = b"\x1f\x8b\x08"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_SKIPPABLE_MAGIC = b"\x2a\x4d\x18"
_MAX_WINDOW = 1 << 27
_GzipError = cast(type[Exception], igzip_lib.error)


def decompress(chunks: Iterable[bytes], compression: str) -> Iterator[bytes]:
    rest = iter(chunks)
    head = b""
    while len(head) < len(_ZSTD_MAGIC) and (chunk := next(rest, None)) is not None:
        head += chunk
    content = chain((head,), rest)
    match _detect_compression(head, compression):
        case "gzip":
            return _gunzip(content)
        case "zstd":
            return _unzstd(content)
    return (chunk for chunk in content if chunk)


def decompress_head(head: bytes, compression: str) -> Iterator[bytes]:
    """Decompress the first bytes of a layer, ignoring that they are truncated."""
    pieces = decompress((head,), compression)
    while True:
        try:
            yield next(pieces)
        except (StopIteration, CorruptContent):
            return


def _detect_compression(head: bytes, declared: str) -> str:
    if head.startswith(_GZIP_MAGIC):
        return GZIP
    if head.startswith(_ZSTD_MAGIC) or (head[1:4] == _ZSTD_SKIPPABLE_MAGIC and head[0] >> 4 == 5):
        return ZSTD
    if declared != NONE:
        raise CorruptContent(f"The layer is declared as {declared}, but is not compressed with it.")
    return NONE


def _gunzip(chunks: Iterable[bytes]) -> Iterator[bytes]:
    member = _gzip_member()
    for chunk in chunks:
        data = chunk
        while data or not (member.needs_input or member.eof):
            if member.eof:
                data = data.lstrip(b"\0")
                if not data:
                    break
                member = _gzip_member()
            try:
                piece = member.decompress(data, _CHUNK_SIZE)
            except (_GzipError, EOFError) as error:
                raise CorruptContent(f"The layer's gzip content is damaged: {error}.") from None
            data = member.unused_data if member.eof else b""
            if piece:
                yield piece
    if not member.eof:
        raise CorruptContent("The layer's gzip content ends too early.")


def _gzip_member() -> igzip_lib.IgzipDecompressor:
    return igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)


def _unzstd(chunks: Iterable[bytes]) -> Iterator[bytes]:
    reader = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW).stream_reader(
        cast(IO[bytes], _Readable(chunks)), read_across_frames=True
    )
    while True:
        try:
            piece = reader.read(_CHUNK_SIZE)
        except zstandard.ZstdError as error:
            raise CorruptContent(f"The layer's zstd content is damaged: {error}.") from None
        if not piece:
            return
        yield piece


class _Readable:
    """File-like adapter of chunks for zstandard, which treats the read size as a hint."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = filter(None, chunks)

    def read(self, _size: int) -> bytes:
        return next(self._chunks, b"")


BLOCK = 512
EXTENDED_HEADER_LIMIT = 1 << 20
_ZEROES = bytes(BLOCK)
_MAX_SECONDS = (1 << 34) - 1

_PAX, _PAX_GLOBAL, _LONG_NAME, _LONG_LINK = b"x", b"g", b"L", b"K"
_PATH, _LINK_PATH, _SIZE, _MTIME = b"path", b"linkpath", b"size", b"mtime"
_ATTRIBUTES, _DESCRIPTOR = b"MSWINDOWS.fileattr", b"MSWINDOWS.rawsd"
_SPARSE = b"GNU.sparse."

_RECORD = re.compile(rb"([1-9][0-9]{0,8}) ([^=\n\0]+)=")
_SECONDS = re.compile(rb"(-?)([0-9]{1,20})(?:\.([0-9]*))?")

Records = Mapping[bytes, bytes]


class EntryType(Enum):
    FILE = "a file"
    DIRECTORY = "a directory"
    LINK = "a symbolic link"
    HARD_LINK = "a hard link"
    CHARACTER_DEVICE = "a character device"
    BLOCK_DEVICE = "a block device"
    FIFO = "a pipe"


_ENTRY_TYPES = {
    b"\0": EntryType.FILE,
    b"0": EntryType.FILE,
    b"7": EntryType.FILE,
    b"1": EntryType.HARD_LINK,
    b"2": EntryType.LINK,
    b"3": EntryType.CHARACTER_DEVICE,
    b"4": EntryType.BLOCK_DEVICE,
    b"5": EntryType.DIRECTORY,
    b"6": EntryType.FIFO,
}


class TruncatedArchive(CorruptContent):
    """The archive ends in the middle of a header or file."""


@dataclass(frozen=True, slots=True)
class TarEntry:
    """A parsed header. The entry's content is the next `size` bytes of the stream."""

    name: str
    kind: EntryType
    size: int = 0
    mtime: int = 0
    """Nanoseconds since the Unix epoch."""
    link: str = ""
    attributes: int = 0
    has_descriptor: bool = False


class TarStream:
    """Sequential reader of an archive that arrives in chunks."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._view = memoryview(b"")
        self._at = 0
        self._before = 0

    @property
    def position(self) -> int:
        return self._before + self._at

    def read(self, size: int) -> bytes:
        """Return the next `size` bytes, or fewer at the end."""
        view, at = self._view, self._at
        if at + size <= len(view):
            self._at = at + size
            return bytes(view[at : at + size])
        return b"".join(bytes(part) for part in self._take(size))

    def skip_to(self, position: int) -> None:
        for _ in self._take(position - self.position):
            pass
        if self.position != position:
            raise TruncatedArchive("The layer's archive ends in the middle of a file.")

    def copy(self, size: int, file: int) -> None:
        """Write the next bytes to a file descriptor."""
        for part in self._take(size):
            size -= len(part)
            while len(part) > (written := os.write(file, part)):
                part = part[written:]
        if size:
            raise TruncatedArchive("The layer's archive ends in the middle of a file.")

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


def read_entries(source: TarStream) -> Iterator[TarEntry]:
    """Yield the entries in order, skipping content that the caller did not read."""
    meta: dict[bytes, bytes] = {}
    while (header := source.read(BLOCK)) != b"":
        if len(header) < BLOCK:
            raise TruncatedArchive("The layer's archive ends in the middle of a header.")
        if header == _ZEROES:
            if meta or source.read(BLOCK) not in (_ZEROES, b""):
                raise CorruptContent(
                    "The layer's archive has data after its end-of-archive marker."
                )
            return
        if not _has_valid_checksum(header):
            raise CorruptContent(
                "The layer's archive is damaged: a header has a wrong checksum."
                if source.position > BLOCK
                else "The layer is not a tar archive."
            )
        kind = header[156:157]
        if kind in (_PAX, _PAX_GLOBAL, _LONG_NAME, _LONG_LINK):
            if kind in meta:
                raise CorruptContent(
                    "The layer's archive has duplicate extended headers for one entry."
                )
            content = _read_meta(source, _number(header[124:136]))
            if kind == _PAX_GLOBAL:
                _check_global(_parse_records(content))
            else:
                meta[kind] = content if kind == _PAX else _until_nul(content)
            continue
        entry = _read_entry(header, meta)
        meta = {}
        end = source.position + entry.size + -entry.size % BLOCK
        yield entry
        source.skip_to(end)
    if meta:
        raise TruncatedArchive("The layer's archive ends after an extended header.")


def _has_valid_checksum(header: bytes) -> bool:
    # The low half of Adler-32 minus one is the sum of up to 257 bytes, and it is fast.
    parts = (header[:148], header[156:400], header[400:])
    total = sum((adler32(part) & 0xFFFF) - 1 for part in parts) + 8 * ord(" ")
    try:
        stored = _number(header[148:156])
    except CorruptContent:
        return False
    return stored == total or stored == total - 256 * _count_high_bytes(parts)


def _count_high_bytes(parts: Iterable[bytes]) -> int:
    """Count the bytes that some old programs summed as negative numbers."""
    return sum(byte > 127 for part in parts for byte in part)


def _number(field: bytes) -> int:
    """Parse octal digits, or the base-256 encoding of larger numbers."""
    if field[0] & 0x80:
        if field[0] & 0x40:
            return int.from_bytes(field, "big", signed=True)
        return int.from_bytes(field, "big") & ((1 << (8 * len(field) - 1)) - 1)
    digits = field.partition(b"\0")[0].strip(b" ")
    try:
        return int(digits, 8) if digits.isdigit() else _zero_if_blank(field)
    except ValueError:
        return _zero_if_blank(field)


def _zero_if_blank(field: bytes) -> int:
    if not field.strip(b" \0"):
        return 0
    raise CorruptContent(f"The layer's archive has {field!r} instead of a number.")


def _read_meta(source: TarStream, size: int) -> bytes:
    if not 0 <= size <= EXTENDED_HEADER_LIMIT:
        raise CorruptContent(
            f"The layer's archive has an extended header of {size} bytes; the limit is "
            f"{EXTENDED_HEADER_LIMIT}."
        )
    content = source.read(size)
    source.skip_to(source.position + -size % BLOCK)
    return content


def _parse_records(content: bytes) -> dict[bytes, bytes]:
    """Parse PAX records: the length of the record, a key and a value."""
    records = {}
    offset = 0
    while offset < len(content):
        match = _RECORD.match(content, offset)
        end = offset + int(match[1]) if match else 0
        if not match or end <= match.end() or content[end - 1 : end] != b"\n":
            raise CorruptContent("The layer's archive has an invalid PAX header.")
        records[match[2]] = content[match.end() : end - 1]
        offset = end
    return records


def _check_global(records: Records) -> None:
    for key in records:
        if key in (_PATH, _LINK_PATH, _SIZE) or key.startswith(_SPARSE):
            raise CorruptContent(
                f'The layer\'s archive has "{key.decode(errors="replace")}" in a global PAX header.'
            )


def _read_entry(header: bytes, meta: Mapping[bytes, bytes]) -> TarEntry:
    records = _parse_records(meta[_PAX]) if _PAX in meta else {}
    name = _text(_first(records.get(_PATH), meta.get(_LONG_NAME), _header_name(header)))
    if not name:
        raise CorruptContent("The layer's archive has an entry without a name.")
    type_flag = header[156:157]
    if type_flag == b"S" or any(key.startswith(_SPARSE) for key in records):
        raise CorruptContent(
            f"{quote_name(name)} in the layer is a sparse file, which is not supported."
        )
    kind = _ENTRY_TYPES.get(type_flag)
    if kind is None:
        raise CorruptContent(
            f"{quote_name(name)} in the layer has the unknown type {type_flag.decode('latin-1')!r}."
        )
    if type_flag == b"\0" and name.endswith("/"):
        kind = EntryType.DIRECTORY
    link = _first(records.get(_LINK_PATH), meta.get(_LONG_LINK), _until_nul(header[157:257]))
    return TarEntry(
        name,
        kind,
        _size(name, records.get(_SIZE), header) if kind is EntryType.FILE else 0,
        _time(name, records.get(_MTIME), header),
        _text(link) if kind in (EntryType.LINK, EntryType.HARD_LINK) else "",
        _attributes(name, records.get(_ATTRIBUTES, b"0")),
        _DESCRIPTOR in records,
    )


def _first(in_pax: bytes | None, in_gnu: bytes | None, in_header: bytes) -> bytes:
    """Return the name with the highest precedence, even if it is empty."""
    if in_pax is not None:
        return in_pax
    return in_header if in_gnu is None else in_gnu


def _header_name(header: bytes) -> bytes:
    name = _until_nul(header[:100])
    if header[257:263] == b"ustar\0" and (prefix := _until_nul(header[345:500])):
        return prefix + b"/" + name
    return name


def _until_nul(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _text(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError:
        shown = name.decode(errors="backslashreplace")
        raise CorruptContent(f"{quote_name(shown)} in the layer is not valid UTF-8.") from None


def _size(name: str, record: bytes | None, header: bytes) -> int:
    if record and not (record.isdigit() and len(record) < 20):
        raise CorruptContent(f"{quote_name(name)} in the layer has an invalid size.")
    size = int(record) if record else _number(header[124:136])
    if size < 0:
        raise CorruptContent(f"{quote_name(name)} in the layer has a negative size.")
    return size


def _time(name: str, record: bytes | None, header: bytes) -> int:
    """Return the mtime, clamped to the range that filesystems can store."""
    if not record:
        return min(max(_number(header[136:148]), 0), _MAX_SECONDS) * 10**9
    match = _SECONDS.fullmatch(record)
    if not match:
        raise CorruptContent(f"{quote_name(name)} in the layer has an invalid mtime.")
    if match[1]:
        return 0
    fraction = int((match[3] or b"")[:9].ljust(9, b"0"))
    return min(int(match[2]), _MAX_SECONDS) * 10**9 + fraction


def _attributes(name: str, record: bytes) -> int:
    if not (record.isdigit() and len(record) < 11):
        raise CorruptContent(f"{quote_name(name)} in the layer has invalid file attributes.")
    return int(record)


def quote_name(name: str, shown: int = 100) -> str:
    """Quote a name for messages, truncated and without terminal control characters."""
    text = name if len(name) <= shown else name[: shown - 1] + "…"
    safe = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return f'"{safe}"'
