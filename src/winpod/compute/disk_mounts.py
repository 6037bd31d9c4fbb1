"""Disks as mount sources: `virtual-disk://PATH` is a disk image, `physical-disk://PATH` a block
device of the host.

The format of an image is its file name extension, and its first bytes have to match. Otherwise a
program that writes to a raw disk could turn it into a format that refers to other files of the
host.
"""

from __future__ import annotations

from winpod.compute.spec import MountSourceKind
from winpod.errors import InvalidInput, WinpodError
from winpod.labels import HYPERVISOR_HANDLER_NAME
from winpod.windows.paths import host_path

DISK_KINDS = (MountSourceKind.VIRTUAL_DISK, MountSourceKind.PHYSICAL_DISK)
HEAD_BYTES = FOOT_BYTES = 512
RAW = "raw"
_WINDOWS_DISK = "\\\\.\\PHYSICALDRIVE"
_FORMATS = {".qcow2": "qcow2", ".vhdx": "vhdx", ".vhd": "vpc"}
_MAGIC = {b"QFI\xfb": "qcow2", b"vhdxfile": "vhdx", b"conectix": "vpc"}
_DIFFERENCING = 4


class DiskRefused(WinpodError):
    """A disk that a container mounts cannot be attached to its pod."""

    code = "FAILED_PRECONDITION"


def parse_disk_source(source: str) -> tuple[MountSourceKind, str] | None:
    """Return the kind of a disk and its path on the host; None if it is not a disk."""
    if source.upper().startswith(_WINDOWS_DISK):
        raise _windows_disk_error(source)
    scheme, separator, path = source.partition("://")
    if not separator or scheme not in DISK_KINDS:
        return None
    if path.upper().startswith(_WINDOWS_DISK):
        raise _windows_disk_error(path)
    disk_path = host_path(path)
    if not disk_path.startswith("/") or "\0" in disk_path:
        raise InvalidInput(
            f'"{source}" does not contain the absolute path of a disk.',
            "Write virtual-disk:///path/disk.img or physical-disk:///dev/sdb.",
        )
    return MountSourceKind(scheme), disk_path


def _windows_disk_error(path: str) -> InvalidInput:
    return InvalidInput(
        f"{path} is a disk of a Windows machine, but this host runs Linux.",
        "Name a block device, such as physical-disk:///dev/sdb.",
    )


def needs_microvm_error(source: str, destination: str) -> DiskRefused:
    return DiskRefused(
        f"the disk {source} cannot be mounted on {destination}: disks can only be attached to pods "
        "with hypervisor isolation.",
        f"Use a handler such as {HYPERVISOR_HANDLER_NAME}, or mount a directory.",
    )


def image_format(path: str, head: bytes, foot: bytes) -> str:
    """Return QEMU's name for the format of an image. Raises DiskRefused if it is unsafe."""
    found = next((name for magic, name in _MAGIC.items() if head.startswith(magic)), RAW)
    expected = next((name for end, name in _FORMATS.items() if path.lower().endswith(end)), RAW)
    if expected == "vpc" and foot.startswith(b"conectix"):
        found = "vpc"
    if found != expected:
        raise DiskRefused(
            f"{path} is {_format_name(expected)} by its name, but {_format_name(found)} by its "
            "first bytes.",
            f"Name the image with the extension of its format ({', '.join(_FORMATS)}), or with "
            "none of these if it is raw.",
        )
    if reference := _external_reference(expected, head, foot):
        raise DiskRefused(
            f"{path} {reference}, and a pod must not read other files of the host.",
            "Convert it to a single image with qemu-img convert or Convert-VHD.",
        )
    return expected


def _format_name(name: str) -> str:
    return "a raw disk" if name == RAW else f"a {'vhd' if name == 'vpc' else name} image"


def _external_reference(name: str, head: bytes, foot: bytes) -> str:
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
