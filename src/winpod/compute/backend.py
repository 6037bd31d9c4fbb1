"""What makes containers run: the one face that the CRI server has of it.

A backend is told to make, start, end and remove things by id, may be told twice, and answers what
is true after a restart of this process. There are real containers, and simulated ones for scale.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self

from winpod.compute.agent import Signal, Size, Stream
from winpod.compute.plan import Plan
from winpod.compute.resources import Enforced
from winpod.windows.builds import Build
from winpod.windows.isolation import Isolation


@dataclass(frozen=True, slots=True)
class SandboxAsked:
    """What a pod's containers share."""

    id: str
    hostname: str
    servers: Sequence[str] = ()
    searches: Sequence[str] = ()
    options: Sequence[str] = ()
    isolation: Isolation = Isolation.PROCESS
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ContainerParts:
    """One container, planned, and where its parts are.

    A log that has a limit keeps itself within it; others are looked after by who asked for them.
    """

    id: str
    sandbox: str
    plan: Plan
    build: Build
    layers: tuple[Path, ...]
    log_path: str
    log_limit: int


@dataclass(frozen=True, slots=True)
class Exit:
    """How a container's program ended; the code has 32 bits, as Windows'."""

    code: int
    finished_at: int
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Usage:
    """What a container has used and uses.

    The working set is memory that no file backs and only its processes have; the commit is that and
    what was swapped out or is shared among them; charged is all that counts against its limit.
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
class Output:
    code: int
    stdout: bytes
    stderr: bytes


class Joined(Protocol):
    """The streams of a program in a container, for one client; leaving the context lets go."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> None: ...

    def output(self) -> AsyncIterator[tuple[Stream, bytes]]:
        """What the program writes from now on, in the order it came, until it has ended."""

    async def write(self, data: bytes) -> None: ...

    async def end_input(self) -> None: ...

    async def resize(self, size: Size) -> None: ...


class Executed(Joined, Protocol):
    """A further program that was started; leaving the context ends it, if it has not ended."""

    async def signal(self, signal: Signal) -> None: ...

    async def wait(self) -> int:
        """The exit code, 32 bits without a sign. What is written meanwhile is dropped."""


class Backend(Protocol):
    async def open(self, known: Collection[str]) -> None:
        """Before anything else: what belongs to no known sandbox or container is ended."""

    async def close(self) -> None:
        """What only waited is ended; sandboxes and containers go on."""

    def describe(self) -> Mapping[str, object]:
        """What it is, for people."""

    def trouble(self, isolation: Isolation = Isolation.PROCESS) -> str:
        """Why no container can be made here and now, empty where one can."""

    async def make_sandbox(self, asked: SandboxAsked) -> Path | None:
        """The network namespace that the sandbox should have, where there is one already."""

    def connecting(self, sandbox: str) -> None:
        """Its network namespace is there, and what containers need besides may be begun."""

    async def connected(self, sandbox: str, interface: str, result: Mapping[str, Any]) -> None:
        """Its network is there, as its plugins answered; the sandbox is when this returns."""

    async def until_sandbox_dies(self, sandbox: str) -> None:
        """Returns when what its containers need besides its network is gone; else never."""

    async def remove_sandbox(self, sandbox: str) -> None: ...

    async def processors(self, sandbox: str) -> int:
        """How many its programs see."""

    async def dial(
        self, sandbox: str, port: int, addresses: Sequence[str]
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """A connection to a port as a program of the sandbox would make it; OSError where nobody
        listens. None where that is made in the sandbox's network namespace."""

    async def resize_sandbox(self, sandbox: str, memory_bytes: int, processors: int) -> None:
        """What a sandbox has as a whole, where it has that; a zero leaves it as it is."""

    async def make(self, asked: ContainerParts) -> None: ...

    async def start(self, container: str) -> None: ...

    async def signal(self, container: str, *, kill: bool) -> None:
        """The stop event, or the end of everything in the container."""

    async def wait(self, container: str) -> Exit:
        """Until the container's program has ended; at once if it has. Survives a restart."""

    async def was_started(self, container: str) -> bool:
        """Whether a start that was cut short came as far as the container's program."""

    async def is_running(self, container: str) -> bool: ...

    async def remove(self, container: str) -> None: ...

    async def update(self, container: str, limits: Enforced) -> None: ...

    async def usage(self, container: str) -> Usage: ...

    async def reopen_log(self, container: str) -> None: ...

    async def run(self, container: str, command: Sequence[str], seconds: float) -> Output:
        """A further program in the container, to its end; TimeoutError when that takes longer."""

    async def exec(
        self, container: str, command: Sequence[str], *, terminal: Size | None, stdin: bool
    ) -> Executed:
        """A further program, with the environment, directory and user of the container's own."""

    async def attach(self, container: str, *, stdin: bool) -> Joined:
        """The streams of the container's own program, as others may have them at the same time."""
