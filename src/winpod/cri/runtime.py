"""The runtime itself: what it is, whether it is ready, what it can do, and what happens in it."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import AsyncIterator
from importlib.metadata import version
from ipaddress import ip_network

from winpod import __version__
from winpod.compute.backend import Backend
from winpod.cri.events import Events
from winpod.cri.proto import api_pb2 as api
from winpod.cri.sandboxes import Networks
from winpod.cri.state import Sandbox, State
from winpod.cri.statuses import container_status, sandbox_status
from winpod.windows.builds import Build
from winpod.windows.errors import InvalidInput
from winpod.windows.handlers import Handler, Handlers
from winpod.windows.isolation import guest_fits_host

KUBELET_API = "0.1.0"
NAME = "winpod"


class Runtime:
    """Handlers that cannot start here and now are told to people, and not to the kubelet."""

    def __init__(
        self, state: State, host: Build, handlers: Handlers, backend: Backend, networks: Networks
    ) -> None:
        self._state = state
        self._host = host
        self._handlers = handlers
        self._backend = backend
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
        names = (handler.name for handler in self._handlers if self._can_start(handler))
        return api.StatusResponse(
            status=api.RuntimeStatus(conditions=conditions),
            info=self._info() if request.verbose else {},
            runtime_handlers=[
                api.RuntimeHandler(name=name, features=api.RuntimeHandlerFeatures())
                for name in ("", *names)
            ],
            features=api.RuntimeFeatures(),
        )

    def _info(self) -> dict[str, str]:
        told = {
            "host": {"build": str(self._host), "name": self._host.describe()},
            "handlers": [self._described(handler) for handler in self._handlers],
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

    def _can_start(self, handler: Handler) -> bool:
        """Under a hypervisor a guest is never newer than its host."""
        fits = guest_fits_host(handler.kernel(self._host), self._host)
        return fits and not self._backend.trouble(handler.isolation)

    def _described(self, handler: Handler) -> dict[str, object]:
        return {
            "name": handler.name,
            "isolation": handler.isolation,
            "build": str(handler.kernel(self._host)),
            "can_start": self._can_start(handler),
        }

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
        """Resources of a pod as a whole are for Linux; Windows has them for containers only."""
        self._state.sandbox(request.pod_sandbox_id)
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
