"""A stand-in for real containers, for scale: the same life, and no processes.

A container runs until it is told to stop. Its log is a line that says so. What it used grows with
the time it has run. Nothing survives this process: after a restart every container has ended.
The command `simulate CODE SECONDS` ends by itself, with that code after that time.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from winpod.compute.agent import Signal, Size, Stream
from winpod.compute.backend import ContainerParts, Exit, Output, SandboxAsked, Usage
from winpod.compute.resources import Enforced
from winpod.windows.errors import NotFound
from winpod.windows.isolation import Isolation

TERMINATED = 0xC000013A
_MEMORY = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Script:
    code: int
    seconds: float


def script_of(command: Sequence[str]) -> Script | None:
    """What a simulated program does, if its command says so."""
    if command[:1] != ["simulate"]:
        return None
    code, seconds = [*command[1:], "0", "0"][:2]
    return Script(int(code), float(seconds))


def _end(ended: asyncio.Future[Exit], code: int) -> None:
    if not ended.done():
        ended.set_result(Exit(code, time.time_ns()))


class SimulatedProgram:
    """Says what it has to say, takes any input, and ends at once or when its container does."""

    def __init__(self, said: bytes, ended: asyncio.Future[Exit] | None = None) -> None:
        self._said = said
        self._ended = ended

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def output(self) -> AsyncIterator[tuple[Stream, bytes]]:
        if self._said:
            yield Stream.OUTPUT, self._said
        if self._ended:
            await asyncio.shield(self._ended)

    async def wait(self) -> int:
        return 0

    async def write(self, data: bytes) -> None: ...

    async def end_input(self) -> None: ...

    async def resize(self, size: Size) -> None: ...

    async def signal(self, signal: Signal) -> None: ...


class SimulatedBackend:
    def __init__(self) -> None:
        self._made: dict[str, ContainerParts] = {}
        self._started: dict[str, int] = {}
        self._ended: dict[str, asyncio.Future[Exit]] = {}

    async def open(self, known: Collection[str]) -> None:
        del known

    async def close(self) -> None:
        pass

    def describe(self) -> dict[str, object]:
        return {"kind": "simulated", "containers": len(self._made)}

    def trouble(self, isolation: Isolation = Isolation.PROCESS) -> str:
        is_process = isolation is Isolation.PROCESS
        return "" if is_process else "a simulation has process isolation only."

    async def make_sandbox(self, asked: SandboxAsked) -> Path | None:
        del asked
        return None

    def connecting(self, sandbox: str) -> None:
        del sandbox

    async def connected(self, sandbox: str, interface: str, result: Mapping[str, Any]) -> None:
        del sandbox, interface, result

    async def processors(self, sandbox: str) -> int:
        del sandbox
        return len(os.sched_getaffinity(0))

    async def dial(self, sandbox: str, port: int, addresses: Sequence[str]) -> None:
        del sandbox, port, addresses

    async def until_sandbox_dies(self, sandbox: str) -> None:
        del sandbox
        await asyncio.Future()

    async def remove_sandbox(self, sandbox: str) -> None:
        del sandbox

    async def resize_sandbox(self, sandbox: str, memory_bytes: int, processors: int) -> None:
        del sandbox, memory_bytes, processors

    async def make(self, asked: ContainerParts) -> None:
        self._made[asked.id] = asked

    async def start(self, container: str) -> None:
        asked = self._get(container)
        self._started[container] = time.time_ns()
        loop = asyncio.get_running_loop()
        ended = self._ended[container] = loop.create_future()
        self._log(asked, f"simulated: {asked.plan.command_line}")
        if script := script_of(asked.plan.command_line.split()):
            loop.call_later(script.seconds, _end, ended, script.code)

    async def signal(self, container: str, *, kill: bool) -> None:
        if ended := self._ended.get(container):
            _end(ended, TERMINATED if kill else 0)

    async def wait(self, container: str) -> Exit:
        ended = self._ended.get(container)
        if ended is None:
            return Exit(255, time.time_ns(), "Unknown", "the simulation did not survive a restart")
        return await asyncio.shield(ended)

    async def was_started(self, container: str) -> bool:
        return container in self._started

    async def is_running(self, container: str) -> bool:
        ended = self._ended.get(container)
        return ended is not None and not ended.done()

    async def remove(self, container: str) -> None:
        await self.signal(container, kill=True)
        for table in (self._made, self._started, self._ended):
            table.pop(container, None)

    async def update(self, container: str, limits: Enforced) -> None:
        del limits
        self._get(container)

    async def usage(self, container: str) -> Usage:
        now = time.time_ns()
        if not await self.is_running(container):
            return Usage(now)
        age = now - self._started[container]
        return Usage(now, age // 100, _MEMORY, _MEMORY, 1, 4096, charged_bytes=_MEMORY, threads=1)

    async def reopen_log(self, container: str) -> None:
        self._log(self._get(container), "simulated: log opened again")

    async def run(self, container: str, command: Sequence[str], seconds: float) -> Output:
        self._get(container)
        script = script_of(command) or Script(0, 0)
        async with asyncio.timeout(seconds or None):
            await asyncio.sleep(script.seconds)
        return Output(script.code, f"simulated: {' '.join(command)}\r\n".encode(), b"")

    async def exec(
        self, container: str, command: Sequence[str], *, terminal: Size | None, stdin: bool
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

    def _get(self, container: str) -> ContainerParts:
        if asked := self._made.get(container):
            return asked
        raise NotFound(f"there is no simulated container {container}.")

    def _log(self, asked: ContainerParts, text: str) -> None:
        if asked.log_path:
            path = Path(asked.log_path)
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8") as log:
                log.write(f"{datetime.now(UTC).isoformat()} stdout F {text}\n")
