"""`/stats/summary`: what the node, its pods, their containers and volumes use, as kubelet tells it.

In Windows' terms: `usageBytes` of memory is the commit, and an interface's errors are the packets
that it dropped. A pod's ephemeral storage is what its containers wrote, their logs, and the volumes
that go with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lightkube.models import core_v1 as v1

from winpod.cri.proto import api_pb2 as api
from winpod.node.disk_usage import Disk, DiskUsage, DiskUsed, disk_of
from winpod.node.engine import PodFound
from winpod.node.pods import uid_of
from winpod.node.requests import POD_UID, log_folder, metadata_of, spec_of
from winpod.node.server_parts import Parts
from winpod.node.usage import NodeUsage, Used, machine_started

Json = dict[str, Any]
_PODS = "pods"


@dataclass(frozen=True, slots=True)
class PodUsed:
    """A pod beside what the runtime says that it uses."""

    found: PodFound
    stats: Any

    @property
    def used(self) -> Used:
        return container_used(self.stats.windows)


async def read_pods(parts: Parts) -> list[PodUsed]:
    """The pods that have a sandbox that is ready."""
    answer = await parts.client.call("ListPodSandboxStats", api.ListPodSandboxStatsRequest())
    stats = {one.attributes.labels.get(POD_UID, ""): one for one in answer.stats}
    return [
        PodUsed(found, stats[uid_of(found.pod)])
        for found in parts.pods.pods()
        if uid_of(found.pod) in stats
    ]


def container_used(windows: Any) -> Used:
    """Of a pod's or a container's stats."""
    return Used(
        windows.cpu.timestamp,
        windows.cpu.usage_core_nano_seconds.value,
        windows.cpu.usage_nano_cores.value,
        windows.memory.working_set_bytes.value,
        windows.memory.commit_memory_bytes.value,
    )


@dataclass(slots=True)
class Summary:
    parts: Parts
    usage: NodeUsage
    _disks: DiskUsage = field(default_factory=DiskUsage)

    async def tell(self, *, only_cpu_and_memory: bool = False) -> Json:
        pods = await read_pods(self.parts)
        self._disks.forget_the_expired()
        node = self._node(pods)
        if only_cpu_and_memory:
            return {"node": node, "pods": [_pod(pod) for pod in pods]}
        node |= await self._node_disks()
        told = await asyncio.gather(*(self._pod_with_disks(pod) for pod in pods))
        return {"node": node, "pods": list(told)}

    def _node(self, pods: Iterable[PodUsed]) -> Json:
        facts = self.parts.facts
        by_sandbox = {pod.stats.attributes.id: pod.used for pod in pods}
        used = self.usage.read(by_sandbox)
        started = _time(machine_started())
        sums = _sum(used.time, by_sandbox)
        allocatable = int(facts.allocatable()["memory"])
        return {
            "nodeName": facts.name,
            "systemContainers": [
                {"name": _PODS, "startTime": started, **_cpu_and_memory(sums, allocatable)}
            ],
            "startTime": started,
            **_cpu_and_memory(used, facts.memory_bytes),
        }

    async def _node_disks(self) -> Json:
        facts = self.parts.facts
        disk = disk_of(facts.root)
        now = datetime.now(UTC)
        answer = await self.parts.client.call("ImageFsInfo", api.ImageFsInfoRequest())
        runtime: Json = {}
        for name, listed in (
            ("imageFs", answer.image_filesystems),
            ("containerFs", answer.container_filesystems),
        ):
            if listed:
                place = Path(listed[0].fs_id.mountpoint)
                used = DiskUsed(
                    listed[0].timestamp,
                    listed[0].used_bytes.value,
                    listed[0].inodes_used.value,
                )
                runtime[name] = _disk(disk_of(place), used)
        used_bytes = disk.capacity_bytes - disk.available_bytes
        all_used = DiskUsed(
            int(now.timestamp() * 1e9), used_bytes, max(0, disk.inodes - disk.inodes_free)
        )
        return {"fs": _disk(disk, all_used), "runtime": runtime}

    async def _pod_with_disks(self, pod: PodUsed) -> Json:
        """Files that the runtime keeps of a container and the node of a pod."""
        told = _pod(pod)
        disk = disk_of(self.parts.facts.root)
        logs = self.parts.facts.log_root / log_folder(pod.found.pod)
        sizes = []
        for container, stats in zip(told["containers"], pod.stats.windows.containers, strict=True):
            written = stats.writable_layer
            rootfs = DiskUsed(written.timestamp, written.used_bytes.value)
            log = await self._disks.read(logs / container["name"])
            container["rootfs"] = _disk(disk, rootfs)
            container["logs"] = _disk(disk, log)
            sizes += [rootfs, log]
        volumes = await self._volumes(pod.found.pod)
        told["volume"] = [_volume(volume, used, disk) for volume, used in volumes]
        sizes += [used for volume, used in volumes if _is_ephemeral(volume)]
        total = DiskUsed(
            max((size.time for size in sizes), default=0),
            sum(size.bytes for size in sizes),
            sum(size.inodes for size in sizes),
        )
        told["ephemeral-storage"] = _disk(disk, total)
        told["network"] = _network(pod.stats.windows.network)
        told["process_stats"] = {"process_count": pod.stats.windows.process.process_count.value}
        return told

    async def _volumes(self, pod: v1.Pod) -> list[tuple[v1.Volume, DiskUsed]]:
        """Those that the node keeps files for."""
        folder = self.parts.facts.root / "pods" / uid_of(pod) / "volumes"
        return [
            (volume, await self._disks.read(folder / volume.name))
            for volume in spec_of(pod).volumes or ()
            if (folder / volume.name).is_dir()
        ]


def _pod(pod: PodUsed) -> Json:
    metadata = metadata_of(pod.found.pod)
    status = pod.found.status
    started = status.startTime if status else None
    starts = {one.id: one.started_at for one in pod.found.seen.containers()}
    return {
        "podRef": {
            "name": metadata.name,
            "namespace": metadata.namespace,
            "uid": metadata.uid,
        },
        "startTime": _moment(started),
        "containers": [
            {
                "name": one.attributes.metadata.name,
                "startTime": _moment(starts.get(one.attributes.id)),
                **_cpu_and_memory(container_used(one)),
            }
            for one in pod.stats.windows.containers
        ],
        **_cpu_and_memory(pod.used),
    }


def _cpu_and_memory(used: Used, limit: int = 0) -> Json:
    memory: Json = {
        "time": _time(used.time),
        "usageBytes": used.commit_bytes,
        "workingSetBytes": used.working_set_bytes,
        "rssBytes": used.working_set_bytes,
    }
    if limit:
        memory["availableBytes"] = max(0, limit - used.working_set_bytes)
    return {
        "cpu": {
            "time": _time(used.time),
            "usageNanoCores": used.nano_cores,
            "usageCoreNanoSeconds": used.cpu_nanoseconds,
        },
        "memory": memory,
    }


def _sum(time: int, pods: Mapping[str, Used]) -> Used:
    used = pods.values()
    return Used(
        time,
        sum(one.cpu_nanoseconds for one in used),
        sum(one.nano_cores for one in used),
        sum(one.working_set_bytes for one in used),
        sum(one.commit_bytes for one in used),
    )


def _disk(disk: Disk, used: DiskUsed) -> Json:
    return {
        "time": _time(used.time),
        "availableBytes": disk.available_bytes,
        "capacityBytes": disk.capacity_bytes,
        "usedBytes": used.bytes,
        "inodesFree": disk.inodes_free,
        "inodes": disk.inodes,
        "inodesUsed": used.inodes,
    }


def _volume(volume: v1.Volume, used: DiskUsed, disk: Disk) -> Json:
    return {"name": volume.name, **_disk(disk, used)}


def _is_ephemeral(volume: v1.Volume) -> bool:
    return not volume.persistentVolumeClaim and not volume.hostPath


def _network(network: Any) -> Json:
    interfaces = [network.default_interface, *network.interfaces]
    told = [_interface(one) for one in interfaces if one.name]
    first = told[0] if told else {}
    return {"time": _time(network.timestamp), **first, "interfaces": told}


def _interface(one: Any) -> Json:
    return {
        "name": one.name,
        "rxBytes": one.rx_bytes.value,
        "rxErrors": one.rx_packets_dropped.value,
        "txBytes": one.tx_bytes.value,
        "txErrors": one.tx_packets_dropped.value,
    }


def _moment(moment: datetime | None) -> str | None:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if moment else None


def _time(nanoseconds: int) -> str:
    return datetime.fromtimestamp(nanoseconds / 1e9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
