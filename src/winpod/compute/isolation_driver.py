"""The interface of an isolation driver: silos on the host, or in a microVM of the pod.

A driver keeps its state of a sandbox in the sandbox's directory, and its state of a container in
the directory of the container's silo. Both survive a restart of the daemon, and may be removed when
they are incomplete.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from winpod.compute.backend import ContainerConfig, ContainerUsage, SandboxSpec
from winpod.compute.resources import ResourceLimits
from winpod.compute.silo_pool import Silo
from winpod.windows.builds import Build


class IsolationDriver(Protocol):
    @property
    def boot_build(self) -> Build:
        """The Windows build that silos boot as, before they get the build of an image."""

    async def open(self) -> None:
        """Recover after a restart: destroy what was only kept warm, and start filling the pool."""

    async def close(self) -> None: ...

    def describe(self) -> Mapping[str, object]: ...

    def unavailable_reason(self) -> str:
        """Explain why no pod can be created at present; empty if one can."""

    async def create_sandbox(self, spec: SandboxSpec, sandbox: Path) -> Path | None:
        """Create a sandbox. Returns its network namespace if it already has one."""

    def netns_ready(self, sandbox: Path) -> None:
        """Notify that the sandbox's network namespace exists."""

    async def network_ready(self, sandbox: Path, interface: str, result: Mapping[str, Any]) -> None:
        """Notify that the sandbox's interface is configured."""

    async def cpu_count(self, sandbox: Path) -> int:
        """Return the number of processors that the sandbox's programs see."""

    async def dial(
        self, sandbox: Path, port: int, addresses: Sequence[str]
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """Connect to a port as a program in the sandbox would. Raises OSError if refused.

        None means that the caller has to connect in the sandbox's network namespace.
        """

    async def wait_dead(self, sandbox: Path) -> None:
        """Return if all containers of a sandbox died without being stopped; else never."""

    def is_alive(self, folder: Path) -> bool:
        """Report whether the microVM of the silo in a directory runs; True without microVM."""

    async def remove_sandbox(self, sandbox: Path) -> None:
        """Stop everything in a sandbox and remove its mounts."""

    def silo(self, folder: Path) -> Silo:
        """Return the silo in a directory."""

    async def create_silo(self, config: ContainerConfig, sandbox: Path, folder: Path) -> Silo:
        """Create a silo for a container. Its Windows may still boot when this returns."""

    async def attach_rootfs(
        self, silo: Silo, config: ContainerConfig, sandbox: SandboxSpec, folder: Path
    ) -> None:
        """Apply the container's hostname and limits, and mount its drive C:."""

    def rootfs_path(self, folder: Path) -> Path | None:
        """Return where the container's drive C: is visible on the host while its silo runs."""

    async def wait_ready(self, silo: Silo) -> None: ...

    async def write_resolv_conf(self, silo: Silo, text: str) -> None:
        """Configure DNS once Windows is up. It looks up its own name as it boots, and would
        wait for the answer."""

    async def set_limits(self, silo: Silo, limits: ResourceLimits) -> None: ...

    async def resize_sandbox(self, sandbox: Path, memory_bytes: int, processors: int) -> None:
        """Resize the sandbox's microVM, if it has one. A zero leaves a value unchanged."""

    async def usage(self, silo: Silo) -> ContainerUsage: ...

    async def kill(self, folder: Path) -> None:
        """Kill everything in a silo."""

    async def destroy(self, folder: Path) -> None:
        """Remove a silo, also a partially created one."""
