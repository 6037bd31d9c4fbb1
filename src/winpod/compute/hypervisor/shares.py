"""What of the host a guest sees: the drives of its containers, and what they have mounted.

What a server of files has once been asked for, it holds until the guest forgets it. So what goes is
unmounted in the guest first, then here, where its place is removed too; a guest that then wants to
remove that place hears that there is none, and forgets it. (One that removes it by itself crashes:
Linux 6.12 does where a directory was the root of another file system.)
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path

from winpod.compute import mounts
from winpod.compute.errors import GuestRefused, MachineGone
from winpod.compute.hypervisor.guest import PATIENCE, Guest

DRIVES, VOLUMES = "drives", "volumes"
SHARES = {DRIVES: False, VOLUMES: True}
"""Whether others than the guest change what is there."""
_GUARDED = "6"
"""No set-user-id files and no devices, as on this side."""


async def mount_share(guest: Guest, share: str) -> None:
    """A device that was just added is there when the guest has seen it."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            await guest.ask("mount", share, f"/{share}", "virtiofs", _GUARDED, "")
        except GuestRefused as error:
            if error.number != errno.EINVAL or time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.02)
        else:
            return


async def withdraw(machine: Path, container: str, guest: Guest | None) -> None:
    """What a container had, however much of it there is; `guest` is None where it has ended."""
    names = await asyncio.to_thread(_names_in, machine / VOLUMES / container)
    volumes = f"/{VOLUMES}/{container}"
    places = [*(f"{volumes}/{name}" for name in names), volumes, f"/{DRIVES}/{container}"]
    await _ask_each(guest, "unmount", places)
    for share in SHARES:
        await asyncio.to_thread(_clear, machine / share, container)
    await _ask_each(guest, "remove", places)


def clear_shares(machine: Path) -> None:
    """What all containers of a guest that has ended had."""
    for share in SHARES:
        for name in _names_in(machine / share):
            _clear(machine / share, name)


async def _ask_each(guest: Guest | None, word: str, places: list[str]) -> None:
    """A guest that refuses, or is gone, holds up nothing of this side."""
    if guest is None:
        return
    for place in places:
        try:
            await guest.ask(word, place)
        except GuestRefused:
            continue
        except MachineGone:
            return


def _clear(share: Path, container: str) -> None:
    """A drive, or a directory of volumes. Whoever has broken into the guest can change all that is
    not mounted there, so no link is followed, and what is not as it was made goes with the pod."""
    with _opened(share) as places:
        if places is None:
            return
        mounts.unmount(_below(places, container))
        with _opened(container, places) as volumes:
            if volumes is not None:
                _clear_all_in(volumes)
        _remove(places, container)


def _clear_all_in(folder: int) -> None:
    for name in _names(folder):
        mounts.unmount(_below(folder, name))
        _remove(folder, name)


def _names_in(folder: Path) -> list[str]:
    with _opened(folder) as opened:
        return [] if opened is None else _names(opened)


def _names(folder: int) -> list[str]:
    return os.listdir(folder)


@contextlib.contextmanager
def _opened(place: Path | str, folder: int | None = None) -> Iterator[int | None]:
    """None where it is no directory."""
    try:
        opened = os.open(place, os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        yield None
        return
    try:
        yield opened
    finally:
        os.close(opened)


def _below(folder: int, name: str) -> Path:
    return Path(f"/proc/self/fd/{folder}/{name}")


def _remove(folder: int, name: str) -> None:
    """A file, or an empty directory."""
    for remove in (os.unlink, os.rmdir):
        with contextlib.suppress(OSError):
            remove(name, dir_fd=folder)
