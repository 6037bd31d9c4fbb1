"""Containers in microVMs: one for each pod, with a shell for each of its containers.

What a container's drive is made of is put together on the host, as for any container, and the guest
gets it as files of a server; its volumes come from another, which looks at them anew each time.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import os
import shutil
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from winpod.compute import cgroups, disks
from winpod.compute.backend import ContainerParts, SandboxAsked, Usage
from winpod.compute.drive import Drive
from winpod.compute.errors import GuestRefused, MachineFailed, MachineGone
from winpod.compute.hypervisor.arguments import WARM
from winpod.compute.hypervisor.guest_shells import (
    WARM_SHELL,
    boot_shell,
    end_shell,
    group_of,
    link_shell,
    slide_drive,
    write_resolver,
)
from winpod.compute.hypervisor.links import Link, open_tap
from winpod.compute.hypervisor.machines import DRIVES, VOLUMES, PodMachine
from winpod.compute.hypervisor.template import Template
from winpod.compute.identity import resolver_file
from winpod.compute.processes import read_pid, until_gone
from winpod.compute.resources import Enforced
from winpod.compute.rooms import Room
from winpod.compute.shell import DRIVE_C
from winpod.images.base import Base
from winpod.windows.users import ADMINISTRATOR

OVERHEAD = 256 << 20
"""What QEMU and the servers of a pod's files need beside the guest's memory."""
_NETWORK_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class GuestRoom(Room):
    """The directory of a shell in a guest; its process here is the way to it."""

    @property
    def machine(self) -> Path:
        return (self.folder / "machine").resolve()

    @property
    def pid(self) -> int | None:
        pid = read_pid(self.folder / "shell.pid")
        try:
            is_ours = pid and os.readlink(f"/proc/{pid}/cwd") == str(self.machine)
        except OSError:
            return None
        return pid if is_ours else None


class GuestHouse:
    def __init__(
        self, base: Base, netns: Callable[[str], Path], template: Callable[[], Awaitable[Template]]
    ) -> None:
        self._base = base
        self._netns = netns
        self._template = template
        self._machines: dict[Path, PodMachine] = {}
        self._cloning: dict[Path, asyncio.Task[None]] = {}

    def machine(self, folder: Path) -> PodMachine:
        return self._machines.setdefault(folder, PodMachine(folder))

    async def receive(self, asked: SandboxAsked, sandbox: Path) -> None:
        template = await self._template()
        machine = self.machine(sandbox / "vm")
        limit = asked.machine.memory_bytes + OVERHEAD
        self._cloning[sandbox] = asyncio.create_task(machine.clone(template, limit))

    async def connected(self, sandbox: Path, link: Link) -> None:
        """The guest is up, and has the pod's address."""
        await self._cloning.pop(sandbox)
        machine = self.machine(sandbox / "vm")
        tap = await asyncio.to_thread(open_tap, self._netns(sandbox.name), link.interface)
        try:
            await machine.plug_network(tap, link.mac, link.mtu)
        finally:
            os.close(tap)
        for address in map(ipaddress.ip_interface, link.addresses):
            if address.version == 4:
                await _until_plugged(machine, str(address.ip), str(address.network.prefixlen))
        for gateway in link.gateways:
            if ":" not in gateway:
                await machine.guest.ask("route", gateway)

    async def leave(self, sandbox: Path) -> None:
        if cloning := self._cloning.pop(sandbox, None):
            cloning.cancel()
            await asyncio.wait((cloning,))
        machine = self._machines.pop(sandbox / "vm", None) or PodMachine(sandbox / "vm")
        await machine.end()

    async def room(self, asked: ContainerParts, sandbox: Path, place: Path) -> GuestRoom:
        machine = self.machine(sandbox / "vm")
        user, size = asked.plan.user, asked.plan.limits.rootfs_bytes or disks.DEFAULT_SIZE
        (place / "run").mkdir(parents=True)
        (place / "machine").symlink_to(machine.folder)
        is_warm = user == ADMINISTRATOR and _take_warm(machine.folder)
        name, port = (WARM_SHELL, WARM) if is_warm else (asked.id, asked.id[:32])
        (place / "id").write_text(name)
        (place / "port").write_text(port)
        try:
            if not is_warm:
                await machine.add_port(port)
                await boot_shell(machine.guest, name, port, user)
            await asyncio.to_thread(disks.make_disk, place, size, 0)
            link = await link_shell(machine.folder, port, place / "run/agent.sock")
            (place / "shell.pid").write_text(str(link.pid))
        except BaseException:
            await asyncio.shield(self.end(place))
            raise
        return GuestRoom(place)

    async def furnish(
        self, room: GuestRoom, asked: ContainerParts, sandbox: SandboxAsked, folder: Path
    ) -> None:
        volumes = await asyncio.to_thread(self._assemble, room, asked, folder)
        guest = self.machine(room.machine).guest
        await guest.ask("rename-inside", room.id, sandbox.hostname)
        await write_resolver(guest, room.id, resolver_file(sandbox))
        await self.limit(room, asked.plan.limits)
        await slide_drive(guest, room.id, f"/{DRIVES}/{asked.id}")
        for source, target in volumes:
            place = f"/{VOLUMES}/{asked.id}/{source}"
            await guest.ask("mount-inside", room.id, place, f"{DRIVE_C}/{target}")

    def _assemble(
        self, room: GuestRoom, asked: ContainerParts, folder: Path
    ) -> list[tuple[str, str]]:
        place = room.machine / DRIVES / asked.id
        apart = room.machine / VOLUMES / asked.id
        for made in (place, apart):
            made.mkdir(exist_ok=True)
        plan = asked.plan
        drive = Drive(place, room.folder / "disk", 0, None)
        drive.assemble(self._base.drive_c, asked.layers, folder / "scratch")
        drive.make_directory(f"C:\\Users\\{plan.user.name}", plan.user.uid)
        for volume in plan.volumes:
            drive.make_directory(volume, 0)
        return drive.add_apart(plan.mounts, folder / "scratch", apart)

    async def limit(self, room: GuestRoom, limits: Enforced) -> None:
        guest = self.machine(room.machine).guest
        for file, text in cgroups.unified_writes(limits):
            with contextlib.suppress(GuestRefused):
                await guest.ask("write", f"{group_of(room.id)}/{file}", text)

    async def usage(self, room: GuestRoom) -> Usage:
        guest = self.machine(room.machine).guest
        files = {}
        for name in cgroups.UNIFIED_FILES:
            files[name] = (await guest.ask("read", f"{group_of(room.id)}/{name}")).decode()
        counted = cgroups.count_unified(files)
        disk_bytes, inodes = await asyncio.to_thread(disks.used, room.folder)
        return Usage.of(counted, disk_bytes, inodes, str(room.folder / "disk"))

    async def kill(self, place: Path) -> None:
        room = GuestRoom(place)
        if not (name := room.id):
            return
        with contextlib.suppress(MachineGone, GuestRefused):
            await self.machine(room.machine).guest.ask("kill", name)
        if pid := room.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            await until_gone(pid)

    async def end(self, place: Path) -> None:
        """All of a shell, however much of it there is."""
        if not await asyncio.to_thread(place.exists):
            return
        await self.kill(place)
        room = GuestRoom(place)
        machine = self.machine(room.machine)
        if machine.pid and room.id:
            with contextlib.suppress(MachineGone, MachineFailed, GuestRefused):
                await end_shell(machine.guest, room.id)
                if room.id != WARM_SHELL:
                    await machine.remove_port((place / "port").read_text())
        await asyncio.to_thread(disks.remove_disk, place)
        await asyncio.to_thread(shutil.rmtree, place)


def _take_warm(machine: Path) -> bool:
    """Whether nobody has taken the shell that the guest was kept with."""
    try:
        (machine / "taken").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


async def _until_plugged(machine: PodMachine, address: str, prefix: str) -> None:
    deadline = time.monotonic() + _NETWORK_SECONDS
    while True:
        try:
            await machine.guest.ask("address", "eth0", address, prefix)
        except GuestRefused as error:
            if error.number != errno.ENODEV or time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.02)
        else:
            return
