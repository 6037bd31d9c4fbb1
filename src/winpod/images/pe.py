"""PE files: read the machine type, detect .NET Framework code, and strip debug data.

Unlike `strip` of GNU binutils, stripping keeps the marker between the DOS and PE headers by which
Wine recognises its own builtin files.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

_HEADERS = 4096
_COFF = struct.Struct("<4sHHIIIHH")
_SECTION = struct.Struct("<8sIIIIIIHHI")
_SYMBOL_SIZE = 18
_SECTION_ALIGNMENT, _SIZE_OF_IMAGE, _SIZE_OF_HEADERS, _CHECKSUM = 32, 56, 60, 64
_DEBUG_SECTION = b".debug_"
_DATA_DIRECTORY_OFFSETS = {0x10B: 96, 0x20B: 112}
_CLR_DIRECTORY = 14


class PeMachine(IntEnum):
    """Machine types of Windows programs; a file may have any other number."""

    I386 = 0x14C
    ARM = 0x1C4
    AMD64 = 0x8664
    ARM64 = 0xAA64


@dataclass(frozen=True, slots=True)
class _Header:
    offset: int
    machine: int
    sections: int
    symbols: int
    symbol_count: int
    optional_size: int

    @property
    def optional(self) -> int:
        return self.offset + _COFF.size

    @property
    def table(self) -> int:
        return self.optional + self.optional_size


def pe_machine(program: Path) -> int | None:
    """Return the machine type of a PE file, or None if it is not a PE file."""
    with program.open("rb") as file:
        header = _read_header(file.read(_HEADERS))
        return header.machine if header else None


def is_dotnet(program: Path) -> bool:
    """Return whether it is a .NET Framework assembly; newer .NET has a native launcher."""
    with program.open("rb") as file:
        data = file.read(_HEADERS)
    header = _read_header(data)
    if header is None:
        return False
    start = _DATA_DIRECTORY_OFFSETS.get(
        int.from_bytes(data[header.optional : header.optional + 2], "little")
    )
    if start is None or _number(data, header.optional + start - 4) <= _CLR_DIRECTORY:
        return False
    return _number(data, header.optional + start + 8 * _CLR_DIRECTORY) != 0


def strip_debug_data(data: bytes) -> bytes:
    """Remove debug sections, symbols and everything else after the last kept section.

    A file with a section after its debug data, or with inconsistent headers, is returned unchanged.
    """
    header = _read_header(data)
    if header is None or len(data) < header.table + header.sections * _SECTION.size:
        return data
    sections = [
        _SECTION.unpack_from(data, header.table + number * _SECTION.size)
        for number in range(header.sections)
    ]
    is_debug = [_name(data, header, section).startswith(_DEBUG_SECTION) for section in sections]
    kept = sections[: is_debug.index(True)] if True in is_debug else sections
    if not all(is_debug[len(kept) :]) or not kept:
        return data
    headers = _number(data, header.optional + _SIZE_OF_HEADERS)
    end = max(headers, *(int(s[4]) + int(s[3]) for s in kept if s[4]), 0)
    table_end = header.table + len(sections) * _SECTION.size
    is_stripped = len(kept) == len(sections) and not header.symbols
    if is_stripped or not table_end <= end <= len(data):
        return data
    alignment = max(1, _number(data, header.optional + _SECTION_ALIGNMENT))
    in_memory = max(int(s[2]) + max(int(s[1]), int(s[3])) for s in kept)
    result = bytearray(data[:end])
    struct.pack_into("<H", result, header.offset + 6, len(kept))
    struct.pack_into("<II", result, header.offset + 12, 0, 0)
    size = -(-in_memory // alignment) * alignment
    if size >= 1 << 32:
        return data
    struct.pack_into("<I", result, header.optional + _SIZE_OF_IMAGE, size)
    struct.pack_into("<I", result, header.optional + _CHECKSUM, 0)
    removed = (len(sections) - len(kept)) * _SECTION.size
    offset = header.table + len(kept) * _SECTION.size
    result[offset : offset + removed] = bytes(removed)
    return bytes(result)


def _read_header(data: bytes) -> _Header | None:
    if data[:2] != b"MZ" or len(data) < 64:
        return None
    offset = _number(data, 60)
    if len(data) < offset + _COFF.size:
        return None
    signature, machine, sections, _, symbols, count, size, _ = _COFF.unpack_from(data, offset)
    if signature != b"PE\0\0" or len(data) < offset + _COFF.size + size or size < 68:
        return None
    return _Header(offset, machine, sections, symbols, count, size)


def _name(data: bytes, header: _Header, section: tuple[bytes, ...]) -> bytes:
    """Return a section's name; names longer than 8 bytes are in the string table."""
    name = section[0].rstrip(b"\0")
    if not header.symbols or name[:1] != b"/" or not name[1:].isdigit():
        return name
    start = header.symbols + header.symbol_count * _SYMBOL_SIZE + int(name[1:])
    return data[start : start + 256].partition(b"\0")[0]


def _number(data: bytes, offset: int) -> int:
    return int.from_bytes(data[offset : offset + 4], "little")
