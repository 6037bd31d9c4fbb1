"""Registry hives for tests, created by hivex, with markers that only Windows writes."""

import struct
import subprocess
from collections.abc import Mapping
from functools import reduce
from operator import xor
from pathlib import Path

from winpod.images.winreg.wine_registry import RegistryValue

NOWHERE = 0xFFFFFFFF
SEGMENT = 16344

Keys = Mapping[str, Mapping[str, RegistryValue]]


def make_hive(path: Path, keys: Keys, *, version: int = 5) -> Path:
    """Create a hive with the keys, by their paths from its root."""
    path.write_bytes(empty_hive(version))
    script = path.with_name(path.name + ".reg")
    script.write_text(_regedit(keys), encoding="utf-8")
    command = ["hivexregedit", "--merge", "--prefix", r"HKEY_LOCAL_MACHINE\H"]
    try:
        done = subprocess.run(
            [*command, path, script], capture_output=True, text=True, timeout=60, check=False
        )
    except FileNotFoundError:
        raise AssertionError("hivexregedit is missing: apt-get install libwin-hivex-perl") from None
    assert done.returncode == 0, done.stderr
    script.unlink()
    return path


def empty_hive(version: int = 5) -> bytes:
    """Return the smallest hive that hivex accepts: a root key and its security descriptor.

    Written by hand, because hivex can only edit hives.
    """
    security_at = 0x20 + 88
    root = _cell(
        struct.pack("<2sHQIIII", b"nk", 0x2C, 0, 0, NOWHERE, 0, 0)
        + struct.pack("<IIIIII", NOWHERE, NOWHERE, 0, NOWHERE, security_at, NOWHERE)
        + struct.pack("<IIIIIHH4s", 0, 0, 0, 0, 0, 4, 0, b"ROOT")
    )
    descriptor = struct.pack("<BBHIIII", 1, 0, 0x8000, 0, 0, 0, 0)
    security = struct.pack("<2sHIIII", b"sk", 0, security_at, security_at, 1, len(descriptor))
    content = root + _cell(security + descriptor)
    base = struct.pack("<4sIIQIIIIIII", b"regf", 1, 1, 0, 1, version, 0, 1, 0x20, 4096, 1)
    return with_checksum(base.ljust(4096, b"\0") + _bin(0, content))


def with_checksum(hive: bytes) -> bytes:
    checksum = reduce(xor, struct.unpack("<127I", hive[:508]))
    return hive[:508] + struct.pack("<I", checksum) + hive[512:]


def with_key_mark(hive: bytes, name: str, mark: int) -> bytes:
    """Mark a key of a delta hive like Windows: in the byte after the access bits."""
    at = key_at(hive, name) + 13
    return hive[:at] + bytes([mark]) + hive[at + 1 :]


def with_deleted_value(hive: bytes, name: str) -> bytes:
    """Mark a value of a delta hive as deleted like Windows: a flag, no type, no data."""
    at = value_at(hive, name)
    header = struct.pack("<IIIH", 0, NOWHERE, 0, 3)
    return hive[: at + 4] + header + hive[at + 18 :]


def with_big_data(hive: bytes, name: str, content: bytes) -> bytes:
    """Store a value in segments, like Windows for more than 16344 bytes; hivex does not."""
    segments = [content[at : at + SEGMENT] for at in range(0, len(content), SEGMENT)]
    start = len(hive) - 4096
    cells = b""
    places = []
    for segment in segments:
        places.append(start + 32 + len(cells))
        cells += _cell(segment)
    list_at = start + 32 + len(cells)
    cells += _cell(struct.pack(f"<{len(places)}I", *places))
    record_at = start + 32 + len(cells)
    cells += _cell(struct.pack("<2sHI", b"db", len(segments), list_at))
    at = value_at(hive, name)
    hive = hive[: at + 4] + struct.pack("<II", len(content), record_at) + hive[at + 12 :]
    hive += _bin(start, cells)
    return with_checksum(hive[:40] + struct.pack("<I", len(hive) - 4096) + hive[44:])


def key_at(hive: bytes | bytearray, name: str) -> int:
    return _record_at(hive, b"nk", 76, name)


def value_at(hive: bytes | bytearray, name: str) -> int:
    return _record_at(hive, b"vk", 20, name)


def _record_at(hive: bytes | bytearray, signature: bytes, header: int, name: str) -> int:
    at = hive.index(name.encode("latin-1"))
    while hive[at - header : at - header + 2] != signature:
        at = hive.index(name.encode("latin-1"), at + 1)
    return at - header


def _cell(content: bytes) -> bytes:
    size = -(-(len(content) + 4) // 8) * 8
    return struct.pack("<i", -size) + content.ljust(size - 4, b"\0")


def _bin(start: int, cells: bytes) -> bytes:
    size = -(-(len(cells) + 32 + 8) // 4096) * 4096
    head = struct.pack("<4sIIQQI", b"hbin", start, size, 0, 0, 0)
    return (head + cells + struct.pack("<i", size - 32 - len(cells))).ljust(size, b"\0")


def _regedit(keys: Keys) -> str:
    lines = ["Windows Registry Editor Version 5.00", ""]
    written = set()
    for path, values in keys.items():
        parts = path.split("\\")
        for depth in range(1, len(parts)):
            parent = "\\".join(parts[:depth])
            if parent not in written and parent not in keys:
                lines += [rf"[HKEY_LOCAL_MACHINE\H\{parent}]", ""]
                written.add(parent)
        written.add(path)
        lines.append(rf"[HKEY_LOCAL_MACHINE\H\{path}]")
        lines += [_line(name, value) for name, value in values.items()]
        lines.append("")
    return "\n".join(lines)


def _line(name: str, value: RegistryValue) -> str:
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    start = f'"{escaped}"' if name else "@"
    return f"{start}=hex({value.kind:x}):{value.data.hex(',')}"
