"""Shells on this machine: each a container of an OCI runtime's, in the pod's network.

A sandbox takes a shell that waits and gives its network to the pod; where none waits, one is booted
in the pod's network while that is connected. The pod's first container takes it from there; every
other container boots one of its own.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from winpod.compute import cgroups, disks
from winpod.compute.ahead import Ahead
from winpod.compute.backend import ContainerParts, SandboxAsked, Usage
from winpod.compute.drive import Drive
from winpod.compute.errors import ShellFailed
from winpod.compute.foreign import refuse_foreign
from winpod.compute.identity import set_hostname
from winpod.compute.machine import missing_programs
from winpod.compute.plan import Plan
from winpod.compute.programs import program_of
from winpod.compute.resources import Enforced
from winpod.compute.shell import DRIVE_C
from winpod.compute.shells import Room, Shells
from winpod.windows.builds import Build
from winpod.windows.users import ADMINISTRATOR

_NEEDED = {
    "conmon": "conmon",
    "runc": "runc",
    "mkfs.ext4": "e2fsprogs",
    "mount": "mount",
}


class ShellHouse:
    """`netns` tells where a sandbox's network namespace is."""

    def __init__(
        self, root: Path, shells: Shells, booted_as: Build, netns: Callable[[str], Path]
    ) -> None:
        self.booted_as = booted_as
        self._root = root
        self._shells = shells
        self._netns = netns
        self._ahead = Ahead(shells)

    async def open(self) -> None:
        for folder in self._root.glob("sandboxes/*/shell"):
            if not Room(folder).is_whole:
                await self._shells.end(folder)
        await self._shells.start()

    async def close(self) -> None:
        await self._ahead.close()
        await self._shells.stop()

    def describe(self) -> dict[str, object]:
        warm = {"wanted": self._shells.wanted, "waiting": len(self._shells.waiting)}
        return {"warm_shells": warm, "user_namespaces": self._shells.with_users}

    def trouble(self) -> str:
        if missing := missing_programs(_NEEDED):
            return missing
        rootfs = self._shells.base.rootfs
        return "" if rootfs.is_dir() else f"the Wine base {rootfs} is gone: winpod base build."

    async def receive(self, asked: SandboxAsked, sandbox: Path) -> Path | None:
        del asked
        room = self._shells.take(sandbox / "shell")
        self._shells.refill()
        return Path(f"/proc/{room.pid}/ns/net") if room else None

    def connecting(self, sandbox: Path) -> None:
        place = sandbox / "shell"
        if not place.exists() and not self.trouble():
            self._ahead.begin(place, self._netns(sandbox.name))

    async def connected(self, sandbox: Path, interface: str, result: Mapping[str, Any]) -> None:
        del sandbox, interface, result

    async def processors(self, sandbox: Path) -> int:
        del sandbox
        return len(os.sched_getaffinity(0))

    async def dial(self, sandbox: Path, port: int, addresses: Sequence[str]) -> None:
        del sandbox, port, addresses

    async def until_dead(self, sandbox: Path) -> None:
        """Each shell ends by itself, and takes its container along and no other."""
        del sandbox
        await asyncio.Future()

    def stands(self, place: Path) -> bool:
        del place
        return True

    async def leave(self, sandbox: Path) -> None:
        await self._ahead.give_up(sandbox / "shell")
        await self.kill(sandbox / "shell")

    def room(self, place: Path) -> Room:
        return Room(place)

    async def begin(self, asked: ContainerParts, sandbox: Path, place: Path) -> Room:
        """The shell that the sandbox has, for the first who can use it, else a new one."""
        waiting = sandbox / "shell"
        size = asked.plan.limits.rootfs_bytes
        if asked.plan.user == ADMINISTRATOR:
            await self._ahead.until_there(waiting)
            if Room(waiting).is_whole:
                waiting.rename(place)  # at once: another container may have waited too
                await self._shells.give_disk(Room(place), size)
                return Room(place)
        return await self._shells.begin(place, asked.plan.user, self._netns(sandbox.name), size)

    async def furnish(
        self, room: Room, asked: ContainerParts, sandbox: SandboxAsked, folder: Path
    ) -> None:
        if is_limited(asked.plan):  # a boot may need more than that
            await self.until_up(room)
            await self.limit(room, asked.plan.limits)
        await asyncio.to_thread(self._furnish, room, asked, sandbox, folder)

    def _furnish(
        self, room: Room, asked: ContainerParts, sandbox: SandboxAsked, folder: Path
    ) -> None:
        pid = room.pid
        if pid is None:
            raise ShellFailed("it ended while its container was made")
        plan, owner, base = asked.plan, room.first_id, self._shells.base
        set_hostname(pid, sandbox.hostname)
        users = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC) if owner else None
        try:
            drive = Drive(folder / "c", room.folder / "disk", owner, users)
            drive.assemble(base.drive_c, asked.layers, folder / "scratch")
            drive.make_directory(f"C:\\Users\\{plan.user.name}", owner + plan.user.uid)
            for volume in plan.volumes:
                drive.make_directory(volume, owner)
            drive.add(plan.mounts, folder / "scratch")
            refuse_foreign(base, folder / "c", program_of(plan))
            drive.slide_into(pid, DRIVE_C)
        finally:
            if users is not None:
                os.close(users)

    def drive(self, folder: Path) -> Path | None:
        pid = Room(folder / "shell").pid
        return Path(f"/proc/{pid}/root{DRIVE_C}") if pid else None

    async def until_up(self, room: Room) -> None:
        await self._shells.until_up(room)

    async def set_resolver(self, room: Room, text: str) -> None:
        await asyncio.to_thread((room.prefix / "resolv.conf").write_text, text)

    async def resize(self, sandbox: Path, memory_bytes: int, processors: int) -> None:
        """Windows limits containers only."""

    async def limit(self, room: Room, limits: Enforced) -> None:
        await asyncio.to_thread(_limit, room, limits)

    async def usage(self, room: Room) -> Usage:
        return await asyncio.to_thread(_usage, room)

    async def kill(self, place: Path) -> None:
        await self._shells.kill(place)

    async def end(self, place: Path) -> None:
        await self._shells.end(place)


def is_limited(plan: Plan) -> bool:
    """Beyond what every shell has been from its start."""
    return plan.limits != Enforced(plan.limits.processors)


def _limit(room: Room, limits: Enforced) -> None:
    cgroups.set_limits(room.id, limits, disks.device_of(room.folder))
    if limits.disk_bytes_per_second or limits.disk_operations_per_second:
        disks.write_at_once(room.folder)


def _usage(room: Room) -> Usage:
    if not (id_ := room.id):
        return Usage(time.time_ns())
    return counted_usage(room, cgroups.read_usage(id_))


def counted_usage(room: Room, counted: cgroups.Counted) -> Usage:
    """What a control group has counted, and what the disk of the shell has."""
    disk_bytes, inodes = disks.used(room.folder)
    return Usage(
        time.time_ns(),
        counted.cpu_nanoseconds,
        counted.private_bytes,
        counted.private_bytes + counted.shared_bytes + counted.swapped_bytes,
        counted.processes,
        disk_bytes,
        charged_bytes=counted.memory_bytes,
        threads=counted.threads,
        out_of_memory_kills=counted.out_of_memory_kills,
        disk_inodes=inodes,
        mountpoint=str(room.folder / "disk"),
    )
