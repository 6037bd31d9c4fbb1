"""Where the shells of a pod's containers are: on this machine, or in a microVM of the pod's own.

A house keeps what it has of a sandbox in the sandbox's directory, and what it has of a container in
the directory of the container's shell; both are there after a restart, and may be cleared however
much of them there is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from winpod.compute.backend import ContainerParts, SandboxAsked, Usage
from winpod.compute.resources import Enforced
from winpod.compute.shells import Room
from winpod.windows.builds import Build


class House(Protocol):
    @property
    def booted_as(self) -> Build:
        """What its shells say they are, before they are told what they shall be."""

    async def open(self) -> None:
        """After a restart: what only waited is ended, and what shall wait is begun."""

    async def close(self) -> None: ...

    def describe(self) -> Mapping[str, object]: ...

    def trouble(self) -> str:
        """Why no pod can be taken in here and now, empty where one can."""

    async def receive(self, asked: SandboxAsked, sandbox: Path) -> Path | None:
        """A sandbox; the network namespace that it should have, where there is one already."""

    def connecting(self, sandbox: Path) -> None:
        """Its network namespace is there."""

    async def connected(self, sandbox: Path, interface: str, result: Mapping[str, Any]) -> None:
        """Its interface is there too."""

    async def processors(self, sandbox: Path) -> int:
        """How many its programs see."""

    async def dial(
        self, sandbox: Path, port: int, addresses: Sequence[str]
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """A connection to a port as a program of the sandbox would make it; OSError where nobody
        listens. None where that is made in the sandbox's network namespace."""

    async def until_dead(self, sandbox: Path) -> None:
        """Returns when no container can go on in a sandbox that nobody has stopped; else never."""

    def stands(self, place: Path) -> bool:
        """Whether what the shell in a directory needs besides itself is there."""

    async def leave(self, sandbox: Path) -> None:
        """Nothing of it runs any more, and nothing in it is mounted."""

    def room(self, place: Path) -> Room:
        """The shell in a directory."""

    async def begin(self, asked: ContainerParts, sandbox: Path, place: Path) -> Room:
        """A shell for a container, which can be furnished while its Windows may still boot."""

    async def furnish(
        self, room: Room, asked: ContainerParts, sandbox: SandboxAsked, folder: Path
    ) -> None:
        """The container's name, limits, and drive."""

    def drive(self, folder: Path) -> Path | None:
        """Where the drive of a container is to be seen, while its shell lives."""

    async def until_up(self, room: Room) -> None: ...

    async def set_resolver(self, room: Room, text: str) -> None:
        """Once it is up: its Windows looks for its own name as it boots, and waits for answers."""

    async def limit(self, room: Room, limits: Enforced) -> None: ...

    async def resize(self, sandbox: Path, memory_bytes: int, processors: int) -> None:
        """What a sandbox has as a whole, where it has that; a zero leaves it as it is."""

    async def usage(self, room: Room) -> Usage: ...

    async def kill(self, place: Path) -> None:
        """All that runs in a shell."""

    async def end(self, place: Path) -> None:
        """All of a shell, however much of it there is."""
