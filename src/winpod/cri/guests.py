"""Which handlers can start here and now, and what runs the instructions of pods in microVMs."""

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
"""Where a verbose Status and a verbose PodSandboxStatus tell it."""


def told_accelerator(info: Mapping[str, str], part: str) -> str:
    """What a runtime tells of it, empty where it tells nothing, as others than ours do."""
    try:
        told = json.loads(info.get(part, "{}"))
    except ValueError:
        return ""
    found = told.get("accelerator") if isinstance(told, dict) else None
    return found if isinstance(found, str) else ""


def startable(
    handlers: Iterable[Handler], host: Build, troubles: Mapping[Isolation, str]
) -> list[Handler]:
    """Those that nothing stands against; a guest is never newer than its host."""
    return [
        handler
        for handler in handlers
        if guest_fits_host(handler.kernel(host), host) and not troubles[handler.isolation]
    ]


@dataclass(frozen=True, slots=True)
class Guests:
    """`accelerator` is what guests would have, whether or not they can start."""

    host: Build
    backend: Backend
    accelerator: Accelerator | None = None

    def trouble(self, handler: Handler) -> str:
        """Why its pods cannot start, empty where they can."""
        guest = handler.kernel(self.host)
        if not guest_fits_host(guest, self.host):
            return f"a guest of build {guest} cannot run on the older {self.host.describe()}."
        return self.backend.trouble(handler.isolation)

    def startable(self, handlers: Iterable[Handler]) -> list[Handler]:
        troubles = {isolation: self.backend.trouble(isolation) for isolation in Isolation}
        return startable(handlers, self.host, troubles)

    def accelerator_of(self, handler: Handler) -> str:
        is_guest = handler.isolation is Isolation.HYPERVISOR
        return self.accelerator or "" if is_guest else ""

    def describe(self) -> Mapping[str, object]:
        """For people, and for the node: what runs guests, or why there are none."""
        trouble = self.backend.trouble(Isolation.HYPERVISOR)
        return {"accelerator": None if trouble else self.accelerator, "trouble": trouble or None}
