"""Which handlers can start here and now, and what runs the instructions of pods in microVMs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from winpod.compute.backend import Backend
from winpod.compute.hypervisor.accelerator import Accelerator
from winpod.windows.builds import Build
from winpod.windows.handlers import Handler
from winpod.windows.isolation import Isolation, guest_fits_host


@dataclass(frozen=True, slots=True)
class Guests:
    """`accelerator` is what guests would have, whether or not they can start."""

    host: Build
    backend: Backend
    accelerator: Accelerator | None = None

    def trouble(self, handler: Handler) -> str:
        """Why its pods cannot start, empty where they can."""
        return self._misfit(handler) or self.backend.trouble(handler.isolation)

    def _misfit(self, handler: Handler) -> str:
        guest = handler.kernel(self.host)
        if guest_fits_host(guest, self.host):
            return ""
        return f"a guest of build {guest} cannot run on the older {self.host.describe()}."

    def startable(self, handlers: Iterable[Handler]) -> list[Handler]:
        troubles = {isolation: self.backend.trouble(isolation) for isolation in Isolation}
        return [h for h in handlers if not self._misfit(h) and not troubles[h.isolation]]

    def accelerator_of(self, handler: Handler) -> str:
        is_guest = handler.isolation is Isolation.HYPERVISOR
        return self.accelerator or "" if is_guest else ""

    def describe(self) -> Mapping[str, object]:
        """For people, and for the node: what runs guests, or why there are none."""
        trouble = self.backend.trouble(Isolation.HYPERVISOR)
        return {"accelerator": None if trouble else self.accelerator, "trouble": trouble or None}
