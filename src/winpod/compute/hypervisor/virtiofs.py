"""Host directories shared with a guest: the drives of its containers, and their volumes.

A share is a read-only view of a directory of mount points. A compromised guest can change what is
mounted there, but cannot put a symlink where the next mount will be.

virtiofsd holds what a guest has looked up until the guest forgets it. So a mount is removed in the
guest first, then on the host with its mount point. Linux revalidates a name only when it creates
it: a mkdir in the guest, which the read-only share refuses, makes it forget the old entry.
"""

from __future__ import annotations

import asyncio
import errno
import time
from pathlib import Path

from winpod.compute import idmapped_mounts
from winpod.compute.agent.protocol import GuestCommand
from winpod.compute.errors import GuestError, MicroVmGone
from winpod.compute.hypervisor.guest_client import GUEST_TIMEOUT, GuestClient
from winpod.files import remove_tree

DRIVES, VOLUMES = "drives", "volumes"
SHARES = {DRIVES: False, VOLUMES: True}
"""Whether the host changes what is shared."""
_MOUNT_POINTS = "places"
_GUARDED = "6"
"""MS_NOSUID and MS_NODEV, as on the host."""


def create_share_directories(vm_folder: Path) -> None:
    for share in SHARES:
        (vm_folder / _MOUNT_POINTS / share).mkdir(parents=True)
        (vm_folder / share).mkdir()
        with idmapped_mounts.clone_tree(vm_folder / _MOUNT_POINTS / share) as view:
            idmapped_mounts.set_tree_attributes(view, readonly=True)
            idmapped_mounts.move_tree_to(view, vm_folder / share)


def create_share_mount_point(
    vm_folder: Path, share: str, name: str, *, is_file: bool = False
) -> Path:
    """Create a mount point in a share and return its path."""
    path = vm_folder / _MOUNT_POINTS / share / name
    path.touch() if is_file else path.mkdir(exist_ok=True)
    return vm_folder / share / name


async def mount_share(guest: GuestClient, share: str) -> None:
    """Mount a share; retry until the guest has detected the hotplugged device."""
    deadline = time.monotonic() + GUEST_TIMEOUT
    while True:
        try:
            await guest.request(GuestCommand.MOUNT, share, f"/{share}", "virtiofs", _GUARDED, "")
        except GuestError as error:
            if error.number != errno.EINVAL or time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.02)
        else:
            return


async def remove_container_shares(
    vm_folder: Path, container: str, guest: GuestClient | None
) -> None:
    """Remove the mounts of a container; `guest` is None if it has ended."""
    names = await asyncio.to_thread(_names_in, vm_folder / _MOUNT_POINTS / VOLUMES / container)
    volumes = f"/{VOLUMES}/{container}"
    paths = [*(f"{volumes}/{name}" for name in names), volumes, f"/{DRIVES}/{container}"]
    await _request_each(guest, GuestCommand.UNMOUNT, paths)
    for share in SHARES:
        await asyncio.to_thread(_clear, vm_folder, share, container)
    await _request_each(guest, GuestCommand.MKDIR, paths)


def remove_all_shares(vm_folder: Path) -> None:
    """Remove the mounts of all containers of a guest that has ended."""
    for share in SHARES:
        for name in _names_in(vm_folder / _MOUNT_POINTS / share):
            _clear(vm_folder, share, name)
        idmapped_mounts.unmount(vm_folder / share)


async def _request_each(guest: GuestClient | None, command: str, paths: list[str]) -> None:
    """Run a command on each path. Errors of the guest must not prevent cleanup on the host."""
    if guest is None:
        return
    for path in paths:
        try:
            await guest.request(command, path)
        except GuestError:
            continue
        except MicroVmGone:
            return


def _clear(vm_folder: Path, share: str, container: str) -> None:
    """Remove a drive, or a directory of volumes."""
    path, shared = vm_folder / _MOUNT_POINTS / share / container, vm_folder / share / container
    idmapped_mounts.unmount(shared)
    for name in _names_in(path):
        idmapped_mounts.unmount(shared / name)
    remove_tree(path, ignore_errors=True)


def _names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()] if folder.is_dir() else []
