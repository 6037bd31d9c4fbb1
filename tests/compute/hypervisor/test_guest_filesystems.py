"""Detection of file systems; only zeros count as empty."""

import pytest

from winpod.compute.hypervisor.guest_filesystems import (
    EMPTY,
    EXT4,
    MOUNTABLE,
    NTFS,
    PARTITIONS,
    PROBE_BYTES,
    UNKNOWN,
    detect_filesystem,
)


def with_mark(*marks: tuple[int, bytes]) -> bytes:
    head = bytearray(PROBE_BYTES)
    for offset, mark in marks:
        head[offset : offset + len(mark)] = mark
    return bytes(head)


@pytest.mark.parametrize(
    ("head", "found"),
    [
        (with_mark(), EMPTY),
        (b"", EMPTY),
        (with_mark((PROBE_BYTES - 1, b"x")), UNKNOWN),
        (with_mark((1080, b"\x53\xef")), EXT4.name),
        (with_mark((3, b"NTFS    "), (510, b"\x55\xaa")), NTFS.name),
        (with_mark((510, b"\x55\xaa")), PARTITIONS),
        (with_mark((510, b"\x55\xaa"), (512, b"EFI PART")), PARTITIONS),
        (with_mark((82, b"FAT32   "), (510, b"\x55\xaa")), "FAT"),
        (with_mark((3, b"-FVE-FS-"), (510, b"\x55\xaa")), "BitLocker"),
    ],
)
def test_file_system_is_detected_by_its_first_bytes(head: bytes, found: str) -> None:
    assert detect_filesystem(head) == found


def test_only_file_systems_with_a_guest_driver_are_mountable() -> None:
    assert set(MOUNTABLE) == {"ext4", "NTFS"}
