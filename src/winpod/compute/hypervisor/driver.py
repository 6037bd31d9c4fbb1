"""Hypervisor isolation: one microVM for each pod, with a silo for each container.

A container's drive is assembled on the host, as with process isolation, and shared with the guest
by virtiofs. Its volumes are on a second share without caching, because others change them.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from winpod.compute import cgroups, scratch_disk
from winpod.compute.agent.protocol import GuestCommand
from winpod.compute.backend import ContainerConfig, ContainerUsage, SandboxSpec
from winpod.compute.disk_mounts import DISK_KINDS
from winpod.compute.errors import GuestError, MemoryInUse, MicroVmFailed, MicroVmGone, SiloFailed
from winpod.compute.hypervisor.guest_dial import GuestDialer
from winpod.compute.hypervisor.guest_silo import (
    WARM_SILO,
    attach_guest_rootfs,
    guest_cgroup,
    start_agent_link,
    start_guest_silo,
    stop_guest_silo,
    write_guest_resolv_conf,
)
from winpod.compute.hypervisor.hotplug import MicroVmSize
from winpod.compute.hypervisor.io_limits import limit_rootfs_io, pod_io_limits, rootfs_io_limits
from winpod.compute.hypervisor.microvm import MicroVm
from winpod.compute.hypervisor.qemu import WARM
from winpod.compute.hypervisor.tap_network import configure_guest, open_tap, read_cni_result
from winpod.compute.hypervisor.template import Template, Templates
from winpod.compute.hypervisor.virtiofs import (
    DRIVES,
    VOLUMES,
    create_share_mount_point,
    remove_container_shares,
)
from winpod.compute.hypervisor.vm_annotations import MicroVmRequest, parse_vm_annotations
from winpod.compute.process.driver import has_limits, silo_usage
from winpod.compute.resources import ResourceLimits
from winpod.compute.rootfs import ContainerRootfs, refuse_unsupported_binary
from winpod.compute.silo import DRIVE_C
from winpod.compute.silo_pool import Silo
from winpod.compute.spec import container_program
from winpod.concurrency import run_to_completion
from winpod.errors import WinpodError
from winpod.files import remove_tree
from winpod.images.base.builder import Base
from winpod.subprocesses import read_pid, wait_process_exit
from winpod.windows.builds import DEFAULT_HOST
from winpod.windows.users import ADMINISTRATOR

_BOOT_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class GuestSilo(Silo):
    """The directory of a silo in a guest; `pid` is the process that relays its agent's port."""

    @property
    def pid(self) -> int | None:
        pid = read_pid(self.folder / "shell.pid")
        try:
            is_link = pid and Path(f"/proc/{pid}/cwd").readlink() == microvm_directory(self)
        except OSError:
            return None
        return pid if is_link else None


