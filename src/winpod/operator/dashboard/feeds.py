"""Watches upgrades, and rejections of all replicas, for the dashboard."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence

from winpod.clock import utc_now
from winpod.k8s.client import ApiClient
from winpod.k8s.informer import Reflector
from winpod.k8s.models import core_v1 as v1
from winpod.operator.dashboard.state import RefusedPod
from winpod.operator.events import REFUSED
from winpod.operator.upgrade.resource import UPGRADES, WindowsUpgrade

_MAX_EVENTS = 500


class DashboardFeeds:
    def __init__(self, api: ApiClient) -> None:
        self._upgrades = _Upgrades()
        self._events = _Refusals()
        self._reflectors = (
            Reflector(api, WindowsUpgrade, UPGRADES, self._upgrades),
            Reflector(
                api,
                v1.Event,
                "/api/v1/events",
                self._events,
                {"fieldSelector": f"reason={REFUSED}"},
            ),
        )

    async def run(self) -> None:
        await asyncio.gather(*(reflector.run() for reflector in self._reflectors))

    @property
    def upgrades(self) -> Collection[WindowsUpgrade]:
        return self._upgrades.objects.values()

    def refused(self) -> Iterable[RefusedPod]:
        return self._events.objects.values()


class _Upgrades:
    def __init__(self) -> None:
        self.objects: dict[str, WindowsUpgrade] = {}

    async def on_list(self, objects: Sequence[WindowsUpgrade]) -> None:
        self.objects = {obj.name: obj for obj in objects}

    def on_change(self, obj: WindowsUpgrade) -> None:
        self.objects[obj.name] = obj

    def on_delete(self, obj: WindowsUpgrade) -> None:
        self.objects.pop(obj.name, None)


class _Refusals:
    """The latest rejections; the API server expires events."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], RefusedPod] = {}

    async def on_list(self, objects: Sequence[v1.Event]) -> None:
        self.objects = {}
        for obj in objects:
            self.on_change(obj)

    def on_change(self, obj: v1.Event) -> None:
        self.objects.pop(_key(obj), None)
        self.objects[_key(obj)] = RefusedPod(
            obj.lastTimestamp or utc_now(),
            obj.involvedObject.namespace or "",
            obj.involvedObject.name or "",
            obj.message or "",
            obj.count or 1,
        )
        while len(self.objects) > _MAX_EVENTS:
            del self.objects[next(iter(self.objects))]

    def on_delete(self, obj: v1.Event) -> None:
        self.objects.pop(_key(obj), None)


def _key(event: v1.Event) -> tuple[str, str]:
    metadata = event.metadata
    return (metadata.namespace or "", metadata.name or "")
