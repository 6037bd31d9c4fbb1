"""Memory and processors of a running microVM.

A guest boots small. Memory on demand is one virtio-mem device that is resized; reserved memory is
one DIMM for each increase, and cannot be unplugged. A guest has at least the limits of its
containers, unless the pod specifies its size; raising a container's limit later also grows the
guest.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from winpod.compute import cgroups
from winpod.compute.agent.protocol import GuestCommand
from winpod.compute.errors import MicroVmFailed, MicroVmTooLarge
from winpod.compute.hypervisor.guest_client import GUEST_TIMEOUT, GuestClient
from winpod.compute.hypervisor.qemu import (
    DEFAULT_CPUS,
    MAX_MEMORY,
    MEMORY,
    PCIE_ROOT_PORTS,
    QmpClient,
)
from winpod.compute.hypervisor.template import max_cpus
from winpod.compute.hypervisor.vm_annotations import MicroVmRequest, microvm_cgroup_limits
from winpod.compute.resources import MIB, ResourceLimits

GUEST_OVERHEAD = 128 * MIB
"""Memory that the guest's kernel needs in addition to its containers."""
_BLOCK = 128 * MIB
_ON_DEMAND = "more-memory"
_FREE_HUGE_PAGES = Path("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")
_HUGE_PAGE = 2 * MIB
_UNPLUG_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class MicroVmSize:
    """A size of a microVM. Zero means unspecified."""

    memory_bytes: int = 0
    processors: int = 0


