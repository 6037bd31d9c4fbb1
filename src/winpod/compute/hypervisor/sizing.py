"""How large a guest is while it runs: its memory and its processors.

A guest boots small. Memory on demand is one device, of which the guest has as much as it is told;
reserved memory is a module for each time that some was added, and never goes away again. A guest
has at least what its containers may use, unless its size was named when it began; who raises a
limit afterwards raises the guest too.
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
from winpod.compute.errors import GuestTooSmall, MachineFailed
from winpod.compute.hypervisor.arguments import MEMORY, MOST_MEMORY, SOCKETS, USUAL_PROCESSORS
from winpod.compute.hypervisor.asked import MachineAsked, host_limits
from winpod.compute.hypervisor.guest import PATIENCE, Guest
from winpod.compute.hypervisor.qmp import Qmp
from winpod.compute.hypervisor.template import processors
from winpod.compute.resources import MIB, Enforced

OWN = 128 * MIB
"""What the guest's kernel needs beside its containers."""
_BLOCK = 128 * MIB
_ON_DEMAND = "more-memory"
_LARGE_PAGES = Path("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")
_LARGE_PAGE = 2 * MIB
_GIVE_BACK_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Size:
    """A zero is for no wish."""

    memory_bytes: int = 0
    processors: int = 0


