"""What the page shows beside nodes and pods, followed: upgrades, and refusals of every replica."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime

from lightkube.models import core_v1 as v1

from winpod.cluster.page.state import RefusedPod
from winpod.cluster.telling import REFUSED
from winpod.cluster.upgrade.resource import UPGRADES, WindowsUpgrade
from winpod.node.api import ApiServer
from winpod.node.following import Following

_MOST_EVENTS = 500


class Happenings:
    def __init__(self, api: ApiServer) -> None:
        self._upgrades = _Upgrades()
        self._events = _Refusals()
        self._followings = (
            Following(api, WindowsUpgrade, UPGRADES, self._upgrades),
            Following(
                api,
                v1.Event,
                "/api/v1/events",
                self._events,
                {"fieldSelector": f"reason={REFUSED}"},
            ),
        )

    async def run(self) -> None:
        await asyncio.gather(*(following.run() for following in self._followings))

    @property
    def upgrades(self) -> Collection[WindowsUpgrade]:
        return self._upgrades.known.values()

    def refused(self) -> Iterable[RefusedPod]:
        return self._events.known.values()


class _Upgrades:
    def __init__(self) -> None:
        self.known: dict[str, WindowsUpgrade] = {}

    async def listed(self, objects: Sequence[WindowsUpgrade]) -> None:
        self.known = {obj.name: obj for obj in objects}

    def changed(self, obj: WindowsUpgrade) -> None:
        self.known[obj.name] = obj

    def deleted(self, obj: WindowsUpgrade) -> None:
        self.known.pop(obj.name, None)


class _Refusals:
    """The newest; events end by themselves after a while."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, str], RefusedPod] = {}

    async def listed(self, objects: Sequence[v1.Event]) -> None:
        self.known = {}
        for obj in objects:
            self.changed(obj)

    def changed(self, obj: v1.Event) -> None:
        self.known.pop(_key(obj), None)
        self.known[_key(obj)] = RefusedPod(
            obj.lastTimestamp or datetime.now(UTC),
            obj.involvedObject.namespace or "",
            obj.involvedObject.name or "",
            obj.message or "",
            obj.count or 1,
        )
        while len(self.known) > _MOST_EVENTS:
            del self.known[next(iter(self.known))]

    def deleted(self, obj: v1.Event) -> None:
        self.known.pop(_key(obj), None)


def _key(event: v1.Event) -> tuple[str, str]:
    metadata = event.metadata
    return (metadata.namespace or "", metadata.name or "")
