"""Disks that are attached to a pod's microVM while it runs, and given back when nobody needs them.

A disk is attached once for all containers of the pod that mount it; this machine never mounts it.
Which container has which disk is written down before anything is done, so that whatever was cut
short is undone when the container goes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from winpod.compute.disk_sources import DiskRefused
from winpod.compute.errors import GuestRefused, MachineFailed, MachineGone
from winpod.compute.hypervisor.arguments import DISK_SOCKETS
from winpod.compute.hypervisor.guest import PATIENCE, Guest
from winpod.compute.hypervisor.guest_file_systems import (
    eject_disk,
    mount_disk,
    place_of,
    show_read_only,
)
from winpod.compute.hypervisor.host_disks import HostDisk, disk_name, open_disk
from winpod.compute.hypervisor.kit import Kit
from winpod.compute.hypervisor.qmp import Qmp
from winpod.compute.hypervisor.rates import Rates
from winpod.compute.plan import Mount

_THROTTLES = "disks"
_RECORD = "attached.json"


@dataclass(frozen=True, slots=True)
class Attached:
    socket: int
    readonly: bool


class GuestDisks:
    def __init__(self, folder: Path, guest: Guest) -> None:
        self._folder = folder
        self._guest = guest
        self._turn = asyncio.Lock()

    async def attach(
        self, container: str, wanted: Sequence[Mount], rates: Rates, kit: Kit
    ) -> dict[str, str]:
        """Where in the guest the disks of a container are, by their destinations."""
        async with self._turn:
            return {
                mount.destination: await self._attach(container, mount, rates, kit)
                for mount in wanted
            }

    async def release(self, container: str) -> None:
        """What a container that has ended had of them."""
        async with self._turn:
            for name in self._read():
                users = self._users(name)
                if container in users and len(users) == 1:
                    await self._give_back(name)
                elif container in users:
                    (self._records / name / container).unlink()

    async def _attach(self, container: str, mount: Mount, rates: Rates, kit: Kit) -> str:
        name = await asyncio.to_thread(disk_name, mount)
        if known := self._read().get(name):
            (self._records / name / container).touch()
        else:
            known = await self._bring(name, container, mount, rates, kit)
        if known.readonly and not mount.readonly:
            raise DiskRefused(
                f"the disk {mount.source} is read-only in another container of the pod, and is to "
                f"be written on {mount.destination}.",
                "Let the container that is made first write to it.",
            )
        if mount.readonly and not known.readonly:
            return await show_read_only(self._guest, name)
        return place_of(name)

    async def _bring(
        self, name: str, container: str, mount: Mount, rates: Rates, kit: Kit
    ) -> Attached:
        taken = {one.socket for one in self._read().values()}
        socket = next((number for number in DISK_SOCKETS if number not in taken), None)
        if socket is None:
            raise DiskRefused(
                f"the disk {mount.source} cannot be attached: a pod has room for "
                f"{len(DISK_SOCKETS)} disks, and all of it is taken."
            )
        made = Attached(socket, mount.readonly)
        disk = await asyncio.to_thread(open_disk, mount)
        try:
            self._write(name, made, container)
            await self._plug(disk, made, mount, rates)
            await mount_disk(self._guest, name, mount, self._folder, kit)
        except BaseException:
            with contextlib.suppress(MachineFailed, GuestRefused):
                await asyncio.shield(self._give_back(name))
            raise
        finally:
            os.close(disk.descriptor)
        return made

    async def _plug(self, disk: HostDisk, made: Attached, mount: Mount, rates: Rates) -> None:
        node = f"disk-{disk.name}"
        async with Qmp(self._folder / "qmp") as qmp:
            number = await qmp.lend(disk.descriptor)
            file = {
                "driver": "host_device" if disk.is_device else "file",
                "filename": f"/dev/fdset/{number}",
                "discard": "unmap",
            }
            how = {"driver": disk.format, "node-name": node, "read-only": made.readonly}
            try:
                await qmp.do("blockdev-add", **how, discard="unmap", file=file)
            except MachineFailed as error:
                raise DiskRefused(f"the disk {mount.source} cannot be attached. {error}") from None
            finally:
                await qmp.do("remove-fd", **{"fdset-id": number})
            if rates != Rates():
                node = await _throttle(qmp, node, rates)
            device = {"driver": "virtio-blk-pci", "id": f"device-{disk.name}", "drive": node}
            errors = {"werror": "report", "rerror": "report"}
            place = f"root{made.socket}"
            await qmp.do("device_add", **device, **errors, serial=disk.name, bus=place)

    async def _give_back(self, name: str) -> None:
        with contextlib.suppress(MachineGone):
            await eject_disk(self._guest, name)
            async with Qmp(self._folder / "qmp") as qmp:
                await _unplug(qmp, name)
        await asyncio.to_thread(shutil.rmtree, self._records / name, ignore_errors=True)

    @property
    def _records(self) -> Path:
        """A directory for each disk, with a file for each container that has it: what is given
        back needs no room on the machine to be forgotten."""
        return self._folder / "disks"

    def _read(self) -> dict[str, Attached]:
        found = self._records.glob(f"[!.]*/{_RECORD}")
        return {file.parent.name: Attached(**json.loads(file.read_text())) for file in found}

    def _users(self, name: str) -> set[str]:
        return {file.name for file in (self._records / name).iterdir()} - {_RECORD}

    def _write(self, name: str, made: Attached, container: str) -> None:
        part = self._records / f".{name}"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        (part / _RECORD).write_text(json.dumps(asdict(made)))
        (part / container).touch()
        part.rename(self._records / name)


async def _throttle(qmp: Qmp, node: str, rates: Rates) -> str:
    """All disks of the pod are in one group, which has the rates."""
    groups = await qmp.do("qom-list", path="/objects")
    if all(one["name"] != _THROTTLES for one in groups):
        limits = {"bps-total": rates.bytes, "iops-total": rates.operations}
        group = {"qom-type": "throttle-group", "id": _THROTTLES}
        await qmp.do("object-add", **group, limits=limits)
    throttled = {"driver": "throttle", "throttle-group": _THROTTLES, "file": node}
    await qmp.do("blockdev-add", **throttled, **{"node-name": f"throttled-{node}"})
    return f"throttled-{node}"


async def _unplug(qmp: Qmp, name: str) -> None:
    """Returns when the guest has let go of a disk, and QEMU too."""
    device, disk = f"device-{name}", f"disk-{name}"
    with contextlib.suppress(MachineFailed):
        await qmp.do("device_del", id=device)
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        devices = {one["name"] for one in await qmp.do("qom-list", path="/machine/peripheral")}
        nodes = {one["node-name"] for one in await qmp.do("query-named-block-nodes", flat=True)}
        left = [node for node in (f"throttled-{disk}", disk) if node in nodes]
        if device not in devices and not left:
            return
        for node in left if device not in devices else ():
            with contextlib.suppress(MachineFailed):  # a device holds it a moment longer
                await qmp.do("blockdev-del", **{"node-name": node})
        await asyncio.sleep(0.02)
    raise MachineFailed("it does not let go of a disk")
