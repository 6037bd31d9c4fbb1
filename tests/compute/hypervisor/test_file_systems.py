"""What is on a disk, and that nothing but zeros is taken for nothing."""

import pytest

from winpod.compute.hypervisor.file_systems import (
    BYTES_LOOKED_AT,
    EMPTY,
    EXT4,
    MOUNTABLE,
    NTFS,
    PARTITIONS,
    UNKNOWN,
    recognise,
)


def with_mark(*marks: tuple[int, bytes]) -> bytes:
    head = bytearray(BYTES_LOOKED_AT)
    for offset, mark in marks:
        head[offset : offset + len(mark)] = mark
    return bytes(head)


@pytest.mark.parametrize(
    ("head", "found"),
    [
        (with_mark(), EMPTY),
        (b"", EMPTY),
        (with_mark((BYTES_LOOKED_AT - 1, b"x")), UNKNOWN),
        (with_mark((1080, b"\x53\xef")), EXT4.name),
        (with_mark((3, b"NTFS    "), (510, b"\x55\xaa")), NTFS.name),
        (with_mark((510, b"\x55\xaa")), PARTITIONS),
        (with_mark((510, b"\x55\xaa"), (512, b"EFI PART")), PARTITIONS),
        (with_mark((82, b"FAT32   "), (510, b"\x55\xaa")), "FAT"),
        (with_mark((3, b"-FVE-FS-"), (510, b"\x55\xaa")), "BitLocker"),
    ],
)
def test_the_first_bytes_tell_what_is_there(head: bytes, found: str) -> None:
    assert recognise(head) == found


def test_only_what_the_guest_has_a_driver_for_can_be_mounted() -> None:
    assert set(MOUNTABLE) == {"ext4", "NTFS"}
