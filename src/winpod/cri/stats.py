"""What containers and pods use, in Windows' terms."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

from winpod.compute.backend import Backend, Usage
from winpod.cri.proto import api_pb2 as api
from winpod.cri.sandboxes import selected
from winpod.cri.state import Container, Phase, Sandbox, State
from winpod.windows.errors import Unavailable

_PAGE = 100


class Stats:
    """CPU rates are between two readings, so the first reading of a container has none."""

    def __init__(self, state: State, backend: Backend) -> None:
        self._state = state
        self._backend = backend
        self._before: dict[str, Usage] = {}

    async def container_stats(
        self, request: api.ContainerStatsRequest
    ) -> api.ContainerStatsResponse:
        container = self._state.container(request.container_id)
        return api.ContainerStatsResponse(stats=_container(*(await self._read(container))))

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
            for container in self._state.containers.values()
            if container.phase is Phase.RUNNING
            and container.id.startswith(wanted.id)
            and container.sandbox.startswith(wanted.pod_sandbox_id)
            and selected(wanted.label_selector, container.known.labels)
        ]
        return [_container(*read) for read in await self._read_all(chosen)]

    async def pod_sandbox_stats(
        self, request: api.PodSandboxStatsRequest
    ) -> api.PodSandboxStatsResponse:
        sandbox = self._state.sandbox(request.pod_sandbox_id)
        if sandbox.phase is not Phase.RUNNING:
            raise Unavailable(f'the sandbox "{sandbox.id}" is not ready, so it uses nothing.')
        return api.PodSandboxStatsResponse(stats=await self._pod(sandbox))

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
        return list(await asyncio.gather(*(self._pod(sandbox) for sandbox in chosen)))

    async def _pod(self, sandbox: Sandbox) -> api.PodSandboxStats:
        running = [c for c in self._state.containers_of(sandbox) if c.phase is Phase.RUNNING]
        read = await self._read_all(running)
        total = _sum(usage for _, usage, _ in read)
        windows = api.WindowsPodSandboxStats(
            cpu=_windows_cpu(total, sum(rate for _, _, rate in read)),
            memory=_windows_memory(total),
            process=api.WindowsProcessUsage(
                timestamp=total.timestamp, process_count=_value(total.processes)
            ),
            containers=[_windows_container(*one) for one in read],
        )
        known = sandbox.known
        attributes = api.PodSandboxAttributes(
            id=sandbox.id,
            metadata=known.metadata,
            labels=known.labels,
            annotations=known.annotations,
        )
        return api.PodSandboxStats(attributes=attributes, windows=windows)

    async def _read_all(self, containers: list[Container]) -> list[tuple[Container, Usage, int]]:
        return list(await asyncio.gather(*(self._read(container) for container in containers)))

    async def _read(self, container: Container) -> tuple[Container, Usage, int]:
        usage = await self._backend.usage(container.id)
        before = self._before.get(container.id)
        self._before[container.id] = usage
        return container, usage, _rate(before, usage)


def _rate(before: Usage | None, now: Usage) -> int:
    """Nanoseconds of CPU a second."""
    if before is None or now.timestamp <= before.timestamp:
        return 0
    used = now.cpu_nanoseconds - before.cpu_nanoseconds
    return max(0, used * 1_000_000_000 // (now.timestamp - before.timestamp))


def _sum(usages: Iterable[Usage]) -> Usage:
    total = Usage(0)
    for usage in usages:
        total = Usage(
            max(total.timestamp, usage.timestamp),
            total.cpu_nanoseconds + usage.cpu_nanoseconds,
            total.working_set_bytes + usage.working_set_bytes,
            total.commit_bytes + usage.commit_bytes,
            total.processes + usage.processes,
            total.disk_bytes + usage.disk_bytes,
        )
    return total


def _value(number: int) -> api.UInt64Value:
    return api.UInt64Value(value=number)


def _attributes(container: Container) -> api.ContainerAttributes:
    known = container.known
    return api.ContainerAttributes(
        id=container.id,
        metadata=known.metadata,
        labels=known.labels,
        annotations=known.annotations,
    )


def _cpu(usage: Usage, rate: int) -> dict[str, Any]:
    return {
        "timestamp": usage.timestamp,
        "usage_core_nano_seconds": _value(usage.cpu_nanoseconds),
        "usage_nano_cores": _value(rate),
    }


def _container(container: Container, usage: Usage, rate: int) -> api.ContainerStats:
    return api.ContainerStats(
        attributes=_attributes(container),
        cpu=api.CpuUsage(**_cpu(usage, rate)),
        memory=api.MemoryUsage(
            timestamp=usage.timestamp,
            working_set_bytes=_value(usage.working_set_bytes),
            usage_bytes=_value(usage.commit_bytes),
        ),
        writable_layer=api.FilesystemUsage(
            timestamp=usage.timestamp, used_bytes=_value(usage.disk_bytes)
        ),
    )


def _windows_cpu(usage: Usage, rate: int) -> api.WindowsCpuUsage:
    return api.WindowsCpuUsage(**_cpu(usage, rate))


def _windows_memory(usage: Usage) -> api.WindowsMemoryUsage:
    return api.WindowsMemoryUsage(
        timestamp=usage.timestamp,
        working_set_bytes=_value(usage.working_set_bytes),
        commit_memory_bytes=_value(usage.commit_bytes),
    )


def _windows_container(container: Container, usage: Usage, rate: int) -> api.WindowsContainerStats:
    return api.WindowsContainerStats(
        attributes=_attributes(container),
        cpu=_windows_cpu(usage, rate),
        memory=_windows_memory(usage),
        writable_layer=api.WindowsFilesystemUsage(
            timestamp=usage.timestamp, used_bytes=_value(usage.disk_bytes)
        ),
    )
