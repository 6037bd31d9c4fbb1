"""Windows program files: which machine one is for, and the same file without debugging data.

Only headers are read. What Wine looks for in a file of its own, a mark between the DOS header and
the PE header, is kept, which `strip` of GNU binutils does not do.
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
_DEBUGGING = b".debug_"
_DIRECTORIES = {0x10B: 96, 0x20B: 112}
_CLR = 14


class Machine(IntEnum):
    """Machines that Windows has programs for; a file may name any other number."""

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


def machine_of(program: Path) -> int | None:
    """The machine that a file is for, or None where it is no program of Windows."""
    with program.open("rb") as file:
        header = _read_header(file.read(_HEADERS))
        return header.machine if header else None


def is_managed(program: Path) -> bool:
    """Whether it is code for a .NET that Windows has; newer ones start with a native program."""
    with program.open("rb") as file:
        data = file.read(_HEADERS)
    header = _read_header(data)
    if header is None:
        return False
    start = _DIRECTORIES.get(int.from_bytes(data[header.optional : header.optional + 2], "little"))
    if start is None or _number(data, header.optional + start - 4) <= _CLR:
        return False
    return _number(data, header.optional + start + 8 * _CLR) != 0


def without_debugging(data: bytes) -> bytes:
    """The same program without the sections and symbols that only a debugger reads.

    What follows the last section goes too, symbols and their names. A file that has a section after
    its debugging data, or headers that contradict themselves, is given back as it is.
    """
    header = _read_header(data)
    if header is None or len(data) < header.table + header.sections * _SECTION.size:
        return data
    sections = [
        _SECTION.unpack_from(data, header.table + number * _SECTION.size)
        for number in range(header.sections)
    ]
    debugging = [_name(data, header, section).startswith(_DEBUGGING) for section in sections]
    kept = sections[: debugging.index(True)] if True in debugging else sections
    if not all(debugging[len(kept) :]) or not kept:
        return data
    headers = _number(data, header.optional + _SIZE_OF_HEADERS)
    end = max(headers, *(int(s[4]) + int(s[3]) for s in kept if s[4]), 0)
    table_end = header.table + len(sections) * _SECTION.size
    nothing_to_do = len(kept) == len(sections) and not header.symbols
    if nothing_to_do or not table_end <= end <= len(data):
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
    gone = (len(sections) - len(kept)) * _SECTION.size
    at = header.table + len(kept) * _SECTION.size
    result[at : at + gone] = bytes(gone)
    return bytes(result)


def _read_header(data: bytes) -> _Header | None:
    if data[:2] != b"MZ" or len(data) < 64:
        return None
    offset = _number(data, 60)
    if len(data) < offset + _COFF.size:
        return None
    mark, machine, sections, _, symbols, count, size, _ = _COFF.unpack_from(data, offset)
    if mark != b"PE\0\0" or len(data) < offset + _COFF.size + size or size < 68:
        return None
    return _Header(offset, machine, sections, symbols, count, size)


def _name(data: bytes, header: _Header, section: tuple[bytes, ...]) -> bytes:
    """A section's name; one that is too long for its place is in the table of strings."""
    name = section[0].rstrip(b"\0")
    if not header.symbols or name[:1] != b"/" or not name[1:].isdigit():
        return name
    start = header.symbols + header.symbol_count * _SYMBOL_SIZE + int(name[1:])
    return data[start : start + 256].partition(b"\0")[0]


def _number(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "little")
