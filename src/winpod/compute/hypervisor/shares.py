"""What of the host a guest sees: the drives of its containers, and what they have mounted.

A share is a read-only view of a directory of places, on which they are mounted: whoever has broken
into the guest can change what is mounted there, and put no link where the next will be.

What a server of files has once been asked for, it holds until the guest forgets it. So what goes is
unmounted in the guest first, then here, where its place is removed too. A guest looks for a name
again only where it wants to make one: so it is told to, hears that there is none, and forgets what
it had; that it may make none either is no matter.
"""

from __future__ import annotations

import asyncio
import errno
import shutil
import time
from pathlib import Path

from winpod.compute import mounts
from winpod.compute.errors import GuestRefused, MachineGone
from winpod.compute.hypervisor.guest import PATIENCE, Guest

DRIVES, VOLUMES = "drives", "volumes"
SHARES = {DRIVES: False, VOLUMES: True}
"""Whether others than the guest change what is there."""
_PLACES = "places"
_GUARDED = "6"
"""No set-user-id files and no devices, as on this side."""


def open_shares(machine: Path) -> None:
    for share in SHARES:
        (machine / _PLACES / share).mkdir(parents=True)
        (machine / share).mkdir()
        with mounts.cloned(machine / _PLACES / share) as view:
            mounts.restrict(view, readonly=True)
            mounts.attach_at(view, machine / share)


def make_place(machine: Path, share: str, name: str, *, is_file: bool = False) -> Path:
    """Where something can be mounted for the guest."""
    place = machine / _PLACES / share / name
    place.touch() if is_file else place.mkdir(exist_ok=True)
    return machine / share / name


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
    names = await asyncio.to_thread(_names_in, machine / _PLACES / VOLUMES / container)
    volumes = f"/{VOLUMES}/{container}"
    places = [*(f"{volumes}/{name}" for name in names), volumes, f"/{DRIVES}/{container}"]
    await _ask_each(guest, "unmount", places)
    for share in SHARES:
        await asyncio.to_thread(_clear, machine, share, container)
    await _ask_each(guest, "mkdir", places)


def clear_shares(machine: Path) -> None:
    """What all containers of a guest that has ended had."""
    for share in SHARES:
        for name in _names_in(machine / _PLACES / share):
            _clear(machine, share, name)
        mounts.unmount(machine / share)


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


def _clear(machine: Path, share: str, container: str) -> None:
    """A drive, or a directory of volumes."""
    place, seen = machine / _PLACES / share / container, machine / share / container
    mounts.unmount(seen)
    for name in _names_in(place):
        mounts.unmount(seen / name)
    shutil.rmtree(place, ignore_errors=True)


def _names_in(folder: Path) -> list[str]:
    return [place.name for place in folder.iterdir()] if folder.is_dir() else []
