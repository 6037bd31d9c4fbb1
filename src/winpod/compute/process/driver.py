"""Process isolation: silos on the host, each an OCI container in the pod's network namespace.

A sandbox takes a warm silo and gives its network namespace to the pod. If none is warm, one starts
to boot in the pod's network namespace while CNI runs and the image is pulled. The pod's first
container takes the sandbox's silo; every other container boots its own.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from winpod.compute import cgroups, scratch_disk
from winpod.compute.backend import ContainerConfig, ContainerUsage, SandboxSpec
from winpod.compute.errors import SiloFailed
from winpod.compute.guest_identity import set_hostname
from winpod.compute.preflight import NEEDED_PROGRAMS, missing_programs
from winpod.compute.resources import ResourceLimits
from winpod.compute.rootfs import ContainerRootfs, refuse_unsupported_binary
from winpod.compute.silo import DRIVE_C
from winpod.compute.silo_pool import Silo, SiloPool
from winpod.compute.spec import ContainerSpec, container_program
from winpod.errors import WinpodError
from winpod.images.errors import ToolMissing
from winpod.windows.builds import Build
from winpod.windows.users import ADMINISTRATOR

_log = logging.getLogger(__name__)


class Preboot:
    """Boots a silo for a sandbox before its first container is created."""

    def __init__(self, pool: SiloPool) -> None:
        self._pool = pool
        self._tasks: dict[Path, asyncio.Task[None]] = {}

    def start(self, folder: Path, netns: Path) -> None:
        self._tasks[folder] = asyncio.create_task(self._boot(folder, netns))
        self._tasks[folder].add_done_callback(lambda _: self._tasks.pop(folder))

    async def _boot(self, folder: Path, netns: Path) -> None:
        """Boot a silo. If that fails, the container boots its own and reports the error."""
        try:
            await self._pool.create(folder, netns=netns)
        except (WinpodError, OSError) as error:
            _log.warning("Failed to boot silo %s ahead of its container: %s", folder, error)

    async def wait(self, folder: Path) -> None:
        """Wait for a boot that is in progress, if any."""
        if task := self._tasks.get(folder):
            await asyncio.wait((task,))

    async def cancel(self, folder: Path) -> None:
        """Cancel a boot that is in progress and remove the silo."""
        if task := self._tasks.get(folder):
            task.cancel()
            await asyncio.wait((task,))

    async def close(self) -> None:
        for folder in list(self._tasks):
            await self.cancel(folder)


class ProcessIsolation:
    """The driver; `netns` returns the path of a sandbox's network namespace."""

    def __init__(
        self, root: Path, pool: SiloPool, boot_build: Build, netns: Callable[[str], Path]
    ) -> None:
        self.boot_build = boot_build
        self._root = root
        self._pool = pool
        self._netns = netns
        self._preboot = Preboot(pool)

    async def open(self) -> None:
        for folder in self._root.glob("sandboxes/*/shell"):
            if not Silo(folder).is_complete:
                await self._pool.destroy(folder)
        await self._pool.start()

    async def close(self) -> None:
        await self._preboot.close()
        await self._pool.stop()

    def describe(self) -> dict[str, object]:
        warm = {"wanted": self._pool.size, "waiting": len(self._pool.idle_silos)}
        return {"warm_shells": warm, "user_namespaces": self._pool.with_users}

    def unavailable_reason(self) -> str:
        if missing := missing_programs(NEEDED_PROGRAMS):
            return missing
        try:
            self._pool.oci_runtime()
        except ToolMissing as error:
            return str(error)
        rootfs = self._pool.base.rootfs
        return "" if rootfs.is_dir() else f"the Wine base {rootfs} is missing: winpod base build."

    async def create_sandbox(self, spec: SandboxSpec, sandbox: Path) -> Path | None:
        del spec
        silo = self._pool.acquire(sandbox / "shell")
        self._pool.refill()
        return Path(f"/proc/{silo.pid}/ns/net") if silo else None

    def netns_ready(self, sandbox: Path) -> None:
        folder = sandbox / "shell"
        if not folder.exists() and not self.unavailable_reason():
            self._preboot.start(folder, self._netns(sandbox.name))

    async def network_ready(self, sandbox: Path, interface: str, result: Mapping[str, Any]) -> None:
        del sandbox, interface, result

    async def cpu_count(self, sandbox: Path) -> int:
        del sandbox
        return len(os.sched_getaffinity(0))

    async def dial(self, sandbox: Path, port: int, addresses: Sequence[str]) -> None:
        del sandbox, port, addresses

    async def wait_dead(self, sandbox: Path) -> None:
        """Never returns: a silo that dies takes only its own container with it."""
        del sandbox
        await asyncio.Future()

    def is_alive(self, folder: Path) -> bool:
        del folder
        return True

    async def remove_sandbox(self, sandbox: Path) -> None:
        await self._preboot.cancel(sandbox / "shell")
        await self.kill(sandbox / "shell")

    def silo(self, folder: Path) -> Silo:
        return Silo(folder)

    async def create_silo(self, config: ContainerConfig, sandbox: Path, folder: Path) -> Silo:
        """Take the sandbox's silo if it is free and fits the user, else boot a new one."""
        waiting = sandbox / "shell"
        size = config.spec.limits.rootfs_bytes
        if config.spec.user == ADMINISTRATOR:
            await self._preboot.wait(waiting)
            if Silo(waiting).is_complete:
                waiting.rename(folder)  # before any await: another container may wait for it too
                await self._pool.ensure_disk(Silo(folder), size)
                return Silo(folder)
        return await self._pool.create(folder, config.spec.user, self._netns(sandbox.name), size)

    async def attach_rootfs(
        self, silo: Silo, config: ContainerConfig, sandbox: SandboxSpec, folder: Path
    ) -> None:
        if has_limits(config.spec):  # the boot may need more than the limits allow
            await self.wait_ready(silo)
            await self.set_limits(silo, config.spec.limits)
        await asyncio.to_thread(self._attach, silo, config, sandbox, folder)

    def _attach(
        self, silo: Silo, config: ContainerConfig, sandbox: SandboxSpec, folder: Path
    ) -> None:
        pid = silo.pid
        if pid is None:
            raise SiloFailed("the silo ended while its container was created")
        spec, owner, base = config.spec, silo.first_id, self._pool.base
        set_hostname(pid, sandbox.hostname)
        users = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC) if owner else None
        try:
            drive = ContainerRootfs(folder / "c", silo.folder / "disk", owner, users)
            drive.assemble(base.drive_c, config.layers, folder / "scratch")
            drive.make_directory(f"C:\\Users\\{spec.user.name}", owner + spec.user.uid)
            for volume in spec.volumes:
                drive.make_directory(volume, owner)
            drive.add_mounts(spec.mounts, folder / "scratch")
            refuse_unsupported_binary(base, folder / "c", container_program(spec))
            drive.move_into(pid, DRIVE_C)
        finally:
            if users is not None:
                os.close(users)

    def rootfs_path(self, folder: Path) -> Path | None:
        pid = Silo(folder / "shell").pid
        return Path(f"/proc/{pid}/root{DRIVE_C}") if pid else None

    async def wait_ready(self, silo: Silo) -> None:
        await self._pool.wait_ready(silo)

    async def write_resolv_conf(self, silo: Silo, text: str) -> None:
        await asyncio.to_thread((silo.prefix / "resolv.conf").write_text, text)

    async def resize_sandbox(self, sandbox: Path, memory_bytes: int, processors: int) -> None:
        """Do nothing: on Windows only containers have limits."""

    async def set_limits(self, silo: Silo, limits: ResourceLimits) -> None:
        await asyncio.to_thread(_limit, silo, limits)

    async def usage(self, silo: Silo) -> ContainerUsage:
        return await asyncio.to_thread(_usage, silo)

    async def kill(self, folder: Path) -> None:
        await self._pool.kill(folder)

    async def destroy(self, folder: Path) -> None:
        await self._pool.destroy(folder)


