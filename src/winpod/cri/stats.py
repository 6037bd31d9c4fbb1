"""What containers and pods use, in Windows' terms.

The working set is what only the container's processes have in memory, and the commit is what was
given to them, in memory or not; neither counts what a file backs and the machine can drop.
A list leaves out pods that are not ready and says of a container that has ended only what its disk
holds, as its kubelet expects.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

from winpod.compute.backend import Usage
from winpod.cri.proto import api_pb2 as api
from winpod.cri.sandboxes import selected
from winpod.cri.state import Container, Phase, Sandbox, State
from winpod.cri.usage import Meter, PodReading, Reading, shown
from winpod.network.counters import Counters
from winpod.windows.errors import Unavailable

_PAGE = 100


class Stats:
    def __init__(self, state: State, meter: Meter) -> None:
        self._state = state
        self._meter = meter

    async def container_stats(
        self, request: api.ContainerStatsRequest
    ) -> api.ContainerStatsResponse:
        container = self._state.container(request.container_id)
        return api.ContainerStatsResponse(stats=_container(await self._meter.container(container)))

    async def list_container_stats(
        self, request: api.ListContainerStatsRequest
    ) -> api.ListContainerStatsResponse:
        return api.ListContainerStatsResponse(stats=await self._containers(request.filter))

    async def stream_container_stats(
        self, request: api.StreamContainerStatsRequest
    ) -> AsyncIterator[api.StreamContainerStatsResponse]:
        stats = await self._containers(request.filter)
        for start in range(0, len(stats), _PAGE):
            yield api.StreamContainerStatsResponse(container_stats=stats[start : start + _PAGE])

    async def _containers(self, wanted: api.ContainerStatsFilter) -> list[api.ContainerStats]:
        chosen = [
            container
            for container in shown(self._state.containers.values())
            if container.id.startswith(wanted.id)
            and container.sandbox.startswith(wanted.pod_sandbox_id)
            and selected(wanted.label_selector, container.known.labels)
        ]
        return [_container(reading) for reading in await self._meter.containers(chosen)]

    async def pod_sandbox_stats(
        self, request: api.PodSandboxStatsRequest
    ) -> api.PodSandboxStatsResponse:
        sandbox = self._state.sandbox(request.pod_sandbox_id)
        if sandbox.phase is not Phase.RUNNING:
            raise Unavailable(f'the sandbox "{sandbox.id}" is not ready, so it uses nothing.')
        return api.PodSandboxStatsResponse(stats=_pod(await self._meter.pod(sandbox)))

    async def list_pod_sandbox_stats(
        self, request: api.ListPodSandboxStatsRequest
    ) -> api.ListPodSandboxStatsResponse:
        return api.ListPodSandboxStatsResponse(stats=await self._pods(request.filter))

    async def stream_pod_sandbox_stats(
        self, request: api.StreamPodSandboxStatsRequest
    ) -> AsyncIterator[api.StreamPodSandboxStatsResponse]:
        stats = await self._pods(request.filter)
        for start in range(0, len(stats), _PAGE):
            yield api.StreamPodSandboxStatsResponse(pod_sandbox_stats=stats[start : start + _PAGE])

    async def _pods(self, wanted: api.PodSandboxStatsFilter) -> list[api.PodSandboxStats]:
        chosen = [
            sandbox
            for sandbox in self._state.sandboxes.values()
            if sandbox.phase is Phase.RUNNING
            and sandbox.id.startswith(wanted.id)
            and selected(wanted.label_selector, sandbox.known.labels)
        ]
        return [_pod(reading) for reading in await self._meter.pods(chosen)]


def _pod(reading: PodReading) -> api.PodSandboxStats:
    total = reading.total
    windows = api.WindowsPodSandboxStats(
        cpu=api.WindowsCpuUsage(**_cpu(total, reading.nano_cores)),
        memory=_windows_memory(total),
        network=_network(reading.network),
        process=api.WindowsProcessUsage(
            timestamp=total.timestamp, process_count=_value(total.processes)
        ),
        containers=[_windows_container(one) for one in reading.containers if one.running],
    )
    attributes = api.PodSandboxAttributes(**_attributes(reading.sandbox))
    return api.PodSandboxStats(attributes=attributes, windows=windows)


def _network(counters: tuple[Counters, ...]) -> api.WindowsNetworkUsage | None:
    if not counters:
        return None
    first, *others = (_interface(one) for one in counters)
    return api.WindowsNetworkUsage(
        timestamp=time.time_ns(), default_interface=first, interfaces=others
    )


def _interface(counters: Counters) -> api.WindowsNetworkInterfaceUsage:
    return api.WindowsNetworkInterfaceUsage(
        name=counters.interface,
        rx_bytes=_value(counters.received_bytes),
        rx_packets_dropped=_value(counters.received_dropped),
        tx_bytes=_value(counters.sent_bytes),
        tx_packets_dropped=_value(counters.sent_dropped),
    )


def _container(reading: Reading) -> api.ContainerStats:
    usage = reading.usage
    stats = api.ContainerStats(
        attributes=api.ContainerAttributes(**_attributes(reading.container)),
        writable_layer=api.FilesystemUsage(**_disk(usage), inodes_used=_value(usage.disk_inodes)),
    )
    if reading.running:
        stats.cpu.MergeFrom(api.CpuUsage(**_cpu(usage, reading.nano_cores)))
        memory = api.MemoryUsage(
            timestamp=usage.timestamp,
            working_set_bytes=_value(usage.working_set_bytes),
            usage_bytes=_value(usage.charged_bytes),
            rss_bytes=_value(usage.working_set_bytes),
        )
        stats.memory.MergeFrom(memory)
    return stats


def _windows_container(reading: Reading) -> api.WindowsContainerStats:
    return api.WindowsContainerStats(
        attributes=api.ContainerAttributes(**_attributes(reading.container)),
        cpu=api.WindowsCpuUsage(**_cpu(reading.usage, reading.nano_cores)),
        memory=_windows_memory(reading.usage),
        writable_layer=api.WindowsFilesystemUsage(**_disk(reading.usage)),
    )


def _windows_memory(usage: Usage) -> api.WindowsMemoryUsage:
    return api.WindowsMemoryUsage(
        timestamp=usage.timestamp,
        working_set_bytes=_value(usage.working_set_bytes),
        commit_memory_bytes=_value(usage.commit_bytes),
    )


def _attributes(record: Sandbox | Container) -> dict[str, Any]:
    known = record.known
    return {
        "id": record.id,
        "metadata": known.metadata,
        "labels": known.labels,
        "annotations": known.annotations,
    }


def _cpu(usage: Usage, nano_cores: int) -> dict[str, Any]:
    return {
        "timestamp": usage.timestamp,
        "usage_core_nano_seconds": _value(usage.cpu_nanoseconds),
        "usage_nano_cores": _value(nano_cores),
    }


def _disk(usage: Usage) -> dict[str, Any]:
    return {
        "timestamp": usage.timestamp,
        "fs_id": api.FilesystemIdentifier(mountpoint=usage.mountpoint),
        "used_bytes": _value(usage.disk_bytes),
    }


def _value(number: int) -> api.UInt64Value:
    return api.UInt64Value(value=number)
