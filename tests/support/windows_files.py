"""Windows program files that consist of headers, sections and symbols only."""

import struct

MARK = b"Wine builtin DLL\0"
FILE_ALIGNMENT, SECTION_ALIGNMENT = 0x200, 0x1000
_OPTIONAL = 240


def program(
    sections: dict[str, bytes] | None = None,
    *,
    machine: int = 0x8664,
    symbols: bool = True,
    managed: bool = False,
) -> bytes:
    """Return a file as GNU ld writes it: long section names are in the string table."""
    content = sections if sections is not None else {".text": b"code"}
    offset = 0x80
    header = bytearray(offset)
    header[:2] = b"MZ"
    header[0x40 : 0x40 + len(MARK)] = MARK
    struct.pack_into("<I", header, 0x3C, offset)
    strings, names = _strings(list(content))
    table, body = bytearray(), bytearray()
    headers = _up(offset + 24 + _OPTIONAL + 40 * len(content), FILE_ALIGNMENT)
    address = SECTION_ALIGNMENT
    for name, data in zip(names, content.values(), strict=True):
        stored = data.ljust(_up(len(data), FILE_ALIGNMENT), b"\0")
        at = headers + len(body) if stored else 0
        table += struct.pack("<8s6I2HI", name, len(data), address, len(stored), at, 0, 0, 0, 0, 0)
        body += stored
        address += _up(len(data), SECTION_ALIGNMENT)
    at_symbols = headers + len(body) if symbols else 0
    coff = struct.pack(
        "<4s2H3I2H", b"PE\0\0", machine, len(content), 0, at_symbols, int(symbols), _OPTIONAL, 0
    )
    optional = bytearray(_OPTIONAL)
    struct.pack_into("<H", optional, 0, 0x20B)
    struct.pack_into("<2I", optional, 32, SECTION_ALIGNMENT, FILE_ALIGNMENT)
    struct.pack_into("<3I", optional, 56, address, headers, 0xABCD)
    struct.pack_into("<I", optional, 108, 16)
    struct.pack_into("<2I", optional, 112 + 8 * 14, SECTION_ALIGNMENT * managed, 72 * managed)
    whole = (bytes(header) + coff + bytes(optional) + bytes(table)).ljust(headers, b"\0")
    return whole + bytes(body) + (bytes(18) + strings if symbols else b"")


def _strings(names: list[str]) -> tuple[bytes, list[bytes]]:
    table, short = bytearray(4), []
    for name in names:
        encoded = name.encode()
        if len(encoded) > 8:
            short.append(f"/{len(table)}".encode())
            table += encoded + b"\0"
        else:
            short.append(encoded)
    struct.pack_into("<I", table, 0, len(table))
    return bytes(table), short


def _up(size: int, unit: int) -> int:
    return -(-size // unit) * unit
