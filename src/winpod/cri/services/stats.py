"""Stats calls of the CRI, and the usage meter they share with the metrics calls.

As on Windows, the working set is the private resident memory of the container and the commit is its
allocated memory; neither includes page cache. Lists omit pods that are not ready, and report only
the disk usage of an exited container, as the kubelet expects. CPU rates are computed between two
readings at least a second apart: concurrent clients get the same rate, the first reading has none.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Any

from winpod.compute.backend import Backend, ContainerUsage
from winpod.cri.proto import api_pb2 as api
from winpod.cri.services.sandboxes import SandboxNetwork, matches_selector
from winpod.cri.state import ContainerRecord, Phase, RuntimeState, SandboxRecord
from winpod.errors import Unavailable, WinpodError
from winpod.network.netns import InterfaceCounters

_log = logging.getLogger(__name__)
_SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True)
class ContainerReading:
    """Usage of a container. A container that is not running only has disk usage."""

    container: ContainerRecord
    usage: ContainerUsage
    nano_cores: int = 0

    @property
    def running(self) -> bool:
        return self.container.phase is Phase.RUNNING


@dataclass(frozen=True, slots=True)
class PodReading:
    sandbox: SandboxRecord
    containers: tuple[ContainerReading, ...]
    network: tuple[InterfaceCounters, ...]

    @property
    def total(self) -> ContainerUsage:
        return _sum(reading.usage for reading in self.containers if reading.running)

    @property
    def nano_cores(self) -> int:
        return sum(reading.nano_cores for reading in self.containers)


class UsageMeter:
    def __init__(self, state: RuntimeState, backend: Backend, networks: SandboxNetwork) -> None:
        self._state = state
        self._backend = backend
        self._networks = networks
        self._rates: dict[str, tuple[ContainerUsage, int]] = {}

    async def container(self, container: ContainerRecord) -> ContainerReading:
        try:
            usage = await self._backend.usage(container.id)
        except OSError as error:
            raise Unavailable(
                f'failed to read usage of container "{container.id}": {error}.'
            ) from error
        running = container.phase is Phase.RUNNING
        return ContainerReading(container, usage, self._rate(container, usage) if running else 0)

    async def containers(
        self, containers: Iterable[ContainerRecord]
    ) -> tuple[ContainerReading, ...]:
        """Read the usage of containers; those removed meanwhile are left out."""
        self._prune_rates()
        readings = await asyncio.gather(
            *(self._try_container(container) for container in containers)
        )
        return tuple(reading for reading in readings if reading)

    def _prune_rates(self) -> None:
        existing = self._state.containers
        if len(self._rates) > len(existing):
            self._rates = {id_: rate for id_, rate in self._rates.items() if id_ in existing}

    async def pod(self, sandbox: SandboxRecord) -> PodReading:
        containers = await self.containers(visible_containers(self._state.containers_of(sandbox)))
        return PodReading(sandbox, containers, await self._network(sandbox))

    async def pods(self, sandboxes: Iterable[SandboxRecord]) -> tuple[PodReading, ...]:
        return tuple(await asyncio.gather(*(self.pod(sandbox) for sandbox in sandboxes)))

    async def _try_container(self, container: ContainerRecord) -> ContainerReading | None:
        try:
            return await self.container(container)
        except WinpodError as error:
            _log.debug("%s", error)
            return None

    async def _network(self, sandbox: SandboxRecord) -> tuple[InterfaceCounters, ...]:
        try:
            return tuple(await asyncio.to_thread(self._networks.counters, sandbox.id))
        except (WinpodError, OSError) as error:
            _log.debug("Failed to read network counters of sandbox %s: %s", sandbox.id, error)
            return ()

    def _rate(self, container: ContainerRecord, now: ContainerUsage) -> int:
        """Return the CPU usage in nanocores."""
        before, rate = self._rates.setdefault(container.id, (now, 0))
        elapsed = now.timestamp - before.timestamp
        if elapsed >= _SECOND:
            used = now.cpu_nanoseconds - before.cpu_nanoseconds
            rate = max(0, used * _SECOND // elapsed)
            self._rates[container.id] = (now, rate)
        return rate


def visible_containers(containers: Iterable[ContainerRecord]) -> list[ContainerRecord]:
    """Return containers that are visible to clients."""
    return [c for c in containers if c.phase not in (Phase.CREATING, Phase.REMOVING)]


def _sum(usages: Iterable[ContainerUsage]) -> ContainerUsage:
    total = ContainerUsage(0)
    for usage in usages:
        total = ContainerUsage(
            max(total.timestamp, usage.timestamp),
            total.cpu_nanoseconds + usage.cpu_nanoseconds,
            total.working_set_bytes + usage.working_set_bytes,
            total.commit_bytes + usage.commit_bytes,
            total.processes + usage.processes,
            total.disk_bytes + usage.disk_bytes,
            charged_bytes=total.charged_bytes + usage.charged_bytes,
            threads=total.threads + usage.threads,
            out_of_memory_kills=total.out_of_memory_kills + usage.out_of_memory_kills,
        )
    return total


_PAGE = 100


class StatsService:
    def __init__(self, state: RuntimeState, meter: UsageMeter) -> None:
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

    async def _containers(self, filter_: api.ContainerStatsFilter) -> list[api.ContainerStats]:
        selected = [
            container
            for container in visible_containers(self._state.containers.values())
            if container.id.startswith(filter_.id)
            and container.sandbox.startswith(filter_.pod_sandbox_id)
            and matches_selector(filter_.label_selector, container.parsed_config.labels)
        ]
        return [_container(reading) for reading in await self._meter.containers(selected)]

    async def pod_sandbox_stats(
        self, request: api.PodSandboxStatsRequest
    ) -> api.PodSandboxStatsResponse:
        sandbox = self._state.sandbox(request.pod_sandbox_id)
        if sandbox.phase is not Phase.RUNNING:
            raise Unavailable(f'sandbox "{sandbox.id}" is not ready and has no stats.')
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

    async def _pods(self, filter_: api.PodSandboxStatsFilter) -> list[api.PodSandboxStats]:
        selected = [
            sandbox
            for sandbox in self._state.sandboxes.values()
            if sandbox.phase is Phase.RUNNING
            and sandbox.id.startswith(filter_.id)
            and matches_selector(filter_.label_selector, sandbox.parsed_config.labels)
        ]
        return [_pod(reading) for reading in await self._meter.pods(selected)]


def _pod(reading: PodReading) -> api.PodSandboxStats:
    total = reading.total
    windows = api.WindowsPodSandboxStats(
        cpu=api.WindowsCpuUsage(**_cpu(total, reading.nano_cores)),
        memory=_windows_memory(total),
        network=_network(reading.network),
        process=api.WindowsProcessUsage(
            timestamp=total.timestamp, process_count=_value(total.processes)
        ),
        containers=[_windows_container(item) for item in reading.containers if item.running],
    )
    attributes = api.PodSandboxAttributes(**_attributes(reading.sandbox))
    return api.PodSandboxStats(attributes=attributes, windows=windows)


def _network(counters: tuple[InterfaceCounters, ...]) -> api.WindowsNetworkUsage | None:
    if not counters:
        return None
    first, *others = (_interface(item) for item in counters)
    return api.WindowsNetworkUsage(
        timestamp=time.time_ns(), default_interface=first, interfaces=others
    )


def _interface(counters: InterfaceCounters) -> api.WindowsNetworkInterfaceUsage:
    return api.WindowsNetworkInterfaceUsage(
        name=counters.interface,
        rx_bytes=_value(counters.received_bytes),
        rx_packets_dropped=_value(counters.received_dropped),
        tx_bytes=_value(counters.sent_bytes),
        tx_packets_dropped=_value(counters.sent_dropped),
    )


def _container(reading: ContainerReading) -> api.ContainerStats:
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


def _windows_container(reading: ContainerReading) -> api.WindowsContainerStats:
    return api.WindowsContainerStats(
        attributes=api.ContainerAttributes(**_attributes(reading.container)),
        cpu=api.WindowsCpuUsage(**_cpu(reading.usage, reading.nano_cores)),
        memory=_windows_memory(reading.usage),
        writable_layer=api.WindowsFilesystemUsage(**_disk(reading.usage)),
    )


def _windows_memory(usage: ContainerUsage) -> api.WindowsMemoryUsage:
    return api.WindowsMemoryUsage(
        timestamp=usage.timestamp,
        working_set_bytes=_value(usage.working_set_bytes),
        commit_memory_bytes=_value(usage.commit_bytes),
    )


def _attributes(record: SandboxRecord | ContainerRecord) -> dict[str, Any]:
    config = record.parsed_config
    return {
        "id": record.id,
        "metadata": config.metadata,
        "labels": config.labels,
        "annotations": config.annotations,
    }


def _cpu(usage: ContainerUsage, nano_cores: int) -> dict[str, Any]:
    return {
        "timestamp": usage.timestamp,
        "usage_core_nano_seconds": _value(usage.cpu_nanoseconds),
        "usage_nano_cores": _value(nano_cores),
    }


def _disk(usage: ContainerUsage) -> dict[str, Any]:
    return {
        "timestamp": usage.timestamp,
        "fs_id": api.FilesystemIdentifier(mountpoint=usage.mountpoint),
        "used_bytes": _value(usage.disk_bytes),
    }


def _value(number: int) -> api.UInt64Value:
    return api.UInt64Value(value=number)
