"""Simulated backend with hypervisor isolation."""

from pathlib import Path

from winpod.compute.backend import SandboxSpec
from winpod.compute.simulated import SimulatedBackend
from winpod.windows.isolation import Isolation


class GuestBackend(SimulatedBackend):
    """Simulated backend for both isolations that records its requests."""

    def __init__(self, missing: str = "") -> None:
        super().__init__()
        self.missing = missing
        self.specs: list[SandboxSpec] = []

    def unavailable_reason(self, isolation: Isolation = Isolation.PROCESS) -> str:
        return self.missing if isolation is Isolation.HYPERVISOR else ""

    async def create_sandbox(self, spec: SandboxSpec) -> Path | None:
        self.specs.append(spec)
        return await super().create_sandbox(spec)
