"""What of the host a guest sees: the drives of its containers, and what they have mounted.

What a server of files has once been asked for, it holds until the guest forgets it. So what goes is
unmounted in the guest first, then here, where its place is removed too; a guest that then wants to
remove that place hears that there is none, and forgets it. (One that removes it by itself crashes:
Linux 6.12 does where a directory was the root of another file system.)
"""

from __future__ import annotations

import asyncio
import errno
import time
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
    volumes = Path(VOLUMES, container)
    within = [volumes / each.name for each in (machine / volumes).glob("*")]
    places = [*within, volumes, Path(DRIVES, container)]
    await _ask_each(guest, "unmount", places)
    for place in places:
        await asyncio.to_thread(mounts.unmount, machine / place)
        await asyncio.to_thread(_remove, machine / place)
    await _ask_each(guest, "remove", places)


async def _ask_each(guest: Guest | None, word: str, places: list[Path]) -> None:
    """A guest that refuses, or is gone, holds up nothing of this side."""
    if guest is None:
        return
    for place in places:
        try:
            await guest.ask(word, f"/{place}")
        except GuestRefused:
            continue
        except MachineGone:
            return


def _remove(place: Path) -> None:
    """A place only, and never what was mounted there."""
    if place.is_dir():
        place.rmdir()
    else:
        place.unlink(missing_ok=True)
