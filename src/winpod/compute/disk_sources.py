"""Disks as the sources of mounts: `virtual-disk://PATH` is an image in a file, `physical-disk://PATH`
a block device of this machine.

The format of an image is what its name ends in, and its first bytes have to agree: so nobody who
writes to a disk from inside can make another format of it, which could name files of this machine.
"""

from __future__ import annotations

from winpod.compute.plan import SourceKind
from winpod.windows.errors import InvalidInput, WinpodError
from winpod.windows.paths import machine_path

DISKS = (SourceKind.VIRTUAL_DISK, SourceKind.PHYSICAL_DISK)
HEAD_BYTES = FOOT_BYTES = 512
RAW = "raw"
_WINDOWS_DISK = "\\\\.\\PHYSICALDRIVE"
_FORMATS = {".qcow2": "qcow2", ".vhdx": "vhdx", ".vhd": "vpc"}
_BEGINNINGS = {b"QFI\xfb": "qcow2", b"vhdxfile": "vhdx", b"conectix": "vpc"}
_DIFFERENCING = 4


class DiskRefused(WinpodError):
    """A disk that a container asks for cannot be attached to its pod."""

    code = "FAILED_PRECONDITION"


def disk_source(source: str) -> tuple[SourceKind, str] | None:
    """The kind of a disk and its path on this machine, None where something else is meant."""
    if source.upper().startswith(_WINDOWS_DISK):
        raise _of_windows(source)
    scheme, separator, path = source.partition("://")
    if not separator or scheme not in DISKS:
        return None
    if path.upper().startswith(_WINDOWS_DISK):
        raise _of_windows(path)
    place = machine_path(path)
    if not place.startswith("/") or "\0" in place:
        raise InvalidInput(
            f'"{source}" does not say where the disk is.',
            "Write virtual-disk:///path/disk.img or physical-disk:///dev/sdb.",
        )
    return SourceKind(scheme), place


def _of_windows(path: str) -> InvalidInput:
    return InvalidInput(
        f"{path} is a disk of a Windows machine, and this machine is none.",
        "Name a block device, such as physical-disk:///dev/sdb.",
    )


def without_machine(source: str, destination: str) -> DiskRefused:
    return DiskRefused(
        f"the disk {source} cannot be mounted on {destination}: only a pod with hypervisor "
        "isolation has a machine that a disk can be attached to.",
        "Use a handler such as runhcs-wcow-hypervisor, or mount a directory.",
    )


def image_format(path: str, head: bytes, foot: bytes) -> str:
    """What QEMU calls the format of an image, or the sentence that says why it is refused."""
    found = next((name for magic, name in _BEGINNINGS.items() if head.startswith(magic)), RAW)
    wanted = next((name for end, name in _FORMATS.items() if path.lower().endswith(end)), RAW)
    if wanted == "vpc" and foot.startswith(b"conectix"):
        found = "vpc"
    if found != wanted:
        raise DiskRefused(
            f"{path} is {_told(wanted)} by its name, and {_told(found)} by its first bytes.",
            f"A name ends in {', '.join(_FORMATS)} when the image is one, and in nothing of "
            "these when it is raw.",
        )
    if names := _depends_on(wanted, head, foot):
        raise DiskRefused(
            f"{path} {names}, and what else that names of this machine is not for a pod to have.",
            "Make one image of it: qemu-img convert, or Convert-VHD.",
        )
    return wanted


def _told(name: str) -> str:
    return "a raw disk" if name == RAW else f"a {'vhd' if name == 'vpc' else name} image"


def _depends_on(name: str, head: bytes, foot: bytes) -> str:
    if name == "qcow2":
        if any(head[8:16]):
            return "has a backing file"
        version, features = head[7], head[79:80]
        return "has its data in another file" if version >= 3 and features[0] & 4 else ""
    if name == "vpc":
        footer = foot if foot.startswith(b"conectix") else head
        kind = int.from_bytes(footer[60:64], "big")
        return "is a differencing disk" if kind == _DIFFERENCING else ""
    return ""
