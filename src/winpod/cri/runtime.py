"""The runtime itself: what it is, whether it is ready, what it can do, and what happens in it."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import AsyncIterator, Collection
from importlib.metadata import version
from ipaddress import ip_network

from winpod import __version__
from winpod.compute.backend import Backend
from winpod.compute.resources import PERIOD_US
from winpod.cri.events import Events
from winpod.cri.guests import HYPERVISOR_INFO, Guests
from winpod.cri.proto import api_pb2 as api
from winpod.cri.sandboxes import Networks
from winpod.cri.state import Sandbox, State
from winpod.cri.statuses import container_status, sandbox_status
from winpod.windows.errors import InvalidInput
from winpod.windows.handlers import Handler, Handlers

KUBELET_API = "0.1.0"
NAME = "winpod"


class Runtime:
    """Handlers that cannot start here and now are told to people, and not to the kubelet."""

    def __init__(
        self, state: State, handlers: Handlers, backend: Backend, guests: Guests, networks: Networks
    ) -> None:
        self._state = state
        self._handlers = handlers
        self._backend = backend
        self._guests = guests
        self._networks = networks
        self._events = Events()

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
            _condition("RuntimeReady", "ComputeNotReady", self._backend.trouble()),
            _condition("NetworkReady", "NetworkPluginNotReady", await self._networks.trouble()),
        ]
        startable = self._guests.startable(self._handlers)
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
        host = self._guests.host
        told = {
            "host": {"build": str(host), "name": host.describe()},
            "handlers": [
                {
                    "name": handler.name,
                    "isolation": handler.isolation,
                    "build": str(handler.kernel(host)),
                    "can_start": handler in startable,
                }
                for handler in self._handlers
            ],
            HYPERVISOR_INFO: self._guests.describe(),
            "compute": self._backend.describe(),
            "network": self._networks.describe(),
            "versions": {
                "winpod": __version__,
                "python": platform.python_version(),
                "grpc": version("grpcio"),
                "kernel": platform.release(),
            },
        }
        return {name: json.dumps(value) for name, value in told.items()}

    async def runtime_config(self, request: api.RuntimeConfigRequest) -> api.RuntimeConfigResponse:
        del request
        return api.RuntimeConfigResponse()

    async def update_runtime_config(
        self, request: api.UpdateRuntimeConfigRequest
    ) -> api.UpdateRuntimeConfigResponse:
        """The node's pod CIDR, one of each family."""
        told = request.runtime_config.network_config.pod_cidr
        try:
            subnets = [ip_network(subnet) for subnet in told.split(",") if subnet]
        except ValueError as error:
            raise InvalidInput(f"{told} is no subnet for pods: {error}.") from None
        if subnets:
            self._networks.use(subnets)
        return api.UpdateRuntimeConfigResponse()

    async def update_pod_sandbox_resources(
        self, request: api.UpdatePodSandboxResourcesRequest
    ) -> api.UpdatePodSandboxResourcesResponse:
        """A microVM takes another size; elsewhere Windows has resources for containers only."""
        sandbox = self._state.sandbox(request.pod_sandbox_id)
        asked = request.resources
        quota, period = max(asked.cpu_quota, 0), asked.cpu_period or PERIOD_US
        await self._backend.resize_sandbox(
            sandbox.id, max(asked.memory_limit_in_bytes, 0), -(-quota // period)
        )
        return api.UpdatePodSandboxResourcesResponse()

    async def get_container_events(
        self, request: api.GetEventsRequest
    ) -> AsyncIterator[api.ContainerEventResponse]:
        del request
        async for event in self._events.listen():
            yield event

    def close(self) -> None:
        self._events.close()

    def changed(self, id_: str, kind: api.ContainerEventType, sandbox: Sandbox) -> None:
        """Tell everybody who listens."""
        if not self._events.has_listeners:
            return
        self._events.tell(
            api.ContainerEventResponse(
                container_id=id_,
                container_event_type=kind,
                created_at=time.time_ns(),
                pod_sandbox_status=sandbox_status(sandbox),
                containers_statuses=[
                    container_status(container, sandbox.handler)
                    for container in self._state.containers_of(sandbox)
                ],
            )
        )


def _condition(kind: str, reason: str, trouble: str) -> api.RuntimeCondition:
    if not trouble:
        return api.RuntimeCondition(type=kind, status=True)
    return api.RuntimeCondition(type=kind, status=False, reason=reason, message=trouble)
