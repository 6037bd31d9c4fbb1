"""Disks attached to a pod's running microVM, and detached when no container needs them.

A disk is attached once for all containers of the pod that mount it; the host never mounts it. The
record of a disk and its containers is written before it is attached, so an interrupted attach is
undone when the container is removed.

A disk is locked while it is open, so only one pod has it. QEMU gets the open file and not the path:
what was checked is what is attached, and the lock ends with the microVM.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import hashlib
import json
import os
import stat
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from winpod.compute.disk_mounts import FOOT_BYTES, HEAD_BYTES, RAW, DiskRefused, image_format
from winpod.compute.errors import GuestError, MicroVmFailed, MicroVmGone
from winpod.compute.hypervisor.assets import HypervisorAssets
from winpod.compute.hypervisor.guest_client import GUEST_TIMEOUT, GuestClient
from winpod.compute.hypervisor.guest_filesystems import (
    bind_read_only,
    guest_mount_path,
    mount_disk,
    unmount_disk,
)
from winpod.compute.hypervisor.io_limits import IoLimits
from winpod.compute.hypervisor.qemu import DISK_ROOT_PORTS, QmpClient
from winpod.compute.spec import Mount, MountSourceKind
from winpod.concurrency import run_to_completion
from winpod.files import remove_tree

_NOT_WRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM)


@dataclass(frozen=True, slots=True)
class HostDisk:
    """An open disk; `name` identifies the disk whatever its path."""

    name: str
    descriptor: int
    format: str
    is_device: bool


def disk_name(mount: Mount) -> str:
    """Return the name of a mount's disk. Raises DiskRefused if it is not one."""
    return _name(_require_disk(mount, lambda: Path(mount.source).stat()))


def open_disk(mount: Mount) -> HostDisk:
    """Open and lock a disk, for one pod that writes or for several that read."""
    disk_name(mount)
    is_device = mount.kind is MountSourceKind.PHYSICAL_DISK
    flags = os.O_RDONLY if mount.readonly else os.O_RDWR
    flags |= os.O_CLOEXEC | os.O_NONBLOCK | (os.O_EXCL if is_device else 0)
    try:
        descriptor = os.open(mount.source, flags)
    except OSError as error:
        raise _open_error(mount, error) from None
    try:
        status = _require_disk(mount, lambda: os.fstat(descriptor))
        if not mount.readonly and not is_device and not status.st_mode & 0o222:
            raise _read_only_error(mount)
        os.set_blocking(descriptor, True)
        _lock(mount, descriptor)
        found = RAW if is_device else _format(mount.source, descriptor)
        return HostDisk(_name(status), descriptor, found, is_device)
    except BaseException:
        os.close(descriptor)
        raise


def _require_disk(mount: Mount, get_status: Callable[[], os.stat_result]) -> os.stat_result:
    try:
        status = get_status()
    except OSError as error:
        raise _open_error(mount, error) from None
    if mount.kind is MountSourceKind.PHYSICAL_DISK:
        if not stat.S_ISBLK(status.st_mode):
            raise DiskRefused(
                f"{mount.source} is not a block device.",
                f"Name a block device, or a disk image: virtual-disk://{mount.source}.",
            )
    elif not stat.S_ISREG(status.st_mode):
        raise DiskRefused(
            f"{mount.source} is not a disk image.",
            f"Name a regular file, or a block device: physical-disk://{mount.source}.",
        )
    elif not status.st_size:
        raise DiskRefused(
            f"{mount.source} is empty.",
            f"Set the size of the disk: truncate -s 10G {mount.source}.",
        )
    return status


def _name(status: os.stat_result) -> str:
    is_device = stat.S_ISBLK(status.st_mode)
    where = f"{status.st_rdev}" if is_device else f"{status.st_dev}:{status.st_ino}"
    return hashlib.sha256(where.encode()).hexdigest()[:16]


