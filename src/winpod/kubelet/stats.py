"""Resource usage of the node, its disks and directories.

A node that has the whole machine reports the machine's counters. Nodes that share a machine, or are
simulated, report the sum of their pods and an equal share of the agent's usage; the CPU time is
accumulated, so that it does not decrease when a pod is removed. Directory sizes are cached for a
minute.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from winpod.concurrency import TtlCache
from winpod.files import tree_usage
from winpod.kubelet.node_config import NodeConfig

_CACHE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """Disk usage at a time in Unix nanoseconds."""

    time: int
    bytes: int = 0
    inodes: int = 0


@dataclass(frozen=True, slots=True)
class FilesystemStats:
    """Capacity and free space of a file system."""

    capacity_bytes: int
    available_bytes: int
    free_bytes: int
    inodes: int
    inodes_free: int

    def to_usage(self) -> DiskUsage:
        """Return the current usage. Blocks reserved for root are free but not available."""
        return DiskUsage(
            time.time_ns(),
            self.capacity_bytes - self.free_bytes,
            max(0, self.inodes - self.inodes_free),
        )


def filesystem_of(folder: Path) -> FilesystemStats:
    """Return the file system of a directory, which may not exist yet."""
    status = os.statvfs(next(path for path in (folder, *folder.parents) if path.exists()))
    return FilesystemStats(
        status.f_frsize * status.f_blocks,
        status.f_frsize * status.f_bavail,
        status.f_frsize * status.f_bfree,
        status.f_files,
        status.f_ffree,
    )


@dataclass(slots=True)
class DiskUsageCache:
    _cache: TtlCache[Path, DiskUsage] = field(default_factory=TtlCache)

    async def read(self, folder: Path) -> DiskUsage:
        if folder in self._cache:
            return self._cache[folder]
        usage = await asyncio.to_thread(measure_directory, folder)
        self._cache.put(folder, usage, _CACHE_SECONDS)
        return usage

    def evict_expired(self) -> None:
        self._cache.remove_expired()


def measure_directory(folder: Path) -> DiskUsage:
    """Measure a directory tree, whose files may be removed meanwhile."""
    usage = tree_usage(folder, ignore_errors=True)
    return DiskUsage(time.time_ns(), usage.bytes, usage.inodes)


_SECOND = 1_000_000_000
_KIB = 1024
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class ResourceUsage:
    """CPU and memory usage at a time in Unix nanoseconds. `commit_bytes` is committed memory."""

    time: int
    cpu_nanoseconds: int = 0
    nano_cores: int = 0
    working_set_bytes: int = 0
    commit_bytes: int = 0


@dataclass(slots=True)
class NodeUsageReader:
    node_config: NodeConfig
    _last: ResourceUsage | None = None
    _pods_cpu: dict[str, int] = field(default_factory=dict)
    _cpu_total: int = 0

    def read(self, pods: Mapping[str, ResourceUsage]) -> ResourceUsage:
        """Return the node's usage; `pods` is the usage of its pods by sandbox ID."""
        accumulated = self._accumulate(pods)
        now = host_usage() if self._has_whole_machine else accumulated
        before = self._last
        if before is None or now.time - before.time >= _SECOND:
            self._last = now = _with_rate(now, before)
            return now
        return _with_rate(now, None, before.nano_cores)

    @property
    def _has_whole_machine(self) -> bool:
        node_config = self.node_config
        has_all = (
            node_config.nodes_here == 1
            and node_config.memory_bytes // _KIB >= host_memory() // _KIB
        )
        return has_all and not node_config.is_simulated

    def _accumulate(self, pods: Mapping[str, ResourceUsage]) -> ResourceUsage:
        for id_, used in pods.items():
            self._cpu_total += max(0, used.cpu_nanoseconds - self._pods_cpu.get(id_, 0))
        self._pods_cpu = {id_: used.cpu_nanoseconds for id_, used in pods.items()}
        agent = process_usage(self.node_config.nodes_here)
        return ResourceUsage(
            agent.time,
            self._cpu_total + agent.cpu_nanoseconds,
            0,
            sum((used.working_set_bytes for used in pods.values()), agent.working_set_bytes),
            sum((used.commit_bytes for used in pods.values()), agent.commit_bytes),
        )


def _with_rate(now: ResourceUsage, before: ResourceUsage | None, rate: int = 0) -> ResourceUsage:
    if before:
        elapsed = now.time - before.time
        rate = max(0, (now.cpu_nanoseconds - before.cpu_nanoseconds) * _SECOND // elapsed)
    return ResourceUsage(
        now.time, now.cpu_nanoseconds, rate, now.working_set_bytes, now.commit_bytes
    )


def host_usage() -> ResourceUsage:
    """Return the machine's usage. The working set excludes reclaimable memory."""
    memory = _memory()
    return ResourceUsage(
        time.time_ns(),
        _cpu_nanoseconds((_PROC / "stat").read_text()),
        0,
        memory["MemTotal"] - memory["MemAvailable"],
        memory["Committed_AS"],
    )


def process_usage(nodes: int) -> ResourceUsage:
    """Return this process's usage, divided by the number of nodes it serves."""
    resident = int((_PROC / "self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return ResourceUsage(
        time.time_ns(), time.process_time_ns() // nodes, 0, resident // nodes, resident // nodes
    )


def host_memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def host_available_memory() -> int:
    """Return MemAvailable in bytes."""
    return _memory()["MemAvailable"]


def host_tasks() -> tuple[int, int]:
    """Return the maximum and the current number of tasks."""
    limits = (_PROC / "sys/kernel" / name for name in ("pid_max", "threads-max"))
    _, _, current = (_PROC / "loadavg").read_text().split()[3].partition("/")
    return min(int(limit.read_text()) for limit in limits), int(current)


def host_boot_time() -> int:
    """Return the boot time in Unix nanoseconds."""
    return time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def _memory() -> dict[str, int]:
    amounts = {}
    for line in (_PROC / "meminfo").read_text().splitlines():
        name, _, amount = line.partition(":")
        amounts[name] = int(amount.split()[0]) * 1024
    return amounts


def _cpu_nanoseconds(stat: str) -> int:
    """Return the CPU time of all processors, without idle and iowait."""
    user, nice, system, _idle, _waiting, irq, soft_irq, stolen = map(int, stat.split()[1:9])
    ticks = user + nice + system + irq + soft_irq + stolen
    return int(ticks * _SECOND // os.sysconf("SC_CLK_TCK"))


def disk_space_at(path: Path) -> DiskSpace:
    """Return the space on the file system of a directory, which may not exist yet."""
    disk = filesystem_of(path)
    return DiskSpace(disk.available_bytes, disk.capacity_bytes)


@dataclass(frozen=True, slots=True)
class DiskSpace:
    available: int
    size: int
