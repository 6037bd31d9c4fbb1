"""What is on a disk, by its first bytes.

A disk is given a file system only where all of its beginning is zeros: anything else may be
somebody's data, also where nobody here knows what it is.
"""

from __future__ import annotations

from dataclasses import dataclass

BYTES_LOOKED_AT = 128 << 10
EMPTY, PARTITIONS, UNKNOWN = "nothing", "a partition table", "something that is not known here"


@dataclass(frozen=True, slots=True)
class FileSystem:
    """One that a guest can mount; `word` is the kernel's for it, and for its module."""

    name: str
    word: str
    options: str = ""


EXT4 = FileSystem("ext4", "ext4")
NTFS = FileSystem("NTFS", "ntfs3", "umask=000")
MOUNTABLE = {system.name: system for system in (EXT4, NTFS)}

_MARKS = (
    (1080, b"\x53\xef", EXT4.name),
    (3, b"NTFS    ", NTFS.name),
    (3, b"EXFAT   ", "exFAT"),
    (3, b"ReFS", "ReFS"),
    (3, b"-FVE-FS-", "BitLocker"),
    (82, b"FAT32", "FAT"),
    (54, b"FAT", "FAT"),
    (0, b"XFSB", "XFS"),
    (65600, b"_BHRfS_M", "Btrfs"),
    (0, b"LUKS\xba\xbe", "LUKS"),
    (536, b"LVM2 001", "LVM"),
    (32769, b"CD001", "ISO 9660"),
    (0, b"hsqs", "SquashFS"),
    (1024, b"\xe2\xe1\xf5\xe0", "EROFS"),
    (4086, b"SWAPSPACE2", "swap space"),
    (512, b"EFI PART", PARTITIONS),
    (4096, b"EFI PART", PARTITIONS),
    (510, b"\x55\xaa", PARTITIONS),
)


def recognise(head: bytes) -> str:
    """The name of what is there, as people say it."""
    for offset, mark, name in _MARKS:
        if head[offset : offset + len(mark)] == mark:
            return name
    return UNKNOWN if any(head) else EMPTY
