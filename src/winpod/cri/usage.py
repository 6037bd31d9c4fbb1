"""What containers and pods use now, read once for everybody who tells it: stats and metrics.

A CPU rate is between two readings, at least a second apart: clients that ask at the same time get
the same answer, and the first reading of a container has none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass

from winpod.compute.backend import Backend, Usage
from winpod.cri.sandboxes import Networks
from winpod.cri.state import Container, Phase, Sandbox, State
from winpod.network.counters import Counters
from winpod.windows.errors import Unavailable, WinpodError

_log = logging.getLogger(__name__)
_SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Reading:
    """One container. One that does not run has a disk, and nothing else that it uses."""

    container: Container
    usage: Usage
    nano_cores: int = 0

    @property
    def running(self) -> bool:
        return self.container.phase is Phase.RUNNING


@dataclass(frozen=True, slots=True)
class PodReading:
    sandbox: Sandbox
    containers: tuple[Reading, ...]
    network: tuple[Counters, ...]

    @property
    def total(self) -> Usage:
        return _sum(reading.usage for reading in self.containers if reading.running)

    @property
    def nano_cores(self) -> int:
        return sum(reading.nano_cores for reading in self.containers)


class Meter:
    def __init__(self, state: State, backend: Backend, networks: Networks) -> None:
        self._state = state
        self._backend = backend
        self._networks = networks
        self._rates: dict[str, tuple[Usage, int]] = {}

    async def container(self, container: Container) -> Reading:
        try:
            usage = await self._backend.usage(container.id)
        except OSError as error:
            raise Unavailable(f'what "{container.id}" uses cannot be read: {error}.') from error
        running = container.phase is Phase.RUNNING
        return Reading(container, usage, self._rate(container, usage) if running else 0)

    async def containers(self, containers: Iterable[Container]) -> tuple[Reading, ...]:
        """Of those that are still there; what goes while it is asked for is left out."""
        self._forget_the_gone()
        found = await asyncio.gather(*(self._maybe(container) for container in containers))
        return tuple(reading for reading in found if reading)

    def _forget_the_gone(self) -> None:
        there = self._state.containers
        if len(self._rates) > len(there):
            self._rates = {id_: rate for id_, rate in self._rates.items() if id_ in there}

    async def pod(self, sandbox: Sandbox) -> PodReading:
        containers = await self.containers(shown(self._state.containers_of(sandbox)))
        return PodReading(sandbox, containers, await self._network(sandbox))

    async def pods(self, sandboxes: Iterable[Sandbox]) -> tuple[PodReading, ...]:
        return tuple(await asyncio.gather(*(self.pod(sandbox) for sandbox in sandboxes)))

    async def _maybe(self, container: Container) -> Reading | None:
        try:
            return await self.container(container)
        except WinpodError as error:
            _log.debug("%s", error)
            return None

    async def _network(self, sandbox: Sandbox) -> tuple[Counters, ...]:
        try:
            return tuple(await asyncio.to_thread(self._networks.counters, sandbox.id))
        except (WinpodError, OSError) as error:
            _log.debug("the network of %s is not counted: %s", sandbox.id, error)
            return ()

    def _rate(self, container: Container, now: Usage) -> int:
        """Nanoseconds of CPU a second."""
        before, rate = self._rates.setdefault(container.id, (now, 0))
        elapsed = now.timestamp - before.timestamp
        if elapsed >= _SECOND:
            used = now.cpu_nanoseconds - before.cpu_nanoseconds
            rate = max(0, used * _SECOND // elapsed)
            self._rates[container.id] = (now, rate)
        return rate


def shown(containers: Iterable[Container]) -> list[Container]:
    """Those that clients know of."""
    return [c for c in containers if c.phase not in (Phase.MAKING, Phase.REMOVING)]


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
            charged_bytes=total.charged_bytes + usage.charged_bytes,
            threads=total.threads + usage.threads,
            out_of_memory_kills=total.out_of_memory_kills + usage.out_of_memory_kills,
        )
    return total
