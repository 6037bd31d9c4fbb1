"""Block volumes: disks of this machine that the runtime attaches to a pod's microVM.

A kubelet on Windows does not support them. Here an empty disk is formatted inside the pod, and its
file system is mounted at the device path. Only the runtime knows whether a pod has a microVM; it
rejects the others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from winpod.cri.proto import api_pb2 as api
from winpod.errors import InvalidInput
from winpod.k8s.models import core_v1 as v1
from winpod.kubelet.volumes.projected import VolumeMountFailed
from winpod.quantities import parse_quantity
from winpod.windows.paths import host_path

BLOCK_MODE = "Block"


class BlockDevice(str):
    """A disk, in the form the runtime accepts as a mount source."""

    __slots__ = ()


def block_device_of(claim: str, name: str, spec: v1.PersistentVolumeSpec) -> BlockDevice:
    """Return the disk of a block volume."""
    source = spec.local or spec.hostPath
    if source is None:
        raise VolumeMountFailed(
            f'the volume "{name}" of claim "{claim}" is a block volume of an unsupported type.',
            "Use a local volume of a block device or of a disk image file.",
        )
    path = host_path(source.path)
    kind = "physical-disk" if Path(path).is_block_device() else "virtual-disk"
    return BlockDevice(f"{kind}://{path}")


def device_mounts(
    container: v1.Container | v1.EphemeralContainer,
    disks: Mapping[str, BlockDevice],
    read_only: Collection[str],
) -> list[api.Mount]:
    """Return the disks of a container as mounts at their device paths."""
    for mount in container.volumeMounts or ():
        if mount.name in disks:
            raise VolumeMountFailed(
                f'the volume "{mount.name}" has volumeMode Block but is listed in volumeMounts.',
                "List it in volumeDevices, or claim a volume with volumeMode Filesystem.",
            )
    mounts = []
    for device in container.volumeDevices or ():
        if device.name not in disks:
            raise VolumeMountFailed(
                f'the volume "{device.name}" is listed in volumeDevices but its volumeMode is not '
                "Block.",
                "Claim a volume with volumeMode Block, or list it in volumeMounts.",
            )
        source, is_read_only = disks[device.name], device.name in read_only
        mounts.append(
            api.Mount(host_path=source, container_path=device.devicePath, readonly=is_read_only)
        )
    return mounts


def requested_disk_size(claim: Mapping[str, Any]) -> int:
    """Return the disk size that a claim's spec requests; 0 if it is not a block claim."""
    if claim.get("volumeMode") != BLOCK_MODE:
        return 0
    requested = ((claim.get("resources") or {}).get("requests") or {}).get("storage", "")
    size = parse_quantity(str(requested)) or Decimal(0)
    if size < 1:
        raise InvalidInput(
            "a claim with volumeMode Block requests no storage.",
            "Set spec.resources.requests.storage.",
        )
    return int(size)


def create_disk_image(folder: Path, size: int) -> Path:
    """Create a sparse file with an empty disk."""
    file = folder / "disk.img"
    if not file.exists():
        part = file.with_suffix(".part")
        with part.open("wb") as sparse:
            sparse.truncate(size)
        part.rename(file)
    return file
