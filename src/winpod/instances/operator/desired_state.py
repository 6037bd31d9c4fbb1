"""Desired state of instances from the current settings, payload and cluster endpoint.

An unusable payload is reported for every instance that needs it, and nothing is changed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from winpod.errors import Unavailable, WinpodError
from winpod.instances.cluster.endpoint import ClusterEndpoint
from winpod.instances.cluster.resource import WindowsInstance
from winpod.instances.planner.desired import DesiredState
from winpod.instances.planner.state import InstanceState
from winpod.instances.software.desired_state import build_desired_state, desired_removal
from winpod.instances.software.kubelet_config import JoinConfig
from winpod.instances.software.payload import PAYLOAD_FILE, Payload, read_payload
from winpod.k8s.kubeconfig import file_version
from winpod.operator.instance_settings import InstanceSettings

T = TypeVar("T")
_REFRESH_SECONDS = 10.0
_log = logging.getLogger(__name__)


class DesiredStateSource:
    """Source of desired states.

    `find` locates the cluster endpoint; `on_change` is called when payload or endpoint change.
    """

    def __init__(
        self,
        directory: Path,
        settings: Callable[[], InstanceSettings],
        find: Callable[[], Awaitable[ClusterEndpoint]],
        on_change: Callable[[], None],
    ) -> None:
        self._directory = directory
        self._settings = settings
        self._find = find
        self._on_change = on_change
        self._version: tuple[int, int] | None = None
        self._payload: Payload | WinpodError = Unavailable("the payload has not been read yet.")
        self._endpoint: ClusterEndpoint | WinpodError = Unavailable(
            "the cluster endpoint has not been determined yet."
        )

    async def run(self) -> None:
        while True:
            await self._refresh()
            await asyncio.sleep(_REFRESH_SECONDS)

    async def _refresh(self) -> None:
        before = (self._payload, self._endpoint)
        version = file_version(self._directory / PAYLOAD_FILE)
        if version != self._version or isinstance(self._payload, WinpodError):
            self._payload = await asyncio.to_thread(_read, self._directory)
            self._version = version
        try:
            self._endpoint = await self._find()
        except WinpodError as error:
            if not isinstance(self._endpoint, ClusterEndpoint):
                self._endpoint = error
        if _describe(before) != _describe((self._payload, self._endpoint)):
            _log.info(
                "Instance payload and endpoint changed: %s; %s",
                *_describe((self._payload, self._endpoint)),
            )
            self._on_change()

    def desired(
        self, instance: WindowsInstance, state: InstanceState, token: str, subnet: str
    ) -> DesiredState:
        settings = self._settings()
        if instance.is_deleting:
            return desired_removal(settings)
        payload, endpoint = _unwrap(self._payload), _unwrap(self._endpoint)
        join = JoinConfig(
            endpoint.url,
            endpoint.authority,
            node=state.hostname.lower(),
            address=instance.spec.address,
            token=token,
            subnet=subnet,
        )
        return build_desired_state(settings, payload, state.build, join)


def _unwrap(result: T | WinpodError) -> T:
    if isinstance(result, WinpodError):
        raise result
    return result


def _read(directory: Path) -> Payload | WinpodError:
    try:
        return read_payload(directory)
    except WinpodError as error:
        return error


def _describe(
    result: tuple[Payload | WinpodError, ClusterEndpoint | WinpodError],
) -> tuple[str, str]:
    payload, endpoint = result
    version = f"payload {payload.version}" if isinstance(payload, Payload) else str(payload)
    return version, endpoint.url if isinstance(endpoint, ClusterEndpoint) else str(endpoint)
