"""`/stats/summary`: usage of the node, its pods, their containers and volumes, as in the kubelet.

With Windows semantics: memory `usageBytes` is the commit size, and interface errors are dropped
packets. A pod's ephemeral storage is its containers' writable layers and logs, its hosts file and
its ephemeral volumes. The node's network and task counts are the machine's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import time_ns
from typing import Any

from winpod.clock import format_timestamp
from winpod.cri.proto import api_pb2 as api
from winpod.k8s.pods import metadata_of, uid_of
from winpod.kubelet.cri_convert import POD_UID_LABEL, log_directory
from winpod.kubelet.kubelet import PodEntry
from winpod.kubelet.server.context import ServerContext
from winpod.kubelet.stats import (
    DiskUsage,
    FilesystemStats,
    NodeUsageReader,
    ResourceUsage,
    filesystem_of,
    host_boot_time,
    host_tasks,
    measure_directory,
)
from winpod.kubelet.volumes.usage import VolumeStats, VolumeStatsReader
from winpod.network.netns import InterfaceCounters, host_counters

Json = dict[str, Any]
_PODS = "pods"


@dataclass(frozen=True, slots=True)
class PodStats:
    """A pod with its stats from the runtime."""

    entry: PodEntry
    stats: Any

    @property
    def used(self) -> ResourceUsage:
        return container_usage(self.stats.windows)


async def read_pods(context: ServerContext) -> list[PodStats]:
    """Return the pods that have a ready sandbox."""
    answer = await context.runtime.call("ListPodSandboxStats", api.ListPodSandboxStatsRequest())
    stats = {pod.attributes.labels.get(POD_UID_LABEL, ""): pod for pod in answer.stats}
    return [
        PodStats(entry, stats[uid_of(entry.pod)])
        for entry in context.pods.pods()
        if uid_of(entry.pod) in stats
    ]


def container_usage(windows: Any) -> ResourceUsage:
    """Convert the stats of a pod or a container."""
    return ResourceUsage(
        windows.cpu.timestamp,
        windows.cpu.usage_core_nano_seconds.value,
        windows.cpu.usage_nano_cores.value,
        windows.memory.working_set_bytes.value,
        windows.memory.commit_memory_bytes.value,
    )


@dataclass(slots=True)
class StatsSummary:
    context: ServerContext
    usage: NodeUsageReader
    volumes: VolumeStatsReader

    async def summarize(self, *, only_cpu_and_memory: bool = False) -> Json:
        pods = await read_pods(self.context)
        self.volumes.retain_pods({uid_of(pod.entry.pod) for pod in pods})
        node = self._node(pods)
        if only_cpu_and_memory:
            return {"node": node, "pods": [_pod(pod) for pod in pods]}
        node |= await self._node_disks()
        node["network"] = _machine_network(host_counters())
        node["rlimit"] = _tasks()
        summaries = await asyncio.gather(*(self._pod_with_disks(pod) for pod in pods))
        return {"node": node, "pods": list(summaries)}

    def _node(self, pods: Iterable[PodStats]) -> Json:
        node_config = self.context.node_config
        by_sandbox = {pod.stats.attributes.id: pod.used for pod in pods}
        used = self.usage.read(by_sandbox)
        started = _time(host_boot_time())
        sums = _sum(used.time, by_sandbox)
        allocatable = int(node_config.allocatable()["memory"])
        return {
            "nodeName": node_config.name,
            "systemContainers": [
                {"name": _PODS, "startTime": started, **_cpu_and_memory(sums, allocatable)}
            ],
            "startTime": started,
            **_cpu_and_memory(used, node_config.memory_bytes),
        }

    async def _node_disks(self) -> Json:
        node_config = self.context.node_config
        disk = filesystem_of(node_config.root)
        answer = await self.context.runtime.call("ImageFsInfo", api.ImageFsInfoRequest())
        runtime: Json = {}
        for name, listed in (
            ("imageFs", answer.image_filesystems),
            ("containerFs", answer.container_filesystems),
        ):
            if listed:
                mountpoint = Path(listed[0].fs_id.mountpoint)
                used = DiskUsage(
                    listed[0].timestamp,
                    listed[0].used_bytes.value,
                    listed[0].inodes_used.value,
                )
                runtime[name] = _disk(filesystem_of(mountpoint), used)
        return {"fs": _disk(disk, disk.to_usage()), "runtime": runtime}

    async def _pod_with_disks(self, pod: PodStats) -> Json:
        """Return a pod's summary with its disk, network and process stats."""
        summary = _pod(pod)
        node_config = self.context.node_config
        disk = filesystem_of(node_config.root)
        logs = node_config.log_root / log_directory(pod.entry.pod)
        sizes = [measure_directory(node_config.root / "pods" / uid_of(pod.entry.pod) / "etc-hosts")]
        for container, stats in zip(
            summary["containers"], pod.stats.windows.containers, strict=True
        ):
            written = stats.writable_layer
            rootfs = DiskUsage(written.timestamp, written.used_bytes.value)
            log = await self.volumes.disks.read(logs / container["name"])
            container["rootfs"] = _disk(disk, rootfs)
            container["logs"] = _disk(disk, log)
            sizes += [rootfs, log]
        volumes = await self.volumes.read(pod.entry.pod)
        summary["volume"] = [_volume(used, summary["podRef"]["namespace"]) for used in volumes]
        sizes += [volume.used for volume in volumes if volume.is_ephemeral]
        total = DiskUsage(
            max(size.time for size in sizes),
            sum(size.bytes for size in sizes),
            sum(size.inodes for size in sizes),
        )
        summary["ephemeral-storage"] = _disk(disk, total)
        if pod.stats.windows.HasField("network"):
            summary["network"] = _network(pod.stats.windows.network)
        summary["process_stats"] = {"process_count": pod.stats.windows.process.process_count.value}
        return summary