def container_size(limits: ResourceLimits) -> MicroVmSize:
    """Return what a container with these limits may use."""
    quota = limits.cpu_quota_us or 0
    return MicroVmSize(limits.memory_bytes or 0, -(-quota // limits.cpu_period_us))


def required_size(containers: Iterable[MicroVmSize]) -> MicroVmSize:
    """Return the size in which all containers can use their memory at the same time."""
    sizes = list(containers)
    memory = sum(size.memory_bytes for size in sizes)
    return MicroVmSize(
        memory + GUEST_OVERHEAD if memory else 0,
        max((size.processors for size in sizes), default=0),
    )


def size_increase(
    request: MicroVmRequest, current: MicroVmSize, needed: MicroVmSize, *, is_new: bool
) -> MicroVmSize:
    """Return what has to grow, if anything. A new container does not change a specified size."""
    keep_memory = is_new and (request.memory_bytes or request.reserved)
    keep_processors = is_new and request.processors
    more_memory = needed.memory_bytes > current.memory_bytes and not keep_memory
    more_processors = needed.processors > current.processors and not keep_processors
    return MicroVmSize(
        needed.memory_bytes if more_memory else 0, needed.processors if more_processors else 0
    )


def require_capacity(target: MicroVmSize, capacity: MicroVmSize) -> None:
    if target.memory_bytes > capacity.memory_bytes or target.processors > capacity.processors:
        raise MicroVmTooLarge(
            target.memory_bytes, target.processors, capacity.memory_bytes, capacity.processors
        )


def host_capacity() -> MicroVmSize:
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return MicroVmSize(min(memory, MAX_MEMORY), max_cpus())


class Hotplug:
    def __init__(self, folder: Path, guest: GuestClient, group: str) -> None:
        self._folder = folder
        self._guest = guest
        self._group = group
        self._lock = asyncio.Lock()

    async def start(self, request: MicroVmRequest) -> None:
        (self._folder / "limits").mkdir()
        (self._folder / "asked.json").write_text(json.dumps(asdict(request)))
        if not request.reserved:
            await self._add_on_demand()
        default = min(DEFAULT_CPUS, max_cpus())
        await self._change(
            MicroVmSize(request.memory, min(request.processors, max_cpus()) or default)
        )

    async def ensure_fits(self, container: str, limits: ResourceLimits, *, is_new: bool) -> None:
        """Grow the guest before a container gets these limits."""
        async with self._lock:
            file = self._folder / "limits" / container
            others = [_read(other) for other in file.parent.iterdir() if other != file]
            needed = required_size([*others, container_size(limits)])
            more = size_increase(self._request, await self.current_size(), needed, is_new=is_new)
            if not is_new:
                require_capacity(more, host_capacity())
            if more != MicroVmSize():
                await self._change(_capped(more, host_capacity()))
            file.write_text(json.dumps(asdict(container_size(limits))))

    def remove_container(self, container: str) -> None:
        (self._folder / "limits" / container).unlink(missing_ok=True)

    async def resize(self, target: MicroVmSize) -> None:
        require_capacity(target, host_capacity())
        async with self._lock:
            await self._change(target)

    async def current_size(self) -> MicroVmSize:
        online = await self._guest.request(GuestCommand.READ, "/sys/devices/system/cpu/online")
        async with QmpClient(self._folder / "qmp") as qmp:
            return MicroVmSize(
                MEMORY + sum(await _plugged(qmp)), len(list(_parse_cpu_list(online.decode())))
            )

    @property
    def _request(self) -> MicroVmRequest:
        return MicroVmRequest(**json.loads((self._folder / "asked.json").read_text()))

    async def _change(self, target: MicroVmSize) -> None:
        """Resize the guest. The cgroup grows before the guest, and shrinks after it."""
        current = await self.current_size()
        after = MicroVmSize(
            target.memory_bytes or current.memory_bytes, target.processors or current.processors
        )
        await self._set_cgroup_limits(
            MicroVmSize(max(current.memory_bytes, after.memory_bytes), after.processors)
        )
        await self._set_online_cpus(current.processors, after.processors)
        if after.memory_bytes != current.memory_bytes:
            await self._set_memory(current.memory_bytes, after.memory_bytes)
        if after.memory_bytes < current.memory_bytes:
            await self._set_cgroup_limits(await self.current_size())

    async def _set_cgroup_limits(self, size: MicroVmSize) -> None:
        limits = microvm_cgroup_limits(
            replace(self._request, memory_bytes=size.memory_bytes), size.processors
        )
        await asyncio.to_thread(cgroups.set_limits, self._group, limits)

    async def _set_online_cpus(self, before: int, after: int) -> None:
        for number in range(min(before, after), max(before, after)):
            path = f"/sys/devices/system/cpu/cpu{number}/online"
            await self._guest.request(GuestCommand.WRITE, path, "1" if after > before else "0")

    async def _set_memory(self, before: int, after: int) -> None:
        async with QmpClient(self._folder / "qmp") as qmp:
            if self._request.reserved:
                await self._add_reserved(qmp, after - before)
                return
            path = f"/machine/peripheral/{_ON_DEMAND}"
            target = -(-max(after - MEMORY, 0) // _HUGE_PAGE) * _HUGE_PAGE
            await qmp.execute("qom-set", path=path, property="requested-size", value=target)
            await _wait_plugged(qmp, target)

    async def _add_on_demand(self) -> None:
        async with QmpClient(self._folder / "qmp") as qmp:
            memory = {"qom-type": "memory-backend-memfd", "id": "more"}
            await qmp.execute(
                "object-add", **memory, size=MAX_MEMORY - MEMORY, share=True, reserve=False
            )
            device = {"driver": "virtio-mem-pci", "id": _ON_DEMAND, "memdev": "more"}
            await qmp.execute("device_add", **device, bus=f"root{PCIE_ROOT_PORTS['memory']}")

    async def _add_reserved(self, qmp: QmpClient, more: int) -> None:
        if more < 0:
            raise MicroVmFailed("reserved memory cannot be reduced while it runs")
        size = -(-more // _BLOCK) * _BLOCK
        name = f"module{len(await _plugged(qmp))}"
        memory = {"qom-type": "memory-backend-memfd", "id": name, "size": size, "share": True}
        pages = {"hugetlb": True} if _free_huge_page_bytes() >= size else {}
        await qmp.execute("object-add", **memory, **pages, prealloc=True)
        await qmp.execute("device_add", driver="pc-dimm", id=f"dimm-{name}", memdev=name)


def _capped(target: MicroVmSize, capacity: MicroVmSize) -> MicroVmSize:
    return MicroVmSize(
        min(target.memory_bytes, capacity.memory_bytes), min(target.processors, capacity.processors)
    )


async def _plugged(qmp: QmpClient) -> list[int]:
    devices: list[dict[str, Any]] = await qmp.execute("query-memory-devices")
    return [int(device["data"]["size"]) for device in devices]


async def _wait_plugged(qmp: QmpClient, target: int) -> None:
    """Wait until the guest has plugged its memory. It cannot unplug memory that is in use."""
    before, since = -1, 0.0
    while (plugged := sum(await _plugged(qmp))) != target:
        seconds = _UNPLUG_SECONDS if plugged > target else GUEST_TIMEOUT
        if plugged != before:
            before, since = plugged, time.monotonic()
        elif time.monotonic() > since + seconds:
            reason = "its programs use it" if plugged > target else "its kernel takes no more"
            raise MicroVmFailed(
                f"its memory should be {(MEMORY + target) >> 20} MiB, but after {seconds:.0f} s "
                f"is still {(MEMORY + plugged) >> 20} MiB: {reason}"
            )
        await asyncio.sleep(0.05)


def _free_huge_page_bytes() -> int:
    """Return the bytes of free huge pages on the host."""
    try:
        return int(_FREE_HUGE_PAGES.read_text()) * _HUGE_PAGE
    except OSError:
        return 0


def _parse_cpu_list(ranges: str) -> Iterable[int]:
    """Parse the kernel's list of processors, such as `0-2,5`."""
    for part in ranges.strip().split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _read(file: Path) -> MicroVmSize:
    return MicroVmSize(**json.loads(file.read_text()))
