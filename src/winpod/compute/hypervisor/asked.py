"""What a pod asks of its microVM: memory, processors and the disk's speed, by annotations.

A value that cannot be read is passed over, as Hyper-V's shim does it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from winpod.compute.resources import MIB, PERIOD_US, Enforced, shares_of
from winpod.windows import guest_sizes as sizes

DEFAULT_MEMORY = 1024 * MIB
OVERHEAD = 384 * MIB
"""What QEMU and the servers of a pod's files need beside the guest's memory."""
FULL_LIMIT = 100_000
ORDINARY_WEIGHT = 100
_MOST_WEIGHT = 10_000
_TRUE, _FALSE = ("true", "1"), ("false", "0")


@dataclass(frozen=True, slots=True)
class MachineAsked:
    """`limit` is of each processor, `FULL_LIMIT` all of it; a zero asks for nothing.

    Memory is taken when it is used, unless it is `reserved`: then all of it is there from the
    start, and stays.
    """

    memory_bytes: int = 0
    processors: int = 0
    limit: int = 0
    weight: int = 0
    reserved: bool = False
    disk_bytes_per_second: int = 0
    disk_operations_per_second: int = 0

    @property
    def memory(self) -> int:
        return self.memory_bytes or DEFAULT_MEMORY


def machine_asked(annotations: Mapping[str, str]) -> MachineAsked:
    numbers = _Numbers(annotations)
    overcommit = _flag(annotations.get(sizes.OVERCOMMIT), default=True)
    backed = _flag(annotations.get(sizes.BACKED), default=False)
    return MachineAsked(
        memory_bytes=_even(numbers.of(sizes.MEMORY_MB)) * MIB,
        processors=numbers.of(sizes.PROCESSORS),
        limit=min(numbers.of(sizes.LIMIT), FULL_LIMIT),
        weight=min(numbers.of(sizes.WEIGHT), _MOST_WEIGHT),
        reserved=backed or not overcommit,
        disk_bytes_per_second=numbers.of(sizes.DISK_BYTES),
        disk_operations_per_second=numbers.of(sizes.DISK_OPERATIONS),
    )


def host_limits(asked: MachineAsked, processors: int) -> Enforced:
    """What the machine is told of a guest with so many processors."""
    is_limited = 0 < asked.limit < FULL_LIMIT
    quota = processors * PERIOD_US * asked.limit // FULL_LIMIT if is_limited else None
    return Enforced(
        processors,
        cpu_quota_us=quota,
        cpu_shares=shares_of(asked.weight) if asked.weight else None,
        memory_bytes=asked.memory + OVERHEAD,
    )


class _Numbers:
    def __init__(self, annotations: Mapping[str, str]) -> None:
        self._annotations = annotations

    def of(self, name: str) -> int:
        text = self._annotations.get(name, "").strip()
        return int(text) if text.isascii() and text.isdigit() else 0


def _even(megabytes: int) -> int:
    return megabytes + megabytes % 2


def _flag(text: str | None, *, default: bool) -> bool:
    word = (text or "").strip().lower()
    return word in _TRUE or (default and word not in _FALSE)
