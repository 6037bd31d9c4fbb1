"""Containers in microVMs: one for each pod, with a shell for each of its containers.

What a container's drive is made of is put together on the host, as for any container, and the guest
gets it as files of a server; its volumes come from another, which looks at them anew each time.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from winpod.compute import cgroups, disks
from winpod.compute.backend import ContainerParts, SandboxAsked, Usage
from winpod.compute.disk_sources import DISKS
from winpod.compute.drive import Drive
from winpod.compute.errors import (
    GuestRefused,
    MachineFailed,
    MachineGone,
    MemoryInUse,
    ShellFailed,
)
from winpod.compute.foreign import refuse_foreign
from winpod.compute.hypervisor.arguments import WARM
from winpod.compute.hypervisor.asked import MachineAsked, machine_asked
from winpod.compute.hypervisor.guest_shells import (
    WARM_SHELL,
    boot_shell,
    end_shell,
    group_of,
    link_shell,
    slide_drive,
    write_resolver,
)
from winpod.compute.hypervisor.lines import Lines
from winpod.compute.hypervisor.links import open_tap, read_link, tell_guest
from winpod.compute.hypervisor.machines import PodMachine
from winpod.compute.hypervisor.rates import hold_drive, rates_of_drive, rates_of_pod
from winpod.compute.hypervisor.shares import DRIVES, VOLUMES, make_place, withdraw
from winpod.compute.hypervisor.sizing import Size
from winpod.compute.hypervisor.template import Template, Templates
from winpod.compute.processes import read_pid, until_gone
from winpod.compute.programs import program_of
from winpod.compute.resources import Enforced
from winpod.compute.shell import DRIVE_C
from winpod.compute.shell_house import counted_usage, is_limited
from winpod.compute.shells import Room
from winpod.images.base import Base
from winpod.windows.builds import DEFAULT_HOST
from winpod.windows.errors import WinpodError
from winpod.windows.users import ADMINISTRATOR

_BOOT_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class GuestRoom(Room):
    """The directory of a shell in a guest; its process here is the way to it."""

    @property
    def pid(self) -> int | None:
        pid = read_pid(self.folder / "shell.pid")
        try:
            is_ours = pid and Path(f"/proc/{pid}/cwd").readlink() == machine_of(self)
        except OSError:
            return None
        return pid if is_ours else None


class GuestHouse:
    booted_as = DEFAULT_HOST

    def __init__(self, base: Base, netns: Callable[[str], Path], templates: Templates) -> None:
        self._base = base
        self._netns = netns
        self._templates = templates
        self._machines: dict[Path, PodMachine] = {}
        self._cloning: dict[Path, asyncio.Task[None]] = {}
        self._beginning = asyncio.Semaphore(len(os.sched_getaffinity(0)))
        self._lines: dict[Path, Lines] = {}

    def machine(self, folder: Path) -> PodMachine:
        return self._machines.setdefault(folder, PodMachine(folder))

    async def open(self) -> None: ...

    async def close(self) -> None:
        for lines in self._lines.values():
            lines.close()
        for machine in self._machines.values():
            machine.guest.close()

    def describe(self) -> dict[str, object]:
        return {"machines": len(self._machines)}

    def trouble(self) -> str:
        return self._templates.trouble()

    def connecting(self, sandbox: Path) -> None: ...

    def room(self, place: Path) -> GuestRoom:
        return GuestRoom(place)

    def drive(self, folder: Path) -> Path | None:
        room = GuestRoom(folder / "shell")
        return machine_of(room) / DRIVES / folder.name if room.pid else None

    async def until_up(self, room: Room) -> None:
        try:
            async with asyncio.timeout(_BOOT_SECONDS):
                await room.agent.ping()
        except (TimeoutError, WinpodError):
            raise ShellFailed("it did not come up in its microVM") from None

    async def set_resolver(self, room: Room, text: str) -> None:
        await write_resolver(self.machine(machine_of(room)).guest, room.id, text)

    async def receive(self, asked: SandboxAsked, sandbox: Path) -> None:
        template = await self._templates.get()
        machine = self.machine(sandbox / "vm")
        cloning = self._clone(machine, template, machine_asked(asked.annotations))
        self._cloning[sandbox] = asyncio.create_task(cloning)

    async def _clone(self, machine: PodMachine, template: Template, asked: MachineAsked) -> None:
        """Few at a time: each takes a processor, and all at once they would wait for each other."""
        async with self._beginning:
            await machine.clone(template, asked)

    async def connected(self, sandbox: Path, interface: str, result: Mapping[str, Any]) -> None:
        """The guest is up, and has the pod's address."""
        link = read_link(interface, result)
        await self._cloning.pop(sandbox)
        machine = self.machine(sandbox / "vm")
        tap = await asyncio.to_thread(open_tap, self._netns(sandbox.name), interface)
        try:
            await machine.plug_network(tap, link.mac, link.mtu)
        finally:
            os.close(tap)
        await tell_guest(machine.guest, link)

    async def processors(self, sandbox: Path) -> int:
        return (await self.machine(sandbox / "vm").size.now()).processors

    async def dial(
        self, sandbox: Path, port: int, addresses: Sequence[str]
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if sandbox not in self._lines:
            self._lines[sandbox] = Lines(self.machine(sandbox / "vm"))
        return await self._lines[sandbox].open(port, addresses)

    async def until_dead(self, sandbox: Path) -> None:
        await self.machine(sandbox / "vm").until_dead()

    def stands(self, place: Path) -> bool:
        return PodMachine(machine_of(GuestRoom(place))).is_whole

    async def leave(self, sandbox: Path) -> None:
        if cloning := self._cloning.pop(sandbox, None):
            cloning.cancel()
            await asyncio.wait((cloning,))
        if lines := self._lines.pop(sandbox, None):
            lines.close()
        machine = self._machines.pop(sandbox / "vm", None) or PodMachine(sandbox / "vm")
        await machine.end()

    async def begin(self, asked: ContainerParts, sandbox: Path, place: Path) -> GuestRoom:
        machine = self.machine(sandbox / "vm")
        (place / "run").mkdir(parents=True)
        user, size = asked.plan.user, asked.plan.limits.rootfs_bytes or disks.size_that_fits(place)
        (place / "machine").symlink_to(machine.folder)
        is_warm = user == ADMINISTRATOR and _take_warm(machine.folder)
        name, port = (WARM_SHELL, WARM) if is_warm else (asked.id, asked.id[:32])
        (place / "id").write_text(name)
        (place / "port").write_text(port)
        try:
            if not is_warm:
                await machine.add_port(port)
                with_32bit = self._base.with_32bit
                await boot_shell(machine.guest, name, port, user, with_32bit=with_32bit)
            await asyncio.to_thread(disks.make_disk, place, size, 0)
            link = await link_shell(machine.folder, port, place / "run/agent.sock")
            (place / "shell.pid").write_text(str(link.pid))
        except BaseException:
            await asyncio.shield(self.end(place))
            raise
        return GuestRoom(place)

    async def furnish(
        self, room: Room, asked: ContainerParts, sandbox: SandboxAsked, folder: Path
    ) -> None:
        attached = await self._attach(room, asked, sandbox)
        volumes = await asyncio.to_thread(self._assemble, room, asked, folder)
        guest = self.machine(machine_of(room)).guest
        await guest.ask("rename-inside", room.id, sandbox.hostname)
        if is_limited(asked.plan):  # a boot may need more than that
            await self.until_up(room)
            await self._limit(room, asked.plan.limits, is_new=True)
        await slide_drive(guest, room.id, f"/{DRIVES}/{asked.id}")
        for source, target in volumes:
            place = attached.get(source) or f"/{VOLUMES}/{asked.id}/{source}"
            await guest.ask("mount-inside", room.id, place, f"{DRIVE_C}/{target}")

    async def _attach(
        self, room: Room, asked: ContainerParts, sandbox: SandboxAsked
    ) -> dict[str, str]:
        """Where in the guest the disks are that the container mounts; its own is slowed down."""
        machine = self.machine(machine_of(room))
        rates = rates_of_pod(sandbox.annotations)
        of_drive = rates_of_drive(asked.plan.limits, rates)
        await asyncio.to_thread(hold_drive, machine.group, room.folder, of_drive)
        wanted = [mount for mount in asked.plan.mounts if mount.kind in DISKS]
        if not wanted:
            return {}
        kit = (await self._templates.get()).kit
        return await machine.disks.attach(asked.id, wanted, rates, kit)

    def _assemble(self, room: Room, asked: ContainerParts, folder: Path) -> list[tuple[str, str]]:
        machine = machine_of(room)
        place, apart = (make_place(machine, share, asked.id) for share in (DRIVES, VOLUMES))

        def make_beside(name: str, *, is_file: bool) -> Path:
            return make_place(machine, VOLUMES, f"{asked.id}/{name}", is_file=is_file)

        plan = asked.plan
        drive = Drive(place, room.folder / "disk", 0, None)
        drive.assemble(self._base.drive_c, asked.layers, folder / "scratch")
        drive.make_directory(f"C:\\Users\\{plan.user.name}", plan.user.uid)
        for volume in plan.volumes:
            drive.make_directory(volume, 0)
        volumes = drive.add_apart(plan.mounts, folder / "scratch", make_beside)
        elsewhere = {target: apart / source for source, target in volumes}
        refuse_foreign(self._base, place, program_of(plan), elsewhere)
        return volumes

    async def limit(self, room: Room, limits: Enforced) -> None:
        await self._limit(room, limits, is_new=False)

    async def resize(self, sandbox: Path, memory_bytes: int, processors: int) -> None:
        await self.machine(sandbox / "vm").size.resize(Size(memory_bytes, processors))

    async def _limit(self, room: Room, limits: Enforced, *, is_new: bool) -> None:
        machine = self.machine(machine_of(room))
        counted = cgroups.count_unified(await self._counted(room))
        used = counted.private_bytes + counted.shared_bytes
        if limits.memory_bytes and limits.memory_bytes < used:
            raise MemoryInUse(limits.memory_bytes, used)
        await machine.size.fit(room.folder.parent.name, limits, is_new=is_new)
        guest = machine.guest
        for file, text in cgroups.unified_writes(limits):
            try:
                await guest.ask("write", f"{group_of(room.id)}/{file}", text)
            except GuestRefused as error:
                if error.number != errno.ENOENT:  # a guest without swap has no limit of it
                    raise

    async def usage(self, room: Room) -> Usage:
        """Of a shell whose microVM has ended, only what is on its disk."""
        try:
            counted = cgroups.count_unified(await self._counted(room))
        except (MachineGone, GuestRefused):
            counted = cgroups.Counted()
        return await asyncio.to_thread(counted_usage, room, counted)

    async def _counted(self, room: Room) -> dict[str, str]:
        guest, group = self.machine(machine_of(room)).guest, group_of(room.id)
        return {
            name: (await guest.ask("read", f"{group}/{name}")).decode()
            for name in cgroups.UNIFIED_FILES
        }

    async def kill(self, place: Path) -> None:
        room = GuestRoom(place)
        if (name := room.id) and PodMachine(machine_of(room)).pid:
            with contextlib.suppress(MachineGone, GuestRefused):
                await self.machine(machine_of(room)).guest.ask("kill", name)
        if pid := room.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            await until_gone(pid)
        if name and PodMachine(machine_of(room)).pid:
            with contextlib.suppress(MachineGone, MachineFailed, GuestRefused):
                await self.machine(machine_of(room)).disks.release(place.parent.name)

    async def end(self, place: Path) -> None:
        """All of a shell, however much of it there is."""
        if not await asyncio.to_thread(place.exists):
            return
        await self.kill(place)
        room = GuestRoom(place)
        folder, container = machine_of(room), place.parent.name
        PodMachine(folder).size.forget(container)
        lives = bool(room.id and PodMachine(folder).pid)
        if lives:
            machine = self.machine(folder)
            with contextlib.suppress(MachineGone, MachineFailed, GuestRefused):
                await end_shell(machine.guest, room.id)
                if room.id != WARM_SHELL:
                    await machine.remove_port((place / "port").read_text())
        await withdraw(folder, container, self.machine(folder).guest if lives else None)
        await asyncio.to_thread(disks.remove_disk, place)
        await asyncio.to_thread(shutil.rmtree, place)


def machine_of(room: Room) -> Path:
    """The directory of the microVM that a shell is in."""
    return (room.folder / "machine").resolve()


def _take_warm(machine: Path) -> bool:
    """Whether nobody has taken the shell that the guest was kept with."""
    try:
        (machine / "taken").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
