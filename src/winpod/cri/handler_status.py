"""Availability of runtime handlers, and the accelerator of microVMs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from winpod.compute.backend import Backend
from winpod.compute.hypervisor.accelerator import Accelerator
from winpod.windows.builds import Build
from winpod.windows.handlers import Handler
from winpod.windows.isolation import Isolation, guest_fits_host

HYPERVISOR_INFO, SANDBOX_INFO = "hypervisor", "info"
"""Info keys with the accelerator in verbose Status and PodSandboxStatus."""


def reported_accelerator(info: Mapping[str, str], part: str) -> str:
    """Read the accelerator from verbose info; empty for runtimes that do not report it."""
    try:
        content = json.loads(info.get(part, "{}"))
    except ValueError:
        return ""
    accelerator = content.get("accelerator") if isinstance(content, dict) else None
    return accelerator if isinstance(accelerator, str) else ""


def available_handlers(
    handlers: Iterable[Handler], host: Build, reasons: Mapping[Isolation, str]
) -> list[Handler]:
    """Return handlers that can start pods. A guest must not be newer than its host."""
    return [
        handler
        for handler in handlers
        if guest_fits_host(handler.kernel_build(host), host) and not reasons[handler.isolation]
    ]


@dataclass(frozen=True, slots=True)
class HandlerStatus:
    """Status of handlers. `accelerator` is set even if guests cannot start."""

    host: Build
    backend: Backend
    accelerator: Accelerator | None = None

    def unavailable_reason(self, handler: Handler) -> str:
        """Return why pods of the handler cannot start; empty if they can."""
        guest = handler.kernel_build(self.host)
        if not guest_fits_host(guest, self.host):
            return f"a guest of build {guest} cannot run on the older {self.host.describe()}."
        return self.backend.unavailable_reason(handler.isolation)

    def available(self, handlers: Iterable[Handler]) -> list[Handler]:
        reasons = {isolation: self.backend.unavailable_reason(isolation) for isolation in Isolation}
        return available_handlers(handlers, self.host, reasons)

    def accelerator_of(self, handler: Handler) -> str:
        is_guest = handler.isolation is Isolation.HYPERVISOR
        return self.accelerator or "" if is_guest else ""

    def describe(self) -> Mapping[str, object]:
        """Describe the accelerator, or why hypervisor isolation is unavailable."""
        reason = self.backend.unavailable_reason(Isolation.HYPERVISOR)
        return {"accelerator": None if reason else self.accelerator, "trouble": reason or None}
