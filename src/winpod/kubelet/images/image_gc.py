"""Image garbage collection: removes unused images, least recently used first, as the disk fills."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from winpod.cri.proto import api_pb2 as api
from winpod.kubelet.context import KubeletContext
from winpod.kubelet.eviction.thresholds import EvictionThresholds
from winpod.kubelet.stats import DiskSpace, disk_space_at


@dataclass(frozen=True, slots=True)
class ImageRecord:
    """An unused image. Times are monotonic."""

    id: str
    size: int
    used_at: float
    found_at: float


def bytes_to_free(disk: DiskSpace, thresholds: EvictionThresholds) -> int:
    """Return the bytes to free; 0 while usage is below the high threshold."""
    used = disk.size - disk.available
    if used <= disk.size * thresholds.image_high:
        return 0
    return int(used - disk.size * thresholds.image_low)


def select_images(
    images: Iterable[ImageRecord], to_free: int, now: float, minimum_age: timedelta
) -> list[str]:
    """Select images to free `to_free` bytes; images younger than `minimum_age` are kept."""
    chosen: list[str] = []
    for image in sorted(images, key=lambda image: (image.used_at, image.found_at)):
        if to_free <= 0:
            break
        if now - image.found_at >= minimum_age.total_seconds():
            chosen.append(image.id)
            to_free -= image.size
    return chosen


@dataclass(slots=True)
class ImageGC:
    """Tracks when each image was last used, since the agent started."""

    context: KubeletContext
    _found: dict[str, float] = field(default_factory=dict)
    _used: dict[str, float] = field(default_factory=dict)

    async def collect_garbage(self, *, under_pressure: bool = False) -> int:
        """Remove images and return how many. Under pressure, all unused images are removed."""
        unused, thresholds = await self._unused(), self.context.node_config.thresholds
        if under_pressure:
            to_free = sum(image.size for image in unused)
        else:
            to_free = bytes_to_free(await self._disk(), thresholds)
        selected = select_images(unused, to_free, time.monotonic(), thresholds.image_age)
        for id_ in selected:
            request = api.RemoveImageRequest(image=api.ImageSpec(image=id_))
            await self.context.runtime.call("RemoveImage", request)
        return len(selected)

    async def _disk(self) -> DiskSpace:
        answer = await self.context.runtime.call("ImageFsInfo", api.ImageFsInfoRequest())
        for filesystem in answer.image_filesystems:
            return disk_space_at(Path(filesystem.fs_id.mountpoint))
        return DiskSpace(0, 0)

    async def _unused(self) -> list[ImageRecord]:
        now = time.monotonic()
        images = (await self.context.runtime.call("ListImages", api.ListImagesRequest())).images
        containers = await self.context.runtime.call("ListContainers", api.ListContainersRequest())
        in_use = {container.image_id for container in containers.containers}
        self._record_use({image.id for image in images}, in_use, now)
        sizes = {image.id: image.size for image in images if not image.pinned}
        return [
            ImageRecord(id_, size, self._used.get(id_, self._found[id_]), self._found[id_])
            for id_, size in sizes.items()
            if id_ not in in_use
        ]

    def _record_use(self, ids: set[str], in_use: set[str], now: float) -> None:
        self._found = {id_: self._found.get(id_, now) for id_ in ids}
        self._used = _retain(self._used, ids) | dict.fromkeys(in_use & ids, now)


def _retain(times: Mapping[str, float], ids: set[str]) -> dict[str, float]:
    return {id_: at for id_, at in times.items() if id_ in ids}