class HypervisorIsolation:
    boot_build = DEFAULT_HOST

    def __init__(self, base: Base, netns: Callable[[str], Path], templates: Templates) -> None:
        self._base = base
        self._netns = netns
        self._templates = templates
        self._microvms: dict[Path, MicroVm] = {}
        self._cloning: dict[Path, asyncio.Task[None]] = {}
        self._clone_slots = asyncio.Semaphore(len(os.sched_getaffinity(0)))
        self._dialers: dict[Path, GuestDialer] = {}

    def microvm(self, folder: Path) -> MicroVm:
        return self._microvms.setdefault(folder, MicroVm(folder))

    async def open(self) -> None: ...

    async def close(self) -> None:
        for dialer in self._dialers.values():
            dialer.close()
        for vm in self._microvms.values():
            vm.guest.close()

    def describe(self) -> dict[str, object]:
        return {"machines": len(self._microvms)}

    def unavailable_reason(self) -> str:
        return self._templates.unavailable_reason()

    def netns_ready(self, sandbox: Path) -> None: ...

    def silo(self, folder: Path) -> GuestSilo:
        return GuestSilo(folder)

    def rootfs_path(self, folder: Path) -> Path | None:
        silo = GuestSilo(folder / "shell")
        return microvm_directory(silo) / DRIVES / folder.name if silo.pid else None

    async def wait_ready(self, silo: Silo) -> None:
        try:
            async with asyncio.timeout(_BOOT_SECONDS):
                await silo.agent.ping()
        except (TimeoutError, WinpodError):
            raise SiloFailed("it did not boot in its microVM") from None

    async def write_resolv_conf(self, silo: Silo, text: str) -> None:
        await write_guest_resolv_conf(self.microvm(microvm_directory(silo)).guest, silo.id, text)

    async def create_sandbox(self, spec: SandboxSpec, sandbox: Path) -> None:
        template = await self._templates.get()
        vm = self.microvm(sandbox / "vm")
        cloning = self._clone(vm, template, parse_vm_annotations(spec.annotations))
        self._cloning[sandbox] = asyncio.create_task(cloning)

    async def _clone(self, vm: MicroVm, template: Template, request: MicroVmRequest) -> None:
        """Clone at most one microVM per processor at a time; more would slow each other down."""
        async with self._clone_slots:
            await vm.clone(template, request)

    async def network_ready(self, sandbox: Path, interface: str, result: Mapping[str, Any]) -> None:
        """Wait for the guest and configure the pod's network in it."""
        link = read_cni_result(interface, result)
        await self._cloning.pop(sandbox)
        vm = self.microvm(sandbox / "vm")
        tap = await asyncio.to_thread(open_tap, self._netns(sandbox.name), interface)
        try:
            await vm.plug_network(tap, link.mac, link.mtu)
        finally:
            os.close(tap)
        await configure_guest(vm.guest, link)

    async def cpu_count(self, sandbox: Path) -> int:
        return (await self.microvm(sandbox / "vm").size.current_size()).processors

    async def dial(
        self, sandbox: Path, port: int, addresses: Sequence[str]
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if sandbox not in self._dialers:
            self._dialers[sandbox] = GuestDialer(self.microvm(sandbox / "vm"))
        return await self._dialers[sandbox].dial(port, addresses)

    async def wait_dead(self, sandbox: Path) -> None:
        await self.microvm(sandbox / "vm").wait_dead()

    def is_alive(self, folder: Path) -> bool:
        return MicroVm(microvm_directory(GuestSilo(folder))).is_complete

    async def remove_sandbox(self, sandbox: Path) -> None:
        if cloning := self._cloning.pop(sandbox, None):
            cloning.cancel()
            await asyncio.wait((cloning,))
        if dialer := self._dialers.pop(sandbox, None):
            dialer.close()
        vm = self._microvms.pop(sandbox / "vm", None) or MicroVm(sandbox / "vm")
        await vm.destroy()

    async def create_silo(self, config: ContainerConfig, sandbox: Path, folder: Path) -> GuestSilo:
        vm = self.microvm(sandbox / "vm")
        (folder / "run").mkdir(parents=True)
        user, size = (
            config.spec.user,
            config.spec.limits.rootfs_bytes or scratch_disk.default_disk_size(folder),
        )
        (folder / "machine").symlink_to(vm.folder)
        is_warm = user == ADMINISTRATOR and _take_warm(vm.folder)
        name, port = (WARM_SILO, WARM) if is_warm else (config.id, config.id[:32])
        (folder / "id").write_text(name)
        (folder / "port").write_text(port)
        try:
            if not is_warm:
                await vm.add_port(port)
                with_32bit = self._base.with_32bit
                await start_guest_silo(vm.guest, name, port, user, with_32bit=with_32bit)
            await asyncio.to_thread(scratch_disk.create_disk, folder, size, 0)
            link = await start_agent_link(vm.folder, port, folder / "run/agent.sock")
            (folder / "shell.pid").write_text(str(link.pid))
        except BaseException:
            await run_to_completion(self.destroy(folder))
            raise
        return GuestSilo(folder)

    async def attach_rootfs(
        self, silo: Silo, config: ContainerConfig, sandbox: SandboxSpec, folder: Path
    ) -> None:
        disk_paths = await self._attach_disks(silo, config, sandbox)
        volumes = await asyncio.to_thread(self._assemble, silo, config, folder)
        guest = self.microvm(microvm_directory(silo)).guest
        await guest.request(GuestCommand.SET_SILO_HOSTNAME, silo.id, sandbox.hostname)
        if has_limits(config.spec):  # the boot may need more than the limits allow
            await self.wait_ready(silo)
            await self._limit(silo, config.spec.limits, is_new=True)
        await attach_guest_rootfs(guest, silo.id, f"/{DRIVES}/{config.id}")
        for source, target in volumes:
            path = disk_paths.get(source) or f"/{VOLUMES}/{config.id}/{source}"
            await guest.request(GuestCommand.MOUNT_IN_SILO, silo.id, path, f"{DRIVE_C}/{target}")

    async def _attach_disks(
        self, silo: Silo, config: ContainerConfig, sandbox: SandboxSpec
    ) -> dict[str, str]:
        """Attach the disks that the container mounts and return their paths in the guest.

        Also limits the I/O of the container's scratch disk.
        """
        vm = self.microvm(microvm_directory(silo))
        rates = pod_io_limits(sandbox.annotations)
        rootfs_rates = rootfs_io_limits(config.spec.limits, rates)
        await asyncio.to_thread(limit_rootfs_io, vm.cgroup, silo.folder, rootfs_rates)
        disks = [mount for mount in config.spec.mounts if mount.kind in DISK_KINDS]
        if not disks:
            return {}
        assets = (await self._templates.get()).assets
        return await vm.disks.attach(config.id, disks, rates, assets)

    def _assemble(self, silo: Silo, config: ContainerConfig, folder: Path) -> list[tuple[str, str]]:
        vm_folder = microvm_directory(silo)
        root, volume_root = (
            create_share_mount_point(vm_folder, share, config.id) for share in (DRIVES, VOLUMES)
        )

        def make_external(name: str, *, is_file: bool) -> Path:
            path = f"{config.id}/{name}"
            return create_share_mount_point(vm_folder, VOLUMES, path, is_file=is_file)

        spec = config.spec
        drive = ContainerRootfs(root, silo.folder / "disk", 0, None)
        drive.assemble(self._base.drive_c, config.layers, folder / "scratch")
        drive.make_directory(f"C:\\Users\\{spec.user.name}", spec.user.uid)
        for volume in spec.volumes:
            drive.make_directory(volume, 0)
        volumes = drive.add_external_mounts(spec.mounts, folder / "scratch", make_external)
        separate = {target: volume_root / source for source, target in volumes}
        refuse_unsupported_binary(self._base, root, container_program(spec), separate)
        return volumes

    async def set_limits(self, silo: Silo, limits: ResourceLimits) -> None:
        await self._limit(silo, limits, is_new=False)

    async def resize_sandbox(self, sandbox: Path, memory_bytes: int, processors: int) -> None:
        await self.microvm(sandbox / "vm").size.resize(MicroVmSize(memory_bytes, processors))

    async def _limit(self, silo: Silo, limits: ResourceLimits, *, is_new: bool) -> None:
        vm = self.microvm(microvm_directory(silo))
        usage = cgroups.parse_cgroup_v2(await self._read_cgroup(silo))
        used = usage.private_bytes + usage.shared_bytes
        if limits.memory_bytes and limits.memory_bytes < used:
            raise MemoryInUse(limits.memory_bytes, used)
        await vm.size.ensure_fits(silo.folder.parent.name, limits, is_new=is_new)
        guest = vm.guest
        for file, text in cgroups.cgroup_v2_writes(limits):
            try:
                await guest.request(GuestCommand.WRITE, f"{guest_cgroup(silo.id)}/{file}", text)
            except GuestError as error:
                if error.number != errno.ENOENT:  # a guest without swap has no memory.swap.max
                    raise

    async def usage(self, silo: Silo) -> ContainerUsage:
        """Return the usage; only that of the disk if the microVM has ended."""
        try:
            usage = cgroups.parse_cgroup_v2(await self._read_cgroup(silo))
        except (MicroVmGone, GuestError):
            usage = cgroups.CgroupUsage()
        return await asyncio.to_thread(silo_usage, silo, usage)

    async def _read_cgroup(self, silo: Silo) -> dict[str, str]:
        guest, group = self.microvm(microvm_directory(silo)).guest, guest_cgroup(silo.id)
        return {
            name: (await guest.request(GuestCommand.READ, f"{group}/{name}")).decode()
            for name in cgroups.UNIFIED_FILES
        }

    async def kill(self, folder: Path) -> None:
        silo = GuestSilo(folder)
        if (name := silo.id) and MicroVm(microvm_directory(silo)).pid:
            with contextlib.suppress(MicroVmGone, GuestError):
                guest = self.microvm(microvm_directory(silo)).guest
                await guest.request(GuestCommand.KILL_SILO, name)
        if pid := silo.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            await wait_process_exit(pid)
        if name and MicroVm(microvm_directory(silo)).pid:
            with contextlib.suppress(MicroVmGone, MicroVmFailed, GuestError):
                await self.microvm(microvm_directory(silo)).disks.release(folder.parent.name)

    async def destroy(self, folder: Path) -> None:
        """Remove a silo, also a partially created one."""
        if not await asyncio.to_thread(folder.exists):
            return
        await self.kill(folder)
        silo = GuestSilo(folder)
        vm_folder, container = microvm_directory(silo), folder.parent.name
        MicroVm(vm_folder).size.remove_container(container)
        is_running = bool(silo.id and MicroVm(vm_folder).pid)
        if is_running:
            vm = self.microvm(vm_folder)
            with contextlib.suppress(MicroVmGone, MicroVmFailed, GuestError):
                await stop_guest_silo(vm.guest, silo.id)
                if silo.id != WARM_SILO:
                    await vm.remove_port((folder / "port").read_text())
        await remove_container_shares(
            vm_folder, container, self.microvm(vm_folder).guest if is_running else None
        )
        await asyncio.to_thread(scratch_disk.remove_disk, folder)
        await asyncio.to_thread(remove_tree, folder)


def microvm_directory(silo: Silo) -> Path:
    """Return the directory of a silo's microVM."""
    return (silo.folder / "machine").resolve()


def _take_warm(vm_folder: Path) -> bool:
    """Claim the silo that the template was saved with. Only the first caller gets it."""
    try:
        (vm_folder / "taken").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
