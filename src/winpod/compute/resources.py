"""CPU, memory and disk: what Windows is asked for, as what Linux enforces.

Windows takes a processor count, a maximum (10000 is all processors of the machine) or a weight
(100 is ordinary), one of the three; a zero asks for nothing. Annotations go before the fields, and
one that cannot be read is passed over, as the shim of Windows does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from winpod.windows.errors import InvalidInput

PERIOD_US = 100_000
PIDS = 2048
MIB = 1024 * 1024
FULL = 10_000
ORDINARY_WEIGHT = 100
_ORDINARY_SHARES, _FEWEST_SHARES, _MOST_SHARES = 1024, 2, 262_144
_SMALLEST_QUOTA_US = 1000


@dataclass(frozen=True, slots=True)
class Asked:
    """What a container asks for, in Windows' terms."""

    cpu_count: int = 0
    cpu_maximum: int = 0
    cpu_weight: int = 0
    memory_bytes: int = 0
    rootfs_bytes: int = 0
    disk_bytes_per_second: int = 0
    disk_operations_per_second: int = 0

    def updated(self, change: Asked) -> Asked:
        """A zero leaves a value as it is; another way to limit the CPU takes the place of the old.

        So a limit can be changed and never removed, as on Windows. A disk keeps its size.
        """
        if change.rootfs_bytes not in (0, self.rootfs_bytes):
            present = f"{self.rootfs_bytes} bytes" if self.rootfs_bytes else "the usual size"
            raise InvalidInput(
                f"the disk of a container that is there has {present}, and cannot be given "
                f"{change.rootfs_bytes} bytes.",
                "Ask for it when the container is created.",
            )
        given = {name: value for name in _FIELDS if (value := getattr(change, name))}
        if any(name in given for name in _CPU_FIELDS):
            given = dict.fromkeys(_CPU_FIELDS, 0) | given
        return replace(self, **given)


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


def with_annotations(asked: Asked, annotations: Mapping[str, str]) -> Asked:
    found: dict[str, int] = {}
    for key, name in _ANNOTATIONS.items():
        text = annotations.get(key, "").strip()
        if text.isascii() and text.isdigit() and len(text) < 16:
            found[name] = int(text) * _UNITS.get(name, 1)
    return replace(asked, **{name: value for name, value in found.items() if value})


@dataclass(frozen=True, slots=True)
class Enforced:
    """What Linux is told, None where there is no limit. A container always has a pids limit."""

    processors: int
    cpu_quota_us: int | None = None
    cpu_shares: int | None = None
    memory_bytes: int | None = None
    rootfs_bytes: int | None = None
    disk_bytes_per_second: int | None = None
    disk_operations_per_second: int | None = None
    pids: int = PIDS
    cpu_period_us: int = PERIOD_US


def enforce(asked: Asked, host_cpus: int) -> Enforced:
    """The limits for a machine of so many processors, or the sentence Windows has for a refusal."""
    _check(asked)
    count = min(asked.cpu_count, host_cpus)
    return Enforced(
        processors=count or host_cpus,
        cpu_quota_us=_quota(count, asked.cpu_maximum, host_cpus),
        cpu_shares=shares_of(asked.cpu_weight) if asked.cpu_weight else None,
        memory_bytes=asked.memory_bytes or None,
        rootfs_bytes=asked.rootfs_bytes or None,
        disk_bytes_per_second=asked.disk_bytes_per_second or None,
        disk_operations_per_second=asked.disk_operations_per_second or None,
    )


def _check(asked: Asked) -> None:
    for name in _FIELDS:
        if getattr(asked, name) < 0:
            raise InvalidInput(f"{name} is {getattr(asked, name)}, and cannot be negative.")
    if sum(bool(getattr(asked, name)) for name in _CPU_FIELDS) > 1:
        raise InvalidInput(
            f"invalid spec - Windows Container CPU Count: '{asked.cpu_count}', "
            f"Limit: '{asked.cpu_maximum}', and Weight: '{asked.cpu_weight}' "
            "are mutually exclusive",
            "Set one of them.",
        )
    if asked.cpu_maximum > FULL or asked.cpu_weight > FULL:
        raise InvalidInput(
            f"a CPU maximum of {asked.cpu_maximum} and a weight of {asked.cpu_weight} are asked "
            f"for, and neither goes beyond {FULL}."
        )


def _quota(count: int, maximum: int, host_cpus: int) -> int | None:
    if count:
        return count * PERIOD_US
    if maximum and maximum < FULL:
        return max(PERIOD_US * host_cpus * maximum // FULL, _SMALLEST_QUOTA_US)
    return None


def shares_of(weight: int) -> int:
    shares = _ORDINARY_SHARES * weight // ORDINARY_WEIGHT
    return min(max(shares, _FEWEST_SHARES), _MOST_SHARES)
