"""The interface between the CRI server and what runs the containers.

All operations are idempotent, address sandboxes and containers by id, and answer correctly after a
restart of the daemon. `WineBackend` runs real containers, `SimulatedBackend` none, for scale tests.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self

from winpod.compute.agent.client import Stream, TerminalSize
from winpod.compute.agent.protocol import Signal
from winpod.compute.resources import ResourceLimits
from winpod.compute.spec import ContainerSpec
from winpod.windows.builds import Build
from winpod.windows.isolation import Isolation


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """The settings that a pod's containers share."""

    id: str
    hostname: str
    servers: Sequence[str] = ()
    searches: Sequence[str] = ()
    options: Sequence[str] = ()
    isolation: Isolation = Isolation.PROCESS
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ContainerConfig:
    """A container's spec and where its parts are.

    A log with a limit is rotated by wproxy; without one, the CRI client rotates it.
    """

    id: str
    sandbox: str
    spec: ContainerSpec
    build: Build
    layers: tuple[Path, ...]
    log_path: str
    log_limit: int


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """How a container's program ended. Exit codes have 32 bits, as on Windows."""

    code: int
    finished_at: int
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class ContainerUsage:
    """Resource usage of a container.

    The working set is anonymous memory of its processes only. The commit adds swapped and shared
    memory. Charged is everything that counts against the memory limit.
    """

    timestamp: int
    cpu_nanoseconds: int = 0
    working_set_bytes: int = 0
    commit_bytes: int = 0
    processes: int = 0
    disk_bytes: int = 0
    charged_bytes: int = 0
    threads: int = 0
    out_of_memory_kills: int = 0
    disk_inodes: int = 0
    mountpoint: str = ""


@dataclass(frozen=True, slots=True)
class ExecOutput:
    code: int
    stdout: bytes
    stderr: bytes


class ProgramStreams(Protocol):
    """The streams of a program in a container, for one client. Leaving the context detaches."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> None: ...

    def output(self) -> AsyncIterator[tuple[Stream, bytes]]:
        """Yield what the program writes from now on, in order, until it exits."""

    async def write(self, data: bytes) -> None: ...

    async def close_stdin(self) -> None: ...

    async def resize(self, size: TerminalSize) -> None: ...


class ExecSession(ProgramStreams, Protocol):
    """A program started by exec. Leaving the context terminates it if it still runs."""

    async def signal(self, signal: Signal) -> None: ...

    async def wait(self) -> int:
        """Return the exit code as an unsigned 32-bit number. Drops output that is not read."""


class Backend(Protocol):
    async def open(self, known_ids: Collection[str]) -> None:
        """Remove sandboxes and containers with other ids. Must be called first."""

    async def close(self) -> None:
        """Destroy what is only kept warm. Sandboxes and containers keep running."""

    def describe(self) -> Mapping[str, object]:
        """Return facts for the CRI's verbose status."""

    def unavailable_reason(self, isolation: Isolation = Isolation.PROCESS) -> str:
        """Explain why no container can be created at present; empty if one can."""

    async def create_sandbox(self, spec: SandboxSpec) -> Path | None:
        """Create a sandbox. Returns its network namespace if it already has one."""

    def netns_ready(self, sandbox: str) -> None:
        """Notify that the network namespace exists, so that silos can boot in it."""

    async def network_ready(self, sandbox: str, interface: str, result: Mapping[str, Any]) -> None:
        """Notify of the CNI result. The sandbox is ready when this returns."""

    async def wait_sandbox_exit(self, sandbox: str) -> None:
        """Return if the sandbox's microVM ends. Never returns for other sandboxes."""

    async def remove_sandbox(self, sandbox: str) -> None: ...

    async def cpu_count(self, sandbox: str) -> int:
        """Return the number of processors that the sandbox's programs see."""

    async def dial(
        self, sandbox: str, port: int, addresses: Sequence[str]
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """Connect to a port as a program in the sandbox would. Raises OSError if refused.

        None means that the caller has to connect in the sandbox's network namespace.
        """

    async def resize_sandbox(self, sandbox: str, memory_bytes: int, processors: int) -> None:
        """Resize the sandbox's microVM, if it has one. A zero leaves a value unchanged."""

    async def create_container(self, config: ContainerConfig) -> None: ...

    async def start(self, container: str) -> None: ...

    async def signal(self, container: str, *, kill: bool) -> None:
        """Send the stop event, or kill everything in the container."""

    async def wait(self, container: str) -> ExitStatus:
        """Wait for the container's program to exit, also if a previous daemon started it."""

    async def was_started(self, container: str) -> bool:
        """Report whether an interrupted start got as far as the container's program."""

    async def is_running(self, container: str) -> bool: ...

    async def remove(self, container: str) -> None: ...

    async def update(self, container: str, limits: ResourceLimits) -> None: ...

    async def usage(self, container: str) -> ContainerUsage: ...

    async def reopen_log(self, container: str) -> None: ...

    async def exec_sync(self, container: str, command: Sequence[str], seconds: float) -> ExecOutput:
        """Run a program in the container to its end. Raises TimeoutError."""

    async def exec(
        self, container: str, command: Sequence[str], *, terminal: TerminalSize | None, stdin: bool
    ) -> ExecSession:
        """Start a program with the environment, directory and user of the container."""

    async def attach(self, container: str, *, stdin: bool) -> ProgramStreams:
        """Attach to the container's own program. Several clients may be attached."""
