"""What pods use and what the node has left, as the runtime and the machine tell it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

from lightkube.models import core_v1 as v1

from winpod.cri.proto import api_pb2 as api
from winpod.node.disk_usage import disk_of, measure
from winpod.node.eviction import ContainerUse, PodUse, Room, Signals
from winpod.node.means import Means
from winpod.node.pods import uid_of
from winpod.node.requests import CONTAINER_NAME, POD_UID, log_folder, spec_of
from winpod.node.usage import machine_available


async def measure_containers(means: Means) -> dict[str, dict[str, ContainerUse]]:
    """By pod and name; disks without logs."""
    answer = await means.call("ListContainerStats", api.ListContainerStatsRequest())
    found: dict[str, dict[str, ContainerUse]] = {}
    for stats in answer.stats:
        labels = stats.attributes.labels
        if uid := labels.get(POD_UID):
            found.setdefault(uid, {})[labels.get(CONTAINER_NAME, "")] = ContainerUse(
                stats.memory.working_set_bytes.value, stats.writable_layer.used_bytes.value
            )
    return found


async def measure_disks(
    pods: Iterable[v1.Pod], containers: dict[str, dict[str, ContainerUse]], means: Means
) -> dict[str, PodUse]:
    """With logs and empty directories, which have to be walked through."""
    return {
        uid_of(pod): await asyncio.to_thread(_pod_use, pod, containers.get(uid_of(pod), {}), means)
        for pod in pods
    }


def _pod_use(pod: v1.Pod, containers: dict[str, ContainerUse], means: Means) -> PodUse:
    logs = means.facts.log_root / log_folder(pod)
    folder = means.volumes.folder(uid_of(pod)) / "volumes"
    empty = [volume.name for volume in spec_of(pod).volumes or () if volume.emptyDir]
    return PodUse(
        {
            name: ContainerUse(use.memory_bytes, use.disk_bytes + measure(logs / name).bytes)
            for name, use in containers.items()
        },
        {name: measure(folder / name).bytes for name in empty},
    )


async def measure_node(used_bytes: int, means: Means) -> Signals:
    """The node's memory is its share of the machine, and no more than the machine has left."""
    capacity = means.facts.memory_bytes
    memory = Room(min(capacity - used_bytes, machine_available()), capacity)
    answer = await means.call("ImageFsInfo", api.ImageFsInfoRequest())
    places = [Path(one.fs_id.mountpoint) for one in answer.image_filesystems[:1]]
    image_disk = room_at(places[0]) if places else Room(0, 0)
    return Signals(memory, room_at(means.facts.root), image_disk)


def room_at(place: Path) -> Room:
    """Of the filesystem that a directory is on, or will be."""
    disk = disk_of(place)
    return Room(disk.available_bytes, disk.capacity_bytes)
