"""A backend without processes, for scale tests.

A container runs until it is stopped, logs one line, and its usage grows with its age. State is not
kept: after a restart of the daemon every container has ended. The command `simulate CODE SECONDS`
exits by itself with that code after that time.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from winpod.clock import utc_now
from winpod.compute.agent.client import Stream, TerminalSize
from winpod.compute.agent.protocol import Signal
from winpod.compute.backend import (
    ContainerConfig,
    ContainerUsage,
    ExecOutput,
    ExitStatus,
    SandboxSpec,
)
from winpod.compute.resources import ResourceLimits
from winpod.errors import NotFound
from winpod.windows.isolation import Isolation

TERMINATED = 0xC000013A
_MEMORY = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class SimulatedScript:
    code: int
    seconds: float


def parse_script(command: Sequence[str]) -> SimulatedScript | None:
    """Parse a `simulate` command; None for others."""
    if command[:1] != ["simulate"]:
        return None
    code, seconds = [*command[1:], "0", "0"][:2]
    return SimulatedScript(int(code), float(seconds))


def _end(ended: asyncio.Future[ExitStatus], code: int) -> None:
    if not ended.done():
        ended.set_result(ExitStatus(code, time.time_ns()))


class SimulatedProgram:
    """Prints its output, ignores input, and exits at once or with its container."""

    def __init__(self, output: bytes, ended: asyncio.Future[ExitStatus] | None = None) -> None:
        self._output = output
        self._ended = ended

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def output(self) -> AsyncIterator[tuple[Stream, bytes]]:
        if self._output:
            yield Stream.OUTPUT, self._output
        if self._ended:
            await asyncio.shield(self._ended)

    async def wait(self) -> int:
        return 0

    async def write(self, data: bytes) -> None: ...

    async def close_stdin(self) -> None: ...

    async def resize(self, size: TerminalSize) -> None: ...

    async def signal(self, signal: Signal) -> None: ...


class SimulatedBackend:
    def __init__(self) -> None:
        self._configs: dict[str, ContainerConfig] = {}
        self._started: dict[str, int] = {}
        self._ended: dict[str, asyncio.Future[ExitStatus]] = {}

    async def open(self, known_ids: Collection[str]) -> None:
        del known_ids

    async def close(self) -> None:
        pass

    def describe(self) -> dict[str, object]:
        return {"kind": "simulated", "containers": len(self._configs)}

    def unavailable_reason(self, isolation: Isolation = Isolation.PROCESS) -> str:
        is_process = isolation is Isolation.PROCESS
        return "" if is_process else "a simulation has process isolation only."

    async def create_sandbox(self, spec: SandboxSpec) -> Path | None:
        del spec
        return None

    def netns_ready(self, sandbox: str) -> None:
        del sandbox

    async def network_ready(self, sandbox: str, interface: str, result: Mapping[str, Any]) -> None:
        del sandbox, interface, result

    async def cpu_count(self, sandbox: str) -> int:
        del sandbox
        return len(os.sched_getaffinity(0))

    async def dial(self, sandbox: str, port: int, addresses: Sequence[str]) -> None:
        del sandbox, port, addresses

    async def wait_sandbox_exit(self, sandbox: str) -> None:
        del sandbox
        await asyncio.Future()

    async def remove_sandbox(self, sandbox: str) -> None:
        del sandbox

    async def resize_sandbox(self, sandbox: str, memory_bytes: int, processors: int) -> None:
        del sandbox, memory_bytes, processors

    async def create_container(self, config: ContainerConfig) -> None:
        self._configs[config.id] = config

    async def start(self, container: str) -> None:
        config = self._get(container)
        self._started[container] = time.time_ns()
        loop = asyncio.get_running_loop()
        ended = self._ended[container] = loop.create_future()
        self._log(config, f"simulated: {config.spec.command_line}")
        if script := parse_script(config.spec.command_line.split()):
            loop.call_later(script.seconds, _end, ended, script.code)

    async def signal(self, container: str, *, kill: bool) -> None:
        if ended := self._ended.get(container):
            _end(ended, TERMINATED if kill else 0)

    async def wait(self, container: str) -> ExitStatus:
        ended = self._ended.get(container)
        if ended is None:
            return ExitStatus(
                255, time.time_ns(), "Unknown", "the simulation did not survive a restart"
            )
        return await asyncio.shield(ended)

    async def was_started(self, container: str) -> bool:
        return container in self._started

    async def is_running(self, container: str) -> bool:
        ended = self._ended.get(container)
        return ended is not None and not ended.done()

    async def remove(self, container: str) -> None:
        await self.signal(container, kill=True)
        for table in (self._configs, self._started, self._ended):
            table.pop(container, None)

    async def update(self, container: str, limits: ResourceLimits) -> None:
        del limits
        self._get(container)

    async def usage(self, container: str) -> ContainerUsage:
        now = time.time_ns()
        if not await self.is_running(container):
            return ContainerUsage(now)
        age = now - self._started[container]
        return ContainerUsage(
            now, age // 100, _MEMORY, _MEMORY, 1, 4096, charged_bytes=_MEMORY, threads=1
        )

    async def reopen_log(self, container: str) -> None:
        self._log(self._get(container), "simulated: log opened again")

    async def exec_sync(self, container: str, command: Sequence[str], seconds: float) -> ExecOutput:
        self._get(container)
        script = parse_script(command) or SimulatedScript(0, 0)
        async with asyncio.timeout(seconds or None):
            await asyncio.sleep(script.seconds)
        return ExecOutput(script.code, f"simulated: {' '.join(command)}\r\n".encode(), b"")

    async def exec(
        self, container: str, command: Sequence[str], *, terminal: TerminalSize | None, stdin: bool
    ) -> SimulatedProgram:
        del terminal, stdin
        self._get(container)
        return SimulatedProgram(f"simulated: {' '.join(command)}\r\n".encode())

    async def attach(self, container: str, *, stdin: bool) -> SimulatedProgram:
        del stdin
        while container not in self._ended:  # it is still to be started
            self._get(container)
            await asyncio.sleep(0.01)
        return SimulatedProgram(b"", self._ended[container])

    def _get(self, container: str) -> ContainerConfig:
        if config := self._configs.get(container):
            return config
        raise NotFound(f"there is no simulated container {container}.")

    def _log(self, config: ContainerConfig, text: str) -> None:
        if config.log_path:
            path = Path(config.log_path)
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8") as log:
                log.write(f"{utc_now().isoformat()} stdout F {text}\n")