def size_of(limits: Enforced) -> Size:
    """What a container with those limits may use."""
    quota = limits.cpu_quota_us or 0
    return Size(limits.memory_bytes or 0, -(-quota // limits.cpu_period_us))


def size_for(containers: Iterable[Size]) -> Size:
    """A guest in which each of them can use all it may, at the same time as far as memory goes."""
    sizes = list(containers)
    memory = sum(size.memory_bytes for size in sizes)
    return Size(memory + OWN if memory else 0, max((size.processors for size in sizes), default=0))


def raised(asked: MachineAsked, now: Size, needed: Size, *, is_new: bool) -> Size:
    """What a guest should have more, if anything; a container that is new changes no named size."""
    memory_stays = is_new and (asked.memory_bytes or asked.reserved)
    processors_stay = is_new and asked.processors
    more_memory = needed.memory_bytes > now.memory_bytes and not memory_stays
    more_processors = needed.processors > now.processors and not processors_stay
    return Size(
        needed.memory_bytes if more_memory else 0, needed.processors if more_processors else 0
    )


def refuse_beyond(wanted: Size, most: Size) -> None:
    if wanted.memory_bytes > most.memory_bytes or wanted.processors > most.processors:
        raise GuestTooSmall(
            wanted.memory_bytes, wanted.processors, most.memory_bytes, most.processors
        )


def most_here() -> Size:
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Size(min(machine, MOST_MEMORY), processors())


class Sizing:
    def __init__(self, folder: Path, guest: Guest, group: str) -> None:
        self._folder = folder
        self._guest = guest
        self._group = group
        self._turn = asyncio.Lock()

    async def begin(self, asked: MachineAsked) -> None:
        (self._folder / "limits").mkdir()
        (self._folder / "asked.json").write_text(json.dumps(asdict(asked)))
        if not asked.reserved:
            await self._add_on_demand()
        usual = min(USUAL_PROCESSORS, processors())
        await self._change(Size(asked.memory, min(asked.processors, processors()) or usual))

    async def fit(self, container: str, limits: Enforced, *, is_new: bool) -> None:
        """Called before the container has these limits."""
        async with self._turn:
            own = self._folder / "limits" / container
            others = [_read(file) for file in own.parent.iterdir() if file != own]
            needed = size_for([*others, size_of(limits)])
            more = raised(self._asked, await self.now(), needed, is_new=is_new)
            if not is_new:
                refuse_beyond(more, most_here())
            if more != Size():
                await self._change(_at_most(more, most_here()))
            own.write_text(json.dumps(asdict(size_of(limits))))

    def forget(self, container: str) -> None:
        (self._folder / "limits" / container).unlink(missing_ok=True)

    async def resize(self, wanted: Size) -> None:
        refuse_beyond(wanted, most_here())
        async with self._turn:
            await self._change(wanted)

    async def now(self) -> Size:
        online = (await self._guest.ask("read", "/sys/devices/system/cpu/online")).decode()
        async with Qmp(self._folder / "qmp") as qmp:
            return Size(MEMORY + sum(await _plugged(qmp)), len(list(_numbers(online))))

    @property
    def _asked(self) -> MachineAsked:
        return MachineAsked(**json.loads((self._folder / "asked.json").read_text()))

    async def _change(self, wanted: Size) -> None:
        """Room on the machine comes before the guest can use it, and goes when it no longer can."""
        now = await self.now()
        after = Size(wanted.memory_bytes or now.memory_bytes, wanted.processors or now.processors)
        await self._allow(Size(max(now.memory_bytes, after.memory_bytes), after.processors))
        await self._switch(now.processors, after.processors)
        if after.memory_bytes != now.memory_bytes:
            await self._give(now.memory_bytes, after.memory_bytes)
        if after.memory_bytes < now.memory_bytes:
            await self._allow(await self.now())

    async def _allow(self, size: Size) -> None:
        limits = host_limits(replace(self._asked, memory_bytes=size.memory_bytes), size.processors)
        await asyncio.to_thread(cgroups.set_limits, self._group, limits)

    async def _switch(self, before: int, after: int) -> None:
        for number in range(min(before, after), max(before, after)):
            file = f"/sys/devices/system/cpu/cpu{number}/online"
            await self._guest.ask("write", file, "1" if after > before else "0")

    async def _give(self, before: int, after: int) -> None:
        async with Qmp(self._folder / "qmp") as qmp:
            if self._asked.reserved:
                await self._add_reserved(qmp, after - before)
                return
            path = f"/machine/peripheral/{_ON_DEMAND}"
            wanted = -(-max(after - MEMORY, 0) // _LARGE_PAGE) * _LARGE_PAGE
            await qmp.do("qom-set", path=path, property="requested-size", value=wanted)
            await _until_taken(qmp, wanted)

    async def _add_on_demand(self) -> None:
        async with Qmp(self._folder / "qmp") as qmp:
            memory = {"qom-type": "memory-backend-memfd", "id": "more"}
            await qmp.do(
                "object-add", **memory, size=MOST_MEMORY - MEMORY, share=True, reserve=False
            )
            device = {"driver": "virtio-mem-pci", "id": _ON_DEMAND, "memdev": "more"}
            await qmp.do("device_add", **device, bus=f"root{SOCKETS['memory']}")

    async def _add_reserved(self, qmp: Qmp, more: int) -> None:
        if more < 0:
            raise MachineFailed("memory that was reserved for it stays reserved until it ends")
        size = -(-more // _BLOCK) * _BLOCK
        name = f"module{len(await _plugged(qmp))}"
        memory = {"qom-type": "memory-backend-memfd", "id": name, "size": size, "share": True}
        pages = {"hugetlb": True} if _large_pages() >= size else {}
        await qmp.do("object-add", **memory, **pages, prealloc=True)
        await qmp.do("device_add", driver="pc-dimm", id=f"dimm-{name}", memdev=name)


def _at_most(wanted: Size, most: Size) -> Size:
    return Size(
        min(wanted.memory_bytes, most.memory_bytes), min(wanted.processors, most.processors)
    )


async def _plugged(qmp: Qmp) -> list[int]:
    devices: list[dict[str, Any]] = await qmp.do("query-memory-devices")
    return [int(device["data"]["size"]) for device in devices]


async def _until_taken(qmp: Qmp, wanted: int) -> None:
    """What a guest is told to have it takes piece by piece; what it uses it does not give back."""
    before, since = -1, 0.0
    while (has := sum(await _plugged(qmp))) != wanted:
        seconds = _GIVE_BACK_SECONDS if has > wanted else PATIENCE
        if has != before:
            before, since = has, time.monotonic()
        elif time.monotonic() > since + seconds:
            why = "its programs use them" if has > wanted else "its kernel takes no more"
            raise MachineFailed(
                f"it should have {(MEMORY + wanted) >> 20} MiB, and after {seconds:.0f} s "
                f"still has {(MEMORY + has) >> 20} MiB: {why}"
            )
        await asyncio.sleep(0.05)


def _large_pages() -> int:
    """How many bytes the machine has ready in large pages."""
    try:
        return int(_LARGE_PAGES.read_text()) * _LARGE_PAGE
    except OSError:
        return 0


def _numbers(ranges: str) -> Iterable[int]:
    """`0-2,5`, as the kernel lists processors."""
    for part in ranges.strip().split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _read(file: Path) -> Size:
    return Size(**json.loads(file.read_text()))
