"""The pod annotations for a microVM's memory, processors and I/O limits.

An invalid value is ignored, as in the Windows shim.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from winpod.compute.resources import CPU_PERIOD_US, MIB, ResourceLimits
from winpod.windows import handlers as sizes

DEFAULT_MEMORY = 1024 * MIB
MEMORY_OVERHEAD = 384 * MIB
"""Memory of QEMU and virtiofsd in addition to the guest's."""
FULL_LIMIT = 100_000
ORDINARY_WEIGHT = 100
_MAX_WEIGHT = 10_000
_TRUE, _FALSE = ("true", "1"), ("false", "0")


@dataclass(frozen=True, slots=True)
class MicroVmRequest:
    """The requested size of a microVM. Zero means unspecified.

    `limit` is the share of each processor, of `FULL_LIMIT`. Memory is allocated when it is used,
    unless it is `reserved`: then all of it is allocated at the start and kept.
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


def parse_vm_annotations(annotations: Mapping[str, str]) -> MicroVmRequest:
    numbers = _NumericAnnotations(annotations)
    overcommit = _flag(annotations.get(sizes.VM_ALLOW_OVERCOMMIT), default=True)
    backed = _flag(annotations.get(sizes.VM_PHYSICALLY_BACKED), default=False)
    return MicroVmRequest(
        memory_bytes=_even(numbers.number(sizes.VM_MEMORY_MB)) * MIB,
        processors=numbers.number(sizes.VM_PROCESSOR_COUNT),
        limit=min(numbers.number(sizes.VM_PROCESSOR_LIMIT), FULL_LIMIT),
        weight=min(numbers.number(sizes.VM_PROCESSOR_WEIGHT), _MAX_WEIGHT),
        reserved=backed or not overcommit,
        disk_bytes_per_second=numbers.number(sizes.VM_STORAGE_BANDWIDTH),
        disk_operations_per_second=numbers.number(sizes.VM_STORAGE_IOPS),
    )


def microvm_cgroup_limits(request: MicroVmRequest, processors: int) -> ResourceLimits:
    """Return the cgroup limits of a microVM with that many processors."""
    is_limited = 0 < request.limit < FULL_LIMIT
    quota = processors * CPU_PERIOD_US * request.limit // FULL_LIMIT if is_limited else None
    return ResourceLimits(
        processors,
        cpu_quota_us=quota,
        cpu_weight=request.weight or None,
        memory_bytes=request.memory + MEMORY_OVERHEAD,
    )


class _NumericAnnotations:
    def __init__(self, annotations: Mapping[str, str]) -> None:
        self._annotations = annotations

    def number(self, name: str) -> int:
        text = self._annotations.get(name, "").strip()
        return int(text) if text.isascii() and text.isdigit() else 0


def _even(megabytes: int) -> int:
    return megabytes + megabytes % 2


def _flag(text: str | None, *, default: bool) -> bool:
    word = (text or "").strip().lower()
    return word in _TRUE or (default and word not in _FALSE)
