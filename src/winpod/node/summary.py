"""`/stats/summary`: what the node, its pods, their containers and volumes use, as kubelet tells it.

In Windows' terms: `usageBytes` of memory is the commit, and the errors of a pod's interface are the
packets that it dropped. A pod's ephemeral storage is what its containers wrote, their logs, its
hosts file, and the volumes that go with it. Networks and the number of tasks are the machine's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import time_ns
from typing import Any

from winpod.cri.proto import api_pb2 as api
from winpod.network.counters import Counters, machine_counters
from winpod.node.disk_usage import Disk, DiskUsed, disk_of, measure
from winpod.node.engine import PodFound
from winpod.node.pods import uid_of
from winpod.node.requests import POD_UID, log_folder, metadata_of
from winpod.node.server_parts import Parts
from winpod.node.usage import NodeUsage, Used, machine_started, machine_tasks
from winpod.node.volume_usage import VolumeUsage, VolumeUsed

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
    volumes: VolumeUsage

    async def tell(self, *, only_cpu_and_memory: bool = False) -> Json:
        pods = await read_pods(self.parts)
        self.volumes.forget_all_but({uid_of(pod.found.pod) for pod in pods})
        node = self._node(pods)
        if only_cpu_and_memory:
            return {"node": node, "pods": [_pod(pod) for pod in pods]}
        node |= await self._node_disks()
        node["network"] = _machine_network(machine_counters())
        node["rlimit"] = _tasks()
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
        return {"fs": _disk(disk, disk.used()), "runtime": runtime}

    async def _pod_with_disks(self, pod: PodUsed) -> Json:
        """Files that the runtime keeps of a container and the node of a pod."""
        told = _pod(pod)
        facts = self.parts.facts
        disk = disk_of(facts.root)
        logs = facts.log_root / log_folder(pod.found.pod)
        sizes = [measure(facts.root / "pods" / uid_of(pod.found.pod) / "etc-hosts")]
        for container, stats in zip(told["containers"], pod.stats.windows.containers, strict=True):
            written = stats.writable_layer
            rootfs = DiskUsed(written.timestamp, written.used_bytes.value)
            log = await self.volumes.disks.read(logs / container["name"])
            container["rootfs"] = _disk(disk, rootfs)
            container["logs"] = _disk(disk, log)
            sizes += [rootfs, log]
        volumes = await self.volumes.read(pod.found.pod)
        told["volume"] = [_volume(used, told["podRef"]["namespace"]) for used in volumes]
        sizes += [volume.used for volume in volumes if volume.is_ephemeral]
        total = DiskUsed(
            max(size.time for size in sizes),
            sum(size.bytes for size in sizes),
            sum(size.inodes for size in sizes),
        )
        told["ephemeral-storage"] = _disk(disk, total)
        if pod.stats.windows.HasField("network"):
            told["network"] = _network(pod.stats.windows.network)
        told["process_stats"] = {"process_count": pod.stats.windows.process.process_count.value}
        return told


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


def _volume(volume: VolumeUsed, namespace: str) -> Json:
    told = {"name": volume.volume.name, **_disk(volume.disk, volume.used)}
    if volume.claim:
        told["pvcRef"] = {"name": volume.claim, "namespace": namespace}
    return told


def _network(network: Any) -> Json:
    interfaces = [network.default_interface, *network.interfaces]
    told = [
        _interface(
            one.name,
            (one.rx_bytes.value, one.rx_packets_dropped.value),
            (one.tx_bytes.value, one.tx_packets_dropped.value),
        )
        for one in interfaces
        if one.name
    ]
    return _interfaces(network.timestamp, told)


def _machine_network(counters: Iterable[Counters]) -> Json:
    told = [
        _interface(
            one.interface,
            (one.received_bytes, one.receive_errors),
            (one.sent_bytes, one.send_errors),
        )
        for one in counters
    ]
    return _interfaces(time_ns(), told)


def _interfaces(time: int, told: list[Json]) -> Json:
    """The first is the default one."""
    first = told[0] if told else {}
    return {"time": _time(time), **first, "interfaces": told}


def _interface(name: str, received: tuple[int, int], sent: tuple[int, int]) -> Json:
    """Bytes and errors, each way."""
    return {
        "name": name,
        "rxBytes": received[0],
        "rxErrors": received[1],
        "txBytes": sent[0],
        "txErrors": sent[1],
    }


def _tasks() -> Json:
    most, now = machine_tasks()
    return {"time": _time(time_ns()), "maxpid": most, "curproc": now}


def _moment(moment: datetime | None) -> str | None:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if moment else None


def _time(nanoseconds: int) -> str:
    return datetime.fromtimestamp(nanoseconds / 1e9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
