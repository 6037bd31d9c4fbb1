"""Version, Status, RuntimeConfig and container event calls of the CRI RuntimeService."""

from __future__ import annotations

import asyncio
import json
import platform
import time
from collections.abc import AsyncIterator, Collection
from importlib.metadata import version
from ipaddress import ip_network

from winpod import __version__
from winpod.compute.backend import Backend
from winpod.compute.resources import CPU_PERIOD_US
from winpod.cri.convert import to_container_status, to_sandbox_status
from winpod.cri.handler_status import HYPERVISOR_INFO, HandlerStatus
from winpod.cri.proto import api_pb2 as api
from winpod.cri.services.sandboxes import SandboxNetwork
from winpod.cri.state import RuntimeState, SandboxRecord
from winpod.errors import InvalidInput
from winpod.windows.handlers import Handler, Handlers

_BACKLOG = 1000


class ContainerEventBus:
    """Fan-out of container events. A slow listener loses the oldest events."""

    def __init__(self) -> None:
        self._listeners: set[asyncio.Queue[api.ContainerEventResponse | None]] = set()

    @property
    def has_listeners(self) -> bool:
        return bool(self._listeners)

    def publish(self, event: api.ContainerEventResponse | None) -> None:
        for listener in self._listeners:
            if listener.full():
                listener.get_nowait()
            listener.put_nowait(event)

    def close(self) -> None:
        """End all subscriptions."""
        self.publish(None)

    async def subscribe(self) -> AsyncIterator[api.ContainerEventResponse]:
        queue: asyncio.Queue[api.ContainerEventResponse | None] = asyncio.Queue(_BACKLOG)
        self._listeners.add(queue)
        try:
            while event := await queue.get():
                yield event
        finally:
            self._listeners.discard(queue)


KUBELET_API = "0.1.0"
NAME = "winpod"


class RuntimeService:
    """Runtime calls. Unavailable handlers are listed in verbose info only, not for the kubelet."""

    def __init__(
        self,
        state: RuntimeState,
        handlers: Handlers,
        backend: Backend,
        handler_status: HandlerStatus,
        networks: SandboxNetwork,
    ) -> None:
        self._state = state
        self._handlers = handlers
        self._backend = backend
        self._handler_status = handler_status
        self._networks = networks
        self._events = ContainerEventBus()

    async def version(self, request: api.VersionRequest) -> api.VersionResponse:
        del request
        return api.VersionResponse(
            version=KUBELET_API,
            runtime_name=NAME,
            runtime_version=__version__,
            runtime_api_version="v1",
        )

    async def status(self, request: api.StatusRequest) -> api.StatusResponse:
        conditions = [
            _condition("RuntimeReady", "ComputeNotReady", self._backend.unavailable_reason()),
            _condition(
                "NetworkReady", "NetworkPluginNotReady", await self._networks.unavailable_reason()
            ),
        ]
        startable = self._handler_status.available(self._handlers)
        return api.StatusResponse(
            status=api.RuntimeStatus(conditions=conditions),
            info=self._info(startable) if request.verbose else {},
            runtime_handlers=[
                api.RuntimeHandler(name=name, features=api.RuntimeHandlerFeatures())
                for name in ("", *(handler.name for handler in startable))
            ],
            features=api.RuntimeFeatures(),
        )

    def _info(self, startable: Collection[Handler]) -> dict[str, str]:
        host = self._handler_status.host
        info = {
            "host": {"build": str(host), "name": host.describe()},
            "handlers": [
                {
                    "name": handler.name,
                    "isolation": handler.isolation,
                    "build": str(handler.kernel_build(host)),
                    "can_start": handler in startable,
                }
                for handler in self._handlers
            ],
            HYPERVISOR_INFO: self._handler_status.describe(),
            "compute": self._backend.describe(),
            "network": self._networks.describe(),
            "versions": {
                "winpod": __version__,
                "python": platform.python_version(),
                "grpc": version("grpcio"),
                "kernel": platform.release(),
            },
        }
        return {name: json.dumps(value) for name, value in info.items()}

    async def runtime_config(self, request: api.RuntimeConfigRequest) -> api.RuntimeConfigResponse:
        del request
        return api.RuntimeConfigResponse()

    async def update_runtime_config(
        self, request: api.UpdateRuntimeConfigRequest
    ) -> api.UpdateRuntimeConfigResponse:
        """Set the pod CIDR of the node: at most one per address family."""
        pod_cidr = request.runtime_config.network_config.pod_cidr
        try:
            subnets = [ip_network(subnet) for subnet in pod_cidr.split(",") if subnet]
        except ValueError as error:
            raise InvalidInput(f"invalid pod CIDR {pod_cidr}: {error}.") from None
        if subnets:
            self._networks.set_subnets(subnets)
        return api.UpdateRuntimeConfigResponse()

    async def update_pod_sandbox_resources(
        self, request: api.UpdatePodSandboxResourcesRequest
    ) -> api.UpdatePodSandboxResourcesResponse:
        """Resize the pod's microVM. With process isolation, only containers have limits."""
        sandbox = self._state.sandbox(request.pod_sandbox_id)
        resources = request.resources
        quota, period = max(resources.cpu_quota, 0), resources.cpu_period or CPU_PERIOD_US
        await self._backend.resize_sandbox(
            sandbox.id, max(resources.memory_limit_in_bytes, 0), -(-quota // period)
        )
        return api.UpdatePodSandboxResourcesResponse()

    async def get_container_events(
        self, request: api.GetEventsRequest
    ) -> AsyncIterator[api.ContainerEventResponse]:
        del request
        async for event in self._events.subscribe():
            yield event

    def close(self) -> None:
        self._events.close()

    def publish_event(self, id_: str, kind: api.ContainerEventType, sandbox: SandboxRecord) -> None:
        """Publish a container event to all listeners."""
        if not self._events.has_listeners:
            return
        self._events.publish(
            api.ContainerEventResponse(
                container_id=id_,
                container_event_type=kind,
                created_at=time.time_ns(),
                pod_sandbox_status=to_sandbox_status(sandbox),
                containers_statuses=[
                    to_container_status(container, sandbox.handler)
                    for container in self._state.containers_of(sandbox)
                ],
            )
        )


def _condition(kind: str, reason: str, message: str) -> api.RuntimeCondition:
    if not message:
        return api.RuntimeCondition(type=kind, status=True)
    return api.RuntimeCondition(type=kind, status=False, reason=reason, message=message)
