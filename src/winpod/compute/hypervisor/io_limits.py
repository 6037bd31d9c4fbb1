"""I/O limits of pods in microVMs.

A pod's limit applies to all of its attached disks together, and to the C: of each container. A
container's own limit applies to its C: if it is lower.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from winpod.compute import cgroups, scratch_disk
from winpod.compute.hypervisor.vm_annotations import parse_vm_annotations
from winpod.compute.resources import ResourceLimits


@dataclass(frozen=True, slots=True)
class IoLimits:
    """Limits per second. Zero means unlimited."""

    bytes: int = 0
    operations: int = 0


def pod_io_limits(annotations: Mapping[str, str]) -> IoLimits:
    request = parse_vm_annotations(annotations)
    return IoLimits(request.disk_bytes_per_second, request.disk_operations_per_second)


def rootfs_io_limits(limits: ResourceLimits, pod: IoLimits) -> IoLimits:
    return IoLimits(
        _lower(limits.disk_bytes_per_second or 0, pod.bytes),
        _lower(limits.disk_operations_per_second or 0, pod.operations),
    )


def _lower(limit: int, other: int) -> int:
    return min(limit, other) if limit and other else limit or other


def limit_rootfs_io(group: str, folder: Path, rates: IoLimits) -> None:
    """Limit virtiofsd, in the microVM's cgroup, which does the I/O of a container's disk."""
    if rates != IoLimits():
        scratch_disk.disable_write_cache(folder)
    cgroups.set_io_limits(group, scratch_disk.block_device(folder), rates.bytes, rates.operations)
