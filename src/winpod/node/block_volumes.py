"""Volumes of block mode: disks of this machine that the runtime attaches to a pod's microVM.

A kubelet on Windows has none. Here the disk is formatted inside of the pod where it is empty, and
what is on it is at the place that the pod calls a device path. Only the runtime knows whether the
pod has a machine of its own, and refuses the others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from lightkube.models import core_v1 as v1

from winpod.cri.proto import api_pb2 as api
from winpod.node.volume_files import VolumeFailed
from winpod.windows.errors import InvalidInput
from winpod.windows.paths import machine_path
from winpod.windows.quantities import parse_quantity

BLOCK = "Block"


class Disk(str):
    """A disk, as the runtime takes it for the source of a mount."""

    __slots__ = ()


def disk_of(claim: str, name: str, spec: v1.PersistentVolumeSpec) -> Disk:
    """That of a volume of block mode."""
    source = spec.local or spec.hostPath
    if source is None:
        raise VolumeFailed(
            f'the volume "{name}" of claim "{claim}" is a disk that this node cannot find.',
            "It finds local volumes, of a block device or of a file with a disk in it.",
        )
    path = machine_path(source.path)
    kind = "physical-disk" if Path(path).is_block_device() else "virtual-disk"
    return Disk(f"{kind}://{path}")


def device_mounts(
    container: v1.Container | v1.EphemeralContainer,
    disks: Mapping[str, Disk],
    read_only: Collection[str],
) -> list[api.Mount]:
    """The disks that a container asks for, each at its device path."""
    for mount in container.volumeMounts or ():
        if mount.name in disks:
            raise VolumeFailed(
                f'the volume "{mount.name}" is a disk (volumeMode Block) and is in volumeMounts.',
                "Name it in volumeDevices, or claim a volume of volumeMode Filesystem.",
            )
    found = []
    for device in container.volumeDevices or ():
        if device.name not in disks:
            raise VolumeFailed(
                f'the volume "{device.name}" is in volumeDevices and is no disk.',
                "Claim a volume of volumeMode Block, or name it in volumeMounts.",
            )
        source, is_fixed = disks[device.name], device.name in read_only
        found.append(
            api.Mount(host_path=source, container_path=device.devicePath, readonly=is_fixed)
        )
    return found


def disk_size(claim: Mapping[str, Any]) -> int:
    """How large the disk of a claim shall be, as its spec asks; 0 for one that wants no disk."""
    if claim.get("volumeMode") != BLOCK:
        return 0
    asked = ((claim.get("resources") or {}).get("requests") or {}).get("storage", "")
    size = parse_quantity(str(asked)) or Decimal(0)
    if size < 1:
        raise InvalidInput(
            "a claim of volumeMode Block asks for no storage, and a disk has a size.",
            "Set spec.resources.requests.storage.",
        )
    return int(size)


def make_disk(place: Path, size: int) -> Path:
    """A file with an empty disk in it, which takes room when it is written to."""
    file = place / "disk.img"
    if not file.exists():
        part = file.with_suffix(".part")
        with part.open("wb") as sparse:
            sparse.truncate(size)
        part.rename(file)
    return file
