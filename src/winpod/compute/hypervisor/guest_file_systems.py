"""What is on an attached disk, inside of the guest: looked at, made where there is none,
mounted.

The programs for it are the kit's, which the guest sees read-only while it needs them.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import time
from collections.abc import Sequence
from pathlib import Path

from winpod.compute import mounts
from winpod.compute.disk_sources import DiskRefused
from winpod.compute.errors import GuestRefused, MachineFailed
from winpod.compute.hypervisor.file_systems import (
    BYTES_LOOKED_AT,
    EMPTY,
    EXT4,
    MOUNTABLE,
    PARTITIONS,
    FileSystem,
    recognise,
)
from winpod.compute.hypervisor.guest import PATIENCE, Guest
from winpod.compute.hypervisor.kit import Kit
from winpod.compute.hypervisor.shares import VOLUMES, make_place
from winpod.compute.plan import Mount

_FOLDER = "/run/disks"
_KIT = "kit"
_EJECT_SECONDS, _PROGRAM_SECONDS = 15.0, 600.0
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_MOST_PARTITIONS = 15
_READ_ONLY, _NO_SETUID, _NO_DEVICES, _REMOUNT, _NO_ATIME, _BIND = 1, 2, 4, 32, 1024, 4096
_USUAL = _NO_SETUID | _NO_DEVICES | _NO_ATIME
_FOR_EVERYBODY = "0777"
_GONE = (errno.EINVAL, errno.ENOENT)


def place_of(name: str, *, as_read_only: bool = False) -> str:
    return f"{_FOLDER}/{name}{'-read-only' if as_read_only else ''}"


async def mount_disk(guest: Guest, name: str, mount: Mount, machine: Path, kit: Kit) -> None:
    """An empty disk is formatted; then it is at its place, for the containers of the pod."""
    device, system = await _find_file_system(guest, await _device(guest, name), mount)
    place = place_of(name)
    await guest.ask("mkdir", place)
    if system is None:
        seen = await asyncio.to_thread(_show, kit, machine)
        await _run(guest, f"{place}.made", seen.mke2fs(*_NEW, device), mount)
    elif system.word not in (await guest.ask("read", "/proc/filesystems")).decode().split():
        seen = await asyncio.to_thread(_show, kit, machine)
        await _run(guest, f"{place}.loaded", seen.load_module(system.word), mount)
    found = system or EXT4
    flags = str(_USUAL | (_READ_ONLY if mount.readonly else 0))
    try:
        await guest.ask("mount", device, place, found.word, flags, found.options)
    except GuestRefused as error:
        raise DiskRefused(
            f"the {found.name} on the disk {mount.source} cannot be mounted: "
            f"{os.strerror(error.number)}.",
            "If it was not unmounted when it was last used, let that system repair it.",
        ) from None
    if system is None:
        await guest.ask("remove", f"{place}/lost+found")
        await guest.ask("chmod", place, _FOR_EVERYBODY)


_NEW = ("-q", "-F", "-t", "ext4", "-m", "0", "-E", "nodiscard")


async def show_read_only(guest: Guest, name: str) -> str:
    """For a container that may only read what others of its pod write."""
    place = place_of(name, as_read_only=True)
    await guest.ask("mkdir", place)
    await guest.ask("mount", place_of(name), place, "", str(_BIND), "")
    flags = str(_BIND | _REMOUNT | _READ_ONLY | _USUAL)
    await guest.ask("mount", "", place, "", flags, "")
    return place


async def eject_disk(guest: Guest, name: str) -> None:
    """Returns when all that was written is on the disk; who still has it open, loses it."""
    deadline = time.monotonic() + _EJECT_SECONDS
    places = [place_of(name, as_read_only=True), place_of(name)]
    while places:
        try:
            await guest.ask("eject" if time.monotonic() < deadline else "unmount", places[0])
        except GuestRefused as error:
            if error.number in _GONE:
                del places[0]
            elif error.number != errno.EBUSY:
                raise
            else:
                await asyncio.sleep(0.05)


async def _device(guest: Guest, name: str) -> str:
    """A disk is seen a moment after it was plugged in, and can be read after one more; its serial
    number is its name."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        for letter in _LETTERS:
            with contextlib.suppress(GuestRefused):
                serial = await guest.ask("read", f"/sys/block/vd{letter}/serial")
                if serial.decode(errors="replace").strip() == name:
                    await guest.ask("read", f"/dev/vd{letter}", "1")
                    return f"/dev/vd{letter}"
        await asyncio.sleep(0.02)
    raise MachineFailed("it does not see the disk that was attached")


async def _find_file_system(
    guest: Guest, device: str, mount: Mount
) -> tuple[str, FileSystem | None]:
    """Where it is, and None where there is nothing at all and it is to be made."""
    found = await _recognise(guest, device)
    if found == EMPTY:
        if mount.readonly:
            raise DiskRefused(
                f"the disk {mount.source} has no file system, and none can be made on a disk that "
                f"is mounted read-only on {mount.destination}.",
                "Mount it once to be written.",
            )
        return device, None
    if found == PARTITIONS:
        return await _find_partition(guest, device, mount)
    if found not in MOUNTABLE:
        raise DiskRefused(
            f"on the disk {mount.source} is {found}, which a pod cannot mount.",
            f"It can be {' or '.join(MOUNTABLE)}; an empty disk is formatted in the pod.",
        )
    return device, MOUNTABLE[found]


async def _find_partition(guest: Guest, device: str, mount: Mount) -> tuple[str, FileSystem | None]:
    """The one that can be mounted: Windows puts others beside it, for itself."""
    found = {}
    for number in range(1, _MOST_PARTITIONS + 1):
        with contextlib.suppress(GuestRefused):
            name = await _recognise(guest, f"{device}{number}")
            if name in MOUNTABLE:
                found[f"{device}{number}"] = MOUNTABLE[name]
    if len(found) != 1:
        raise DiskRefused(
            f"the disk {mount.source} has {len(found) or 'no'} partitions that a pod can mount, "
            "and it has to be one.",
            f"A partition can be {' or '.join(MOUNTABLE)}; a disk without any is formatted whole.",
        )
    return next(iter(found.items()))


async def _recognise(guest: Guest, device: str) -> str:
    return recognise(await guest.ask("read", device, str(BYTES_LOOKED_AT)))


def _show(kit: Kit, machine: Path) -> Kit:
    """To the guest, among the volumes that it has from the host."""
    place = make_place(machine, VOLUMES, _KIT)
    if not any(place.iterdir()):
        with mounts.cloned(kit.path) as tree:
            mounts.restrict(tree, readonly=True)
            mounts.attach_at(tree, place)
    return kit.seen_at(f"/{VOLUMES}/{_KIT}")


async def _run(guest: Guest, result: str, command: Sequence[str], mount: Mount) -> None:
    await guest.ask("run", result, *command)
    deadline = time.monotonic() + _PROGRAM_SECONDS
    while True:
        try:
            code = (await guest.ask("read", result)).decode()
            break
        except GuestRefused as error:
            if error.number != errno.ENOENT or time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.05)
    if code != "0":
        said = (await guest.ask("read", f"{result}.said")).decode(errors="replace").strip()
        raise DiskRefused(f"the disk {mount.source} cannot be made ready: {said[-300:] or code}.")
