"""Images that nobody uses: removed, the longest unused first, when the disk fills up."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from winpod.cri.proto import api_pb2 as api
from winpod.node.eviction import Room
from winpod.node.means import Means
from winpod.node.measuring import room_at
from winpod.node.thresholds import Thresholds


@dataclass(frozen=True, slots=True)
class ImageUse:
    """The times are of a clock that nobody puts forward or back."""

    id: str
    size: int
    used_at: float
    found_at: float


def too_much(disk: Room, thresholds: Thresholds) -> int:
    """How many bytes have to go; none while the disk is not full."""
    used = disk.size - disk.available
    if used <= disk.size * thresholds.image_high:
        return 0
    return int(used - disk.size * thresholds.image_low)


def to_remove(images: Iterable[ImageUse], wanted: int, now: float, young: timedelta) -> list[str]:
    """Enough of them, if there are enough that are not new."""
    chosen: list[str] = []
    for image in sorted(images, key=lambda one: (one.used_at, one.found_at)):
        if wanted <= 0:
            break
        if now - image.found_at >= young.total_seconds():
            chosen.append(image.id)
            wanted -= image.size
    return chosen


@dataclass(slots=True)
class ImageGarbage:
    """Remembers when each image was used last, from when the agent was started."""

    means: Means
    _found: dict[str, float] = field(default_factory=dict)
    _used: dict[str, float] = field(default_factory=dict)

    async def collect(self, *, under_pressure: bool = False) -> int:
        """How many images were removed; under pressure all that nobody uses."""
        unused, thresholds = await self._unused(), self.means.facts.thresholds
        if under_pressure:
            wanted = sum(image.size for image in unused)
        else:
            wanted = too_much(await self._disk(), thresholds)
        going = to_remove(unused, wanted, time.monotonic(), thresholds.image_age)
        for id_ in going:
            request = api.RemoveImageRequest(image=api.ImageSpec(image=id_))
            await self.means.call("RemoveImage", request)
        return len(going)

    async def _disk(self) -> Room:
        answer = await self.means.call("ImageFsInfo", api.ImageFsInfoRequest())
        for filesystem in answer.image_filesystems:
            return room_at(Path(filesystem.fs_id.mountpoint))
        return Room(0, 0)

    async def _unused(self) -> list[ImageUse]:
        now = time.monotonic()
        images = (await self.means.call("ListImages", api.ListImagesRequest())).images
        containers = await self.means.call("ListContainers", api.ListContainersRequest())
        in_use = {container.image_id for container in containers.containers}
        self._remember({image.id for image in images}, in_use, now)
        sizes = {image.id: image.size for image in images if not image.pinned}
        return [
            ImageUse(id_, size, self._used.get(id_, self._found[id_]), self._found[id_])
            for id_, size in sizes.items()
            if id_ not in in_use
        ]

    def _remember(self, ids: set[str], in_use: set[str], now: float) -> None:
        self._found = {id_: self._found.get(id_, now) for id_ in ids}
        self._used = _known(self._used, ids) | dict.fromkeys(in_use & ids, now)


def _known(times: Mapping[str, float], ids: set[str]) -> dict[str, float]:
    return {id_: at for id_, at in times.items() if id_ in ids}