def _pod(pod: PodStats) -> Json:
    metadata = metadata_of(pod.entry.pod)
    status = pod.entry.status
    started = status.startTime if status else None
    starts = {c.id: c.started_at for c in pod.entry.runtime_pod.containers()}
    return {
        "podRef": {
            "name": metadata.name,
            "namespace": metadata.namespace,
            "uid": metadata.uid,
        },
        "startTime": _moment(started),
        "containers": [
            {
                "name": container.attributes.metadata.name,
                "startTime": _moment(starts.get(container.attributes.id)),
                **_cpu_and_memory(container_usage(container)),
            }
            for container in pod.stats.windows.containers
        ],
        **_cpu_and_memory(pod.used),
    }


def _cpu_and_memory(used: ResourceUsage, limit: int = 0) -> Json:
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


def _sum(time: int, pods: Mapping[str, ResourceUsage]) -> ResourceUsage:
    used = pods.values()
    return ResourceUsage(
        time,
        sum(pod.cpu_nanoseconds for pod in used),
        sum(pod.nano_cores for pod in used),
        sum(pod.working_set_bytes for pod in used),
        sum(pod.commit_bytes for pod in used),
    )


def _disk(disk: FilesystemStats, used: DiskUsage) -> Json:
    return {
        "time": _time(used.time),
        "availableBytes": disk.available_bytes,
        "capacityBytes": disk.capacity_bytes,
        "usedBytes": used.bytes,
        "inodesFree": disk.inodes_free,
        "inodes": disk.inodes,
        "inodesUsed": used.inodes,
    }


def _volume(volume: VolumeStats, namespace: str) -> Json:
    stats = {"name": volume.volume.name, **_disk(volume.disk, volume.used)}
    if volume.claim:
        stats["pvcRef"] = {"name": volume.claim, "namespace": namespace}
    return stats


def _network(network: Any) -> Json:
    interfaces = [network.default_interface, *network.interfaces]
    stats = [
        _interface(
            interface.name,
            (interface.rx_bytes.value, interface.rx_packets_dropped.value),
            (interface.tx_bytes.value, interface.tx_packets_dropped.value),
        )
        for interface in interfaces
        if interface.name
    ]
    return _interfaces(network.timestamp, stats)


def _machine_network(counters: Iterable[InterfaceCounters]) -> Json:
    stats = [
        _interface(
            counter.interface,
            (counter.received_bytes, counter.receive_errors),
            (counter.sent_bytes, counter.send_errors),
        )
        for counter in counters
    ]
    return _interfaces(time_ns(), stats)


def _interfaces(time: int, stats: list[Json]) -> Json:
    """Return the network stats; the first interface is the default one."""
    first = stats[0] if stats else {}
    return {"time": _time(time), **first, "interfaces": stats}


def _interface(name: str, received: tuple[int, int], sent: tuple[int, int]) -> Json:
    """Return an interface's stats from its (bytes, errors) in each direction."""
    return {
        "name": name,
        "rxBytes": received[0],
        "rxErrors": received[1],
        "txBytes": sent[0],
        "txErrors": sent[1],
    }


def _tasks() -> Json:
    maximum, current = host_tasks()
    return {"time": _time(time_ns()), "maxpid": maximum, "curproc": current}


def _moment(moment: datetime | None) -> str | None:
    return format_timestamp(moment) if moment else None


def _time(nanoseconds: int) -> str:
    return format_timestamp(datetime.fromtimestamp(nanoseconds / 1e9, UTC))
