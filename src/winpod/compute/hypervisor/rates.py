"""How fast a pod in a microVM may use its disks.

What the pod asks for holds for all disks that are attached to it together, and for each C: of its
containers. Where a container asks for less, its C: has less.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from winpod.compute import cgroups, disks
from winpod.compute.hypervisor.asked import machine_asked
from winpod.compute.resources import Enforced


@dataclass(frozen=True, slots=True)
class Rates:
    """Each second; a zero asks for nothing."""

    bytes: int = 0
    operations: int = 0


def rates_of_pod(annotations: Mapping[str, str]) -> Rates:
    asked = machine_asked(annotations)
    return Rates(asked.disk_bytes_per_second, asked.disk_operations_per_second)


def rates_of_drive(limits: Enforced, pod: Rates) -> Rates:
    return Rates(
        _lower(limits.disk_bytes_per_second or 0, pod.bytes),
        _lower(limits.disk_operations_per_second or 0, pod.operations),
    )


def _lower(one: int, other: int) -> int:
    return min(one, other) if one and other else one or other


def hold_drive(group: str, folder: Path, rates: Rates) -> None:
    """Who writes to the disk of a container in a microVM is the server of its files, in the
    microVM's group."""
    if rates != Rates():
        disks.write_at_once(folder)
    cgroups.set_rates(group, disks.device_of(folder), rates.bytes, rates.operations)