def _lock(mount: Mount, descriptor: int) -> None:
    """Lock the open file, which QEMU inherits."""
    lock = fcntl.LOCK_SH if mount.readonly else fcntl.LOCK_EX
    try:
        fcntl.flock(descriptor, lock | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _in_use_error(mount) from None


def _format(path: str, descriptor: int) -> str:
    size = os.fstat(descriptor).st_size
    head = os.pread(descriptor, HEAD_BYTES, 0)
    return image_format(path, head, os.pread(descriptor, FOOT_BYTES, max(size - FOOT_BYTES, 0)))


def _open_error(mount: Mount, error: OSError) -> DiskRefused:
    if error.errno == errno.ENOENT:
        return DiskRefused(
            f"the disk {mount.source} does not exist.",
            "Create it, or correct the path in the mount.",
        )
    if error.errno == errno.EBUSY:
        return _in_use_error(mount)
    if error.errno in _NOT_WRITABLE and not mount.readonly:
        return _read_only_error(mount)
    return DiskRefused(f"the disk {mount.source} cannot be opened: {error.strerror}.")


def _in_use_error(mount: Mount) -> DiskRefused:
    return DiskRefused(
        f"the disk {mount.source} is in use by another pod or by the host.",
        "Unmount it, or delete the other pod.",
    )


def _read_only_error(mount: Mount) -> DiskRefused:
    return DiskRefused(
        f"the disk {mount.source} is read-only and cannot be mounted writable on "
        f"{mount.destination}.",
        "Mount it read-only.",
    )


_THROTTLES = "disks"
_RECORD = "attached.json"


@dataclass(frozen=True, slots=True)
class AttachedDisk:
    socket: int
    readonly: bool


class GuestDisks:
    def __init__(self, folder: Path, guest: GuestClient) -> None:
        self._folder = folder
        self._guest = guest
        self._lock = asyncio.Lock()

    async def attach(
        self, container: str, mounts: Sequence[Mount], rates: IoLimits, assets: HypervisorAssets
    ) -> dict[str, str]:
        """Attach the disks of a container; returns their paths in the guest by destination."""
        async with self._lock:
            return {
                mount.destination: await self._attach(container, mount, rates, assets)
                for mount in mounts
            }

    async def release(self, container: str) -> None:
        """Detach the disks that only this container uses."""
        async with self._lock:
            for name in self._read():
                users = self._users(name)
                if container in users and len(users) == 1:
                    await self._detach(name)
                elif container in users:
                    (self._records / name / container).unlink()

    async def _attach(
        self, container: str, mount: Mount, rates: IoLimits, assets: HypervisorAssets
    ) -> str:
        name = await asyncio.to_thread(disk_name, mount)
        if attached := self._read().get(name):
            (self._records / name / container).touch()
        else:
            attached = await self._attach_new(name, container, mount, rates, assets)
        if attached.readonly and not mount.readonly:
            raise DiskRefused(
                f"the disk {mount.source} is read-only in another container of the pod and cannot "
                f"be mounted writable on {mount.destination}.",
                "Mount it writable in the container that is created first.",
            )
        if mount.readonly and not attached.readonly:
            return await bind_read_only(self._guest, name)
        return guest_mount_path(name)

    async def _attach_new(
        self, name: str, container: str, mount: Mount, rates: IoLimits, assets: HypervisorAssets
    ) -> AttachedDisk:
        used = {disk.socket for disk in self._read().values()}
        socket = next((number for number in DISK_ROOT_PORTS if number not in used), None)
        if socket is None:
            raise DiskRefused(
                f"the disk {mount.source} cannot be attached: the pod already has the maximum of "
                f"{len(DISK_ROOT_PORTS)} disks."
            )
        attached = AttachedDisk(socket, mount.readonly)
        disk = await asyncio.to_thread(open_disk, mount)
        try:
            self._write(name, attached, container)
            await self._plug(disk, attached, mount, rates)
            await mount_disk(self._guest, name, mount, self._folder, assets)
        except BaseException:
            with contextlib.suppress(MicroVmFailed, GuestError):
                await run_to_completion(self._detach(name))
            raise
        finally:
            os.close(disk.descriptor)
        return attached

    async def _plug(
        self, disk: HostDisk, attached: AttachedDisk, mount: Mount, rates: IoLimits
    ) -> None:
        node = f"disk-{disk.name}"
        async with QmpClient(self._folder / "qmp") as qmp:
            number = await qmp.add_fd(disk.descriptor)
            file = {
                "driver": "host_device" if disk.is_device else "file",
                "filename": f"/dev/fdset/{number}",
                "discard": "unmap",
            }
            options = {"driver": disk.format, "node-name": node, "read-only": attached.readonly}
            try:
                await qmp.execute("blockdev-add", **options, discard="unmap", file=file)
            except MicroVmFailed as error:
                raise DiskRefused(f"the disk {mount.source} cannot be attached. {error}") from None
            finally:
                await qmp.execute("remove-fd", **{"fdset-id": number})
            if rates != IoLimits():
                node = await _throttle(qmp, node, rates)
            device = {"driver": "virtio-blk-pci", "id": f"device-{disk.name}", "drive": node}
            errors = {"werror": "report", "rerror": "report"}
            root_port = f"root{attached.socket}"
            await qmp.execute("device_add", **device, **errors, serial=disk.name, bus=root_port)

    async def _detach(self, name: str) -> None:
        with contextlib.suppress(MicroVmGone):
            await unmount_disk(self._guest, name)
            async with QmpClient(self._folder / "qmp") as qmp:
                await _unplug(qmp, name)
        await asyncio.to_thread(remove_tree, self._records / name, ignore_errors=True)

    @property
    def _records(self) -> Path:
        """A directory for each disk, with a file for each container, so that removing a record
        needs no disk space."""
        return self._folder / "disks"

    def _read(self) -> dict[str, AttachedDisk]:
        found = self._records.glob(f"[!.]*/{_RECORD}")
        return {file.parent.name: AttachedDisk(**json.loads(file.read_text())) for file in found}

    def _users(self, name: str) -> set[str]:
        return {file.name for file in (self._records / name).iterdir()} - {_RECORD}

    def _write(self, name: str, attached: AttachedDisk, container: str) -> None:
        part = self._records / f".{name}"
        remove_tree(part, ignore_errors=True)
        part.mkdir(parents=True)
        (part / _RECORD).write_text(json.dumps(asdict(attached)))
        (part / container).touch()
        part.rename(self._records / name)


async def _throttle(qmp: QmpClient, node: str, rates: IoLimits) -> str:
    """Add a disk to the pod's throttle group, which has the I/O limits."""
    groups = await qmp.execute("qom-list", path="/objects")
    if all(group["name"] != _THROTTLES for group in groups):
        limits = {"bps-total": rates.bytes, "iops-total": rates.operations}
        group = {"qom-type": "throttle-group", "id": _THROTTLES}
        await qmp.execute("object-add", **group, limits=limits)
    throttled = {"driver": "throttle", "throttle-group": _THROTTLES, "file": node}
    await qmp.execute("blockdev-add", **throttled, **{"node-name": f"throttled-{node}"})
    return f"throttled-{node}"


async def _unplug(qmp: QmpClient, name: str) -> None:
    """Unplug a disk and wait until the guest and QEMU have released it."""
    device, disk = f"device-{name}", f"disk-{name}"
    with contextlib.suppress(MicroVmFailed):
        await qmp.execute("device_del", id=device)
    deadline = time.monotonic() + GUEST_TIMEOUT
    while time.monotonic() < deadline:
        devices = {
            device["name"] for device in await qmp.execute("qom-list", path="/machine/peripheral")
        }
        nodes = {
            node["node-name"] for node in await qmp.execute("query-named-block-nodes", flat=True)
        }
        remaining = [node for node in (f"throttled-{disk}", disk) if node in nodes]
        if device not in devices and not remaining:
            return
        for node in remaining if device not in devices else ():
            with contextlib.suppress(MicroVmFailed):  # the device may hold it a moment longer
                await qmp.execute("blockdev-del", **{"node-name": node})
        await asyncio.sleep(0.02)
    raise MicroVmFailed("it did not release a disk")