def has_limits(spec: ContainerSpec) -> bool:
    """Report whether a container has limits other than those that every silo starts with."""
    return spec.limits != ResourceLimits(spec.limits.processors)


def _limit(silo: Silo, limits: ResourceLimits) -> None:
    cgroups.set_limits(silo.id, limits, scratch_disk.block_device(silo.folder))
    if limits.disk_bytes_per_second or limits.disk_operations_per_second:
        scratch_disk.disable_write_cache(silo.folder)


def _usage(silo: Silo) -> ContainerUsage:
    if not (id_ := silo.id):
        return ContainerUsage(time.time_ns())
    return silo_usage(silo, cgroups.read_usage(id_))


def silo_usage(silo: Silo, usage: cgroups.CgroupUsage) -> ContainerUsage:
    """Combine the usage of a cgroup with that of the silo's disk."""
    disk_bytes, inodes = scratch_disk.disk_usage(silo.folder)
    return ContainerUsage(
        time.time_ns(),
        usage.cpu_nanoseconds,
        usage.private_bytes,
        usage.private_bytes + usage.shared_bytes + usage.swapped_bytes,
        usage.processes,
        disk_bytes,
        charged_bytes=usage.memory_bytes,
        threads=usage.threads,
        out_of_memory_kills=usage.out_of_memory_kills,
        disk_inodes=inodes,
        mountpoint=str(silo.folder / "disk"),
    )
