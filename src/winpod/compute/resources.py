"""CPU, memory and disk limits: from Windows' units to what Linux enforces.

Windows takes one of a processor count, a maximum (10000 is all processors of the host) and a weight
(100 is the default). Zero means unset. Annotations override the fields; an invalid annotation is
ignored, as in the Windows shim.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from winpod.errors import InvalidInput

CPU_PERIOD_US = 100_000
DEFAULT_PIDS = 2048
MIB = 1024 * 1024
FULL_CPU = 10_000
ORDINARY_WEIGHT = 100
_MIN_QUOTA_US = 1000


@dataclass(frozen=True, slots=True)
class ResourceRequest:
    """The resources that a container requests, in Windows' units."""

    cpu_count: int = 0
    cpu_maximum: int = 0
    cpu_weight: int = 0
    memory_bytes: int = 0
    rootfs_bytes: int = 0
    disk_bytes_per_second: int = 0
    disk_operations_per_second: int = 0

    def updated(self, change: ResourceRequest) -> ResourceRequest:
        """Apply an update. A zero keeps a value; one kind of CPU limit replaces another.

        As on Windows, a limit can be changed but not removed, and a disk cannot be resized.
        """
        if change.rootfs_bytes not in (0, self.rootfs_bytes):
            present = f"{self.rootfs_bytes} bytes" if self.rootfs_bytes else "the default size"
            raise InvalidInput(
                f"the disk of an existing container has {present} and cannot be resized to "
                f"{change.rootfs_bytes} bytes.",
                "Set the size when the container is created.",
            )
        changed = {name: value for name in _FIELDS if (value := getattr(change, name))}
        if any(name in changed for name in _CPU_FIELDS):
            changed = dict.fromkeys(_CPU_FIELDS, 0) | changed
        return replace(self, **changed)


_CPU_FIELDS = ("cpu_count", "cpu_maximum", "cpu_weight")
_FIELDS = (
    *_CPU_FIELDS,
    "memory_bytes",
    "rootfs_bytes",
    "disk_bytes_per_second",
    "disk_operations_per_second",
)

_ANNOTATIONS = {
    "io.microsoft.container.processor.count": "cpu_count",
    "io.microsoft.container.processor.limit": "cpu_maximum",
    "io.microsoft.container.processor.weight": "cpu_weight",
    "io.microsoft.container.memory.sizeinmb": "memory_bytes",
    "io.microsoft.container.storage.rootfs.size-gb": "rootfs_bytes",
    "io.microsoft.container.storage.qos.bandwidthmaximum": "disk_bytes_per_second",
    "io.microsoft.container.storage.qos.iopsmaximum": "disk_operations_per_second",
}

_UNITS = {"memory_bytes": MIB, "rootfs_bytes": 1024 * MIB}


def apply_resource_annotations(
    request: ResourceRequest, annotations: Mapping[str, str]
) -> ResourceRequest:
    values: dict[str, int] = {}
    for key, name in _ANNOTATIONS.items():
        text = annotations.get(key, "").strip()
        if text.isascii() and text.isdigit() and len(text) < 16:
            values[name] = int(text) * _UNITS.get(name, 1)
    return replace(request, **{name: value for name, value in values.items() if value})


@dataclass(frozen=True, slots=True)
class ResourceLimits:
    """The limits that Linux enforces, None for unlimited. Processes are always limited."""

    processors: int
    cpu_quota_us: int | None = None
    cpu_weight: int | None = None
    memory_bytes: int | None = None
    rootfs_bytes: int | None = None
    disk_bytes_per_second: int | None = None
    disk_operations_per_second: int | None = None
    pids: int = DEFAULT_PIDS
    cpu_period_us: int = CPU_PERIOD_US


def compute_limits(request: ResourceRequest, host_cpus: int) -> ResourceLimits:
    """Convert a request to limits. Raises InvalidInput with Windows' own message if invalid."""
    _check(request)
    count = min(request.cpu_count, host_cpus)
    return ResourceLimits(
        processors=count or host_cpus,
        cpu_quota_us=_quota(count, request.cpu_maximum, host_cpus),
        cpu_weight=request.cpu_weight or None,
        memory_bytes=request.memory_bytes or None,
        rootfs_bytes=request.rootfs_bytes or None,
        disk_bytes_per_second=request.disk_bytes_per_second or None,
        disk_operations_per_second=request.disk_operations_per_second or None,
    )


def _check(request: ResourceRequest) -> None:
    for name in _FIELDS:
        if getattr(request, name) < 0:
            raise InvalidInput(f"{name} is {getattr(request, name)}, but must not be negative.")
    if sum(bool(getattr(request, name)) for name in _CPU_FIELDS) > 1:
        raise InvalidInput(
            f"invalid spec - Windows Container CPU Count: '{request.cpu_count}', "
            f"Limit: '{request.cpu_maximum}', and Weight: '{request.cpu_weight}' "
            "are mutually exclusive",
            "Set one of them.",
        )
    if request.cpu_maximum > FULL_CPU or request.cpu_weight > FULL_CPU:
        raise InvalidInput(
            f"the CPU maximum is {request.cpu_maximum} and the CPU weight {request.cpu_weight}, "
            f"but neither may exceed {FULL_CPU}."
        )


def _quota(count: int, maximum: int, host_cpus: int) -> int | None:
    if count:
        return count * CPU_PERIOD_US
    if maximum and maximum < FULL_CPU:
        return max(CPU_PERIOD_US * host_cpus * maximum // FULL_CPU, _MIN_QUOTA_US)
    return None
