"""Eviction signals: the usage of pods, and the memory and disk space the node has available."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

from winpod.cri.proto import api_pb2 as api
from winpod.k8s.models import core_v1 as v1
from winpod.k8s.pods import spec_of, uid_of
from winpod.kubelet.context import KubeletContext
from winpod.kubelet.cri_convert import CONTAINER_NAME_LABEL, POD_UID_LABEL, log_directory
from winpod.kubelet.eviction.ranking import EvictionSignals, MeasuredContainer, MeasuredPod
from winpod.kubelet.stats import DiskSpace, disk_space_at, host_available_memory, measure_directory


async def measure_containers(context: KubeletContext) -> dict[str, dict[str, MeasuredContainer]]:
    """Return container usage by pod UID and container name; disk usage excludes logs."""
    answer = await context.runtime.call("ListContainerStats", api.ListContainerStatsRequest())
    usage: dict[str, dict[str, MeasuredContainer]] = {}
    for stats in answer.stats:
        labels = stats.attributes.labels
        if uid := labels.get(POD_UID_LABEL):
            usage.setdefault(uid, {})[labels.get(CONTAINER_NAME_LABEL, "")] = MeasuredContainer(
                stats.memory.working_set_bytes.value, stats.writable_layer.used_bytes.value
            )
    return usage


async def measure_disks(
    pods: Iterable[v1.Pod],
    containers: dict[str, dict[str, MeasuredContainer]],
    context: KubeletContext,
) -> dict[str, MeasuredPod]:
    """Return pod usage including logs and emptyDir volumes, which are walked."""
    return {
        uid_of(pod): await asyncio.to_thread(
            _pod_usage, pod, containers.get(uid_of(pod), {}), context
        )
        for pod in pods
    }


def _pod_usage(
    pod: v1.Pod, containers: dict[str, MeasuredContainer], context: KubeletContext
) -> MeasuredPod:
    logs = context.node_config.log_root / log_directory(pod)
    folder = context.volumes.folder(uid_of(pod)) / "volumes"
    empty = [volume.name for volume in spec_of(pod).volumes or () if volume.emptyDir]
    return MeasuredPod(
        {
            name: MeasuredContainer(
                use.memory_bytes, use.disk_bytes + measure_directory(logs / name).bytes
            )
            for name, use in containers.items()
        },
        {name: measure_directory(folder / name).bytes for name in empty},
    )


async def measure_node(used_bytes: int, context: KubeletContext) -> EvictionSignals:
    """Return the node's signals. Its memory is its share, capped by what the host has available."""
    capacity = context.node_config.memory_bytes
    memory = DiskSpace(min(capacity - used_bytes, host_available_memory()), capacity)
    answer = await context.runtime.call("ImageFsInfo", api.ImageFsInfoRequest())
    mountpoints = [Path(fs.fs_id.mountpoint) for fs in answer.image_filesystems[:1]]
    image_disk = disk_space_at(mountpoints[0]) if mountpoints else DiskSpace(0, 0)
    return EvictionSignals(memory, disk_space_at(context.node_config.root), image_disk)
