"""What the volumes of pods use, each kind measured as a kubelet measures it.

Directories that the node keeps for a pod are walked through. The volume of a claim is asked of its
file system, if it is a local one. A host path is nobody's alone, and is not measured, nor is a
claim of one; an image is counted with the images.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from lightkube.models import core_v1 as v1

from winpod.node.disk_usage import Disk, DiskUsage, DiskUsed, disk_of
from winpod.node.facts import NodeFacts
from winpod.node.pods import uid_of
from winpod.node.requests import metadata_of, spec_of
from winpod.node.sources import Objects
from winpod.node.volumes import bound_volume
from winpod.windows.errors import WinpodError
from winpod.windows.paths import machine_path


@dataclass(frozen=True, slots=True)
class VolumeUsed:
    """`claim` is the name of the claim that it is of, if it is of one."""

    volume: v1.Volume
    disk: Disk
    used: DiskUsed
    claim: str = ""

    @property
    def is_ephemeral(self) -> bool:
        """Whether it counts among what its pod uses of the node's disk."""
        empty = self.volume.emptyDir
        return (empty is not None and not empty.medium) or self.volume.configMap is not None


@dataclass(slots=True)
class VolumeUsage:
    facts: NodeFacts
    objects: Objects
    disks: DiskUsage = field(default_factory=DiskUsage)
    _claimed: dict[tuple[str, str], Path | None] = field(default_factory=dict)

    async def read(self, pod: v1.Pod) -> list[VolumeUsed]:
        return [*await self._kept(pod), *await self.read_claims(pod)]

    async def read_claims(self, pod: v1.Pod) -> list[VolumeUsed]:
        found = []
        for volume in spec_of(pod).volumes or ():
            claim = claim_of(pod, volume)
            place = await self._place(pod, claim) if claim else None
            if place and place.is_dir():
                disk = disk_of(place)
                found.append(VolumeUsed(volume, disk, disk.used(), claim))
        return found

    async def _kept(self, pod: v1.Pod) -> list[VolumeUsed]:
        """Those that the node has a directory for."""
        folder = self.facts.root / "pods" / uid_of(pod) / "volumes"
        return [
            VolumeUsed(volume, disk_of(folder), await self.disks.read(folder / volume.name))
            for volume in spec_of(pod).volumes or ()
            if (folder / volume.name).is_dir()
        ]

    def forget_all_but(self, uids: Collection[str]) -> None:
        self.disks.forget_the_expired()
        self._claimed = {key: place for key, place in self._claimed.items() if key[0] in uids}

    async def _place(self, pod: v1.Pod, claim: str) -> Path | None:
        """Found once: a claim keeps its volume."""
        key = (uid_of(pod), claim)
        if key not in self._claimed:
            namespace = metadata_of(pod).namespace or "default"
            try:
                _, spec = await bound_volume(self.objects, namespace, claim)
            except WinpodError:
                return None
            self._claimed[key] = Path(machine_path(spec.local.path)) if spec.local else None
        return self._claimed[key]


def claim_of(pod: v1.Pod, volume: v1.Volume) -> str:
    if volume.persistentVolumeClaim:
        return volume.persistentVolumeClaim.claimName
    return f"{metadata_of(pod).name}-{volume.name}" if volume.ephemeral else ""
