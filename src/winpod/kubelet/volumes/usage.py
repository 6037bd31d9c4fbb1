"""Usage of pod volumes, measured per volume type as the kubelet does.

Directories the node keeps for a pod are walked. Claims of local volumes are measured by their file
system. hostPath volumes, and claims of them, are shared and not measured; image volumes count as
images.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from winpod.errors import WinpodError
from winpod.k8s.models import core_v1 as v1
from winpod.k8s.pods import metadata_of, spec_of, uid_of
from winpod.kubelet.interfaces import ObjectSource
from winpod.kubelet.node_config import NodeConfig
from winpod.kubelet.stats import DiskUsage, DiskUsageCache, FilesystemStats, filesystem_of
from winpod.kubelet.volumes.manager import bound_volume
from winpod.windows.paths import host_path


@dataclass(frozen=True, slots=True)
class VolumeStats:
    """Usage of one volume; `claim` is the name of its claim, if any."""

    volume: v1.Volume
    disk: FilesystemStats
    used: DiskUsage
    claim: str = ""

    @property
    def is_ephemeral(self) -> bool:
        """Whether it counts as ephemeral storage of its pod."""
        empty = self.volume.emptyDir
        return (empty is not None and not empty.medium) or self.volume.configMap is not None


@dataclass(slots=True)
class VolumeStatsReader:
    node_config: NodeConfig
    objects: ObjectSource
    disks: DiskUsageCache = field(default_factory=DiskUsageCache)
    _claim_paths: dict[tuple[str, str], Path | None] = field(default_factory=dict)

    async def read(self, pod: v1.Pod) -> list[VolumeStats]:
        return [*await self._read_directories(pod), *await self.read_claims(pod)]

    async def read_claims(self, pod: v1.Pod) -> list[VolumeStats]:
        stats = []
        for volume in spec_of(pod).volumes or ():
            claim = claim_of(pod, volume)
            path = await self._claim_path(pod, claim) if claim else None
            if path and path.is_dir():
                disk = filesystem_of(path)
                stats.append(VolumeStats(volume, disk, disk.to_usage(), claim))
        return stats

    async def _read_directories(self, pod: v1.Pod) -> list[VolumeStats]:
        """Measure the volumes that have a directory on the node."""
        folder = self.node_config.root / "pods" / uid_of(pod) / "volumes"
        return [
            VolumeStats(volume, filesystem_of(folder), await self.disks.read(folder / volume.name))
            for volume in spec_of(pod).volumes or ()
            if (folder / volume.name).is_dir()
        ]

    def retain_pods(self, uids: Collection[str]) -> None:
        self.disks.evict_expired()
        self._claim_paths = {key: path for key, path in self._claim_paths.items() if key[0] in uids}

    async def _claim_path(self, pod: v1.Pod, claim: str) -> Path | None:
        """Return the path of a claim's volume. Cached, since a claim keeps its volume."""
        key = (uid_of(pod), claim)
        if key not in self._claim_paths:
            namespace = metadata_of(pod).namespace or "default"
            try:
                _, spec = await bound_volume(self.objects, namespace, claim)
            except WinpodError:
                return None
            self._claim_paths[key] = Path(host_path(spec.local.path)) if spec.local else None
        return self._claim_paths[key]


def claim_of(pod: v1.Pod, volume: v1.Volume) -> str:
    if volume.persistentVolumeClaim:
        return volume.persistentVolumeClaim.claimName
    return f"{metadata_of(pod).name}-{volume.name}" if volume.ephemeral else ""
