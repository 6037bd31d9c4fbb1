"""File systems of attached disks, in the guest: detect, create and mount.

The tools are those of the hypervisor assets, which are shared with the guest read-only when needed.
A disk is formatted only if its beginning is all zeros: anything else may be data, also if its
format is unknown.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from winpod.compute import idmapped_mounts
from winpod.compute.agent.protocol import GuestCommand
from winpod.compute.disk_mounts import DiskRefused
from winpod.compute.errors import GuestError, MicroVmFailed
from winpod.compute.hypervisor.assets import HypervisorAssets
from winpod.compute.hypervisor.guest_client import GUEST_TIMEOUT, GuestClient
from winpod.compute.hypervisor.virtiofs import VOLUMES, create_share_mount_point
from winpod.compute.spec import Mount

PROBE_BYTES = 128 << 10
EMPTY, PARTITIONS, UNKNOWN = "nothing", "a partition table", "an unknown format"


@dataclass(frozen=True, slots=True)
class FileSystem:
    """A file system that a guest can mount; `kernel_name` is also the name of its module."""

    name: str
    kernel_name: str
    options: str = ""


EXT4 = FileSystem("ext4", "ext4")
NTFS = FileSystem("NTFS", "ntfs3", "umask=000")
MOUNTABLE = {system.name: system for system in (EXT4, NTFS)}

_MAGIC = (
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


def detect_filesystem(head: bytes) -> str:
    """Return the display name of what is on a disk, by its first bytes."""
    for offset, magic, name in _MAGIC:
        if head[offset : offset + len(magic)] == magic:
            return name
    return UNKNOWN if any(head) else EMPTY


_FOLDER = "/run/disks"
_KIT = "kit"
_EJECT_SECONDS, _PROGRAM_SECONDS = 15.0, 600.0
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_MAX_PARTITIONS = 15
_READ_ONLY, _NO_SETUID, _NO_DEVICES, _REMOUNT, _NO_ATIME, _BIND = 1, 2, 4, 32, 1024, 4096
_MOUNT_FLAGS = _NO_SETUID | _NO_DEVICES | _NO_ATIME
_WORLD_WRITABLE = "0777"
_GONE = (errno.EINVAL, errno.ENOENT)


def guest_mount_path(name: str, *, as_read_only: bool = False) -> str:
    return f"{_FOLDER}/{name}{'-read-only' if as_read_only else ''}"


async def mount_disk(
    guest: GuestClient, name: str, mount: Mount, vm_folder: Path, assets: HypervisorAssets
) -> None:
    """Mount a disk for the containers of the pod; format it if it is empty."""
    device, system = await _find_file_system(guest, await _device(guest, name), mount)
    path = guest_mount_path(name)
    await guest.request(GuestCommand.MKDIR, path)
    if system is None:
        tools = await asyncio.to_thread(_share_assets, assets, vm_folder)
        await _run(guest, f"{path}.made", tools.mke2fs(*_MKFS_OPTIONS, device), mount)
    elif (
        system.kernel_name
        not in (await guest.request(GuestCommand.READ, "/proc/filesystems")).decode().split()
    ):
        tools = await asyncio.to_thread(_share_assets, assets, vm_folder)
        await _run(guest, f"{path}.loaded", tools.load_module(system.kernel_name), mount)
    mounted = system or EXT4
    flags = str(_MOUNT_FLAGS | (_READ_ONLY if mount.readonly else 0))
    try:
        await guest.request(
            GuestCommand.MOUNT, device, path, mounted.kernel_name, flags, mounted.options
        )
    except GuestError as error:
        raise DiskRefused(
            f"the {mounted.name} on the disk {mount.source} cannot be mounted: "
            f"{os.strerror(error.number)}.",
            "If it was not unmounted cleanly, repair it on the system that used it last.",
        ) from None
    if system is None:
        await guest.request(GuestCommand.REMOVE, f"{path}/lost+found")
        await guest.request(GuestCommand.CHMOD, path, _WORLD_WRITABLE)


_MKFS_OPTIONS = ("-q", "-F", "-t", "ext4", "-m", "0", "-E", "nodiscard")


async def bind_read_only(guest: GuestClient, name: str) -> str:
    """Bind-mount a disk read-only, for a container of a pod whose other containers write."""
    path = guest_mount_path(name, as_read_only=True)
    await guest.request(GuestCommand.MKDIR, path)
    await guest.request(GuestCommand.MOUNT, guest_mount_path(name), path, "", str(_BIND), "")
    flags = str(_BIND | _REMOUNT | _READ_ONLY | _MOUNT_FLAGS)
    await guest.request(GuestCommand.MOUNT, "", path, "", flags, "")
    return path


async def unmount_disk(guest: GuestClient, name: str) -> None:
    """Unmount a disk with all data written. Detaches it by force if it stays in use."""
    deadline = time.monotonic() + _EJECT_SECONDS
    paths = [guest_mount_path(name, as_read_only=True), guest_mount_path(name)]
    while paths:
        try:
            in_time = time.monotonic() < deadline
            await guest.request(GuestCommand.EJECT if in_time else GuestCommand.UNMOUNT, paths[0])
        except GuestError as error:
            if error.number in _GONE:
                del paths[0]
            elif error.number != errno.EBUSY:
                raise
            else:
                await asyncio.sleep(0.05)


async def _device(guest: GuestClient, name: str) -> str:
    """Return the device of a disk by its serial number, which is the disk's name.

    The guest sees a hotplugged disk a moment later, and can read it after another.
    """
    deadline = time.monotonic() + GUEST_TIMEOUT
    while time.monotonic() < deadline:
        for letter in _LETTERS:
            with contextlib.suppress(GuestError):
                serial = await guest.request(GuestCommand.READ, f"/sys/block/vd{letter}/serial")
                if serial.decode(errors="replace").strip() == name:
                    await guest.request(GuestCommand.READ, f"/dev/vd{letter}", "1")
                    return f"/dev/vd{letter}"
        await asyncio.sleep(0.02)
    raise MicroVmFailed("it did not detect the attached disk")


async def _find_file_system(
    guest: GuestClient, device: str, mount: Mount
) -> tuple[str, FileSystem | None]:
    """Return the device with the file system; None as the system if it has to be created."""
    found = await _detect(guest, device)
    if found == EMPTY:
        if mount.readonly:
            raise DiskRefused(
                f"the disk {mount.source} has no file system, and cannot be formatted because it "
                f"is mounted read-only on {mount.destination}.",
                "Mount it writable once.",
            )
        return device, None
    if found == PARTITIONS:
        return await _find_partition(guest, device, mount)
    if found not in MOUNTABLE:
        raise DiskRefused(
            f"the disk {mount.source} contains {found}, which a pod cannot mount.",
            f"Use {' or '.join(MOUNTABLE)}; an empty disk is formatted in the pod.",
        )
    return device, MOUNTABLE[found]


async def _find_partition(
    guest: GuestClient, device: str, mount: Mount
) -> tuple[str, FileSystem | None]:
    """Return the only mountable partition; Windows adds others for itself."""
    found = {}
    for number in range(1, _MAX_PARTITIONS + 1):
        with contextlib.suppress(GuestError):
            name = await _detect(guest, f"{device}{number}")
            if name in MOUNTABLE:
                found[f"{device}{number}"] = MOUNTABLE[name]
    if len(found) != 1:
        raise DiskRefused(
            f"the disk {mount.source} has {len(found) or 'no'} partitions that a pod can mount, "
            "but needs exactly one.",
            f"Use {' or '.join(MOUNTABLE)}; a disk without partitions is formatted as a whole.",
        )
    return next(iter(found.items()))


async def _detect(guest: GuestClient, device: str) -> str:
    return detect_filesystem(await guest.request(GuestCommand.READ, device, str(PROBE_BYTES)))


def _share_assets(assets: HypervisorAssets, vm_folder: Path) -> HypervisorAssets:
    """Share the hypervisor assets with the guest, among its volumes."""
    path = create_share_mount_point(vm_folder, VOLUMES, _KIT)
    if not any(path.iterdir()):
        with idmapped_mounts.clone_tree(assets.path) as tree:
            idmapped_mounts.set_tree_attributes(tree, readonly=True)
            idmapped_mounts.move_tree_to(tree, path)
    return assets.relocated_to(f"/{VOLUMES}/{_KIT}")


async def _run(guest: GuestClient, result: str, command: Sequence[str], mount: Mount) -> None:
    await guest.request(GuestCommand.RUN, result, *command)
    deadline = time.monotonic() + _PROGRAM_SECONDS
    while True:
        try:
            code = (await guest.request(GuestCommand.READ, result)).decode()
            break
        except GuestError as error:
            if error.number != errno.ENOENT or time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.05)
    if code != "0":
        said = await guest.request(GuestCommand.READ, f"{result}.said")
        output = said.decode(errors="replace").strip()
        raise DiskRefused(f"the disk {mount.source} cannot be prepared: {output[-300:] or code}.")
