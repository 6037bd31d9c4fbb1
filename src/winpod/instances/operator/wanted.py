"""What instances should be like now: the settings, the payload and the cluster, as they are.

A payload that cannot be used is told of every instance that would need it, and nothing is changed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from winpod.cluster.instance_settings import InstanceSettings
from winpod.instances.cluster.cluster_place import ClusterPlace
from winpod.instances.cluster.resource import WindowsInstance
from winpod.instances.rules.desired import Desired
from winpod.instances.rules.state import State
from winpod.instances.software.blueprint import blueprint, everything_of_ours
from winpod.instances.software.joining import Joining
from winpod.instances.software.payload import LIST, Payload, read_payload
from winpod.node.access import file_version
from winpod.windows.errors import Unavailable, WinpodError

T = TypeVar("T")
_LOOK_SECONDS = 10.0
_log = logging.getLogger(__name__)


class Wanted:
    """`find` says where the cluster is; `on_change` hears that payload or cluster are others."""

    def __init__(
        self,
        directory: Path,
        settings: Callable[[], InstanceSettings],
        find: Callable[[], Awaitable[ClusterPlace]],
        on_change: Callable[[], None],
    ) -> None:
        self._directory = directory
        self._settings = settings
        self._find = find
        self._on_change = on_change
        self._version: tuple[int, int] | None = None
        self._payload: Payload | WinpodError = Unavailable("the payload is not read yet.")
        self._place: ClusterPlace | WinpodError = Unavailable("the cluster is not found yet.")

    async def run(self) -> None:
        while True:
            await self._look()
            await asyncio.sleep(_LOOK_SECONDS)

    async def _look(self) -> None:
        before = (self._payload, self._place)
        version = file_version(self._directory / LIST)
        if version != self._version or isinstance(self._payload, WinpodError):
            self._payload = await asyncio.to_thread(_read, self._directory)
            self._version = version
        try:
            self._place = await self._find()
        except WinpodError as error:
            if not isinstance(self._place, ClusterPlace):
                self._place = error
        if _shown(before) != _shown((self._payload, self._place)):
            _log.info("instances: %s; %s", *_shown((self._payload, self._place)))
            self._on_change()

    def desired(self, instance: WindowsInstance, state: State, token: str, subnet: str) -> Desired:
        settings = self._settings()
        if instance.is_leaving:
            return everything_of_ours(settings)
        payload, place = _there(self._payload), _there(self._place)
        joining = Joining(
            place.url,
            place.authority,
            node=state.hostname.lower(),
            address=instance.spec.address,
            token=token,
            subnet=subnet,
        )
        return blueprint(settings, payload, state.build, joining)


def _there(found: T | WinpodError) -> T:
    if isinstance(found, WinpodError):
        raise found
    return found


def _read(directory: Path) -> Payload | WinpodError:
    try:
        return read_payload(directory)
    except WinpodError as error:
        return error


def _shown(found: tuple[Payload | WinpodError, ClusterPlace | WinpodError]) -> tuple[str, str]:
    payload, place = found
    version = f"payload {payload.version}" if isinstance(payload, Payload) else str(payload)
    return version, place.url if isinstance(place, ClusterPlace) else str(place)
