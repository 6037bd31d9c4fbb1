"""A whole runtime that is only in memory, for nodes by the thousand in one process.

It answers as the server does, to whoever calls it, and has no socket, no files and no images:
every image is there, and every container runs until it is told to stop or its command says so.
Nothing survives it.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Iterable
from ipaddress import ip_network
from typing import Any

import grpc
from google.protobuf.message import Message

from winpod import __version__
from winpod.compute.simulated import TERMINATED, script_of
from winpod.cri.events import Events
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import Client, RemoteError, Unimplemented, function_name
from winpod.cri.state import Container, Phase, Sandbox
from winpod.cri.statuses import (
    container_item,
    container_state,
    container_status,
    sandbox_item,
    sandbox_state,
    sandbox_status,
)
from winpod.network.attachments import Attachment
from winpod.network.simulated import SimulatedNetworks
from winpod.windows.handlers import KNOWN, Handlers
from winpod.windows.isolation import Isolation


class MemoryRuntime(Client):
    """Called as a client calls: there is nobody between the two."""

    def __init__(self, handlers: Handlers = KNOWN) -> None:
        self._handlers = handlers
        self._networks = SimulatedNetworks(())
        self._events = Events()
        self._sandboxes: dict[str, Sandbox] = {}
        self._containers: dict[str, Container] = {}
        self._ends: dict[str, asyncio.TimerHandle] = {}

    async def call(self, name: str, request: Message) -> Any:
        function = getattr(self, function_name(name), None)
        if function is None:
            raise Unimplemented(name)
        return await function(request)

    async def stream(self, name: str, request: Message) -> AsyncIterator[Any]:
        if name != "GetContainerEvents":
            raise Unimplemented(name)
        del request
        async for event in self._events.listen():
            yield event

    async def close(self) -> None:
        for end in self._ends.values():
            end.cancel()
        self._events.close()

    async def version(self, request: api.VersionRequest) -> api.VersionResponse:
        del request
        return api.VersionResponse(runtime_name="winpod", runtime_version=__version__)

    async def status(self, request: api.StatusRequest) -> api.StatusResponse:
        del request
        trouble = await self._networks.trouble()
        names = (h.name for h in self._handlers if h.isolation is Isolation.PROCESS)
        return api.StatusResponse(
            status=api.RuntimeStatus(
                conditions=[
                    api.RuntimeCondition(type="RuntimeReady", status=True),
                    api.RuntimeCondition(type="NetworkReady", status=not trouble, message=trouble),
                ]
            ),
            runtime_handlers=[api.RuntimeHandler(name=name) for name in ("", *names)],
        )

    async def update_runtime_config(
        self, request: api.UpdateRuntimeConfigRequest
    ) -> api.UpdateRuntimeConfigResponse:
        told = request.runtime_config.network_config.pod_cidr.split(",")
        self._networks.use([ip_network(subnet) for subnet in told if subnet])
        return api.UpdateRuntimeConfigResponse()

    async def list_images(self, request: api.ListImagesRequest) -> api.ListImagesResponse:
        del request
        return api.ListImagesResponse()

    async def image_status(self, request: api.ImageStatusRequest) -> api.ImageStatusResponse:
        return api.ImageStatusResponse(image=api.Image(id=request.image.image, spec=request.image))

    async def pull_image(self, request: api.PullImageRequest) -> api.PullImageResponse:
        return api.PullImageResponse(image_ref=request.image.image)

    async def run_pod_sandbox(self, request: api.RunPodSandboxRequest) -> api.RunPodSandboxResponse:
        sandbox = Sandbox(
            secrets.token_hex(32),
            request.config.metadata.name,
            request.runtime_handler,
            request.config.SerializeToString(),
            Phase.RUNNING,
            time.time_ns(),
        )
        attached = await self._networks.connect(Attachment(sandbox.id))
        sandbox.ips = " ".join(attached.addresses)
        self._sandboxes[sandbox.id] = sandbox
        self._tell(sandbox.id, api.CONTAINER_STARTED_EVENT, sandbox)
        return api.RunPodSandboxResponse(pod_sandbox_id=sandbox.id)

    async def stop_pod_sandbox(
        self, request: api.StopPodSandboxRequest
    ) -> api.StopPodSandboxResponse:
        if sandbox := self._sandboxes.get(request.pod_sandbox_id):
            for container in self._of(sandbox):
                self._end(container, TERMINATED)
            await self._networks.disconnect(sandbox.id)
            if sandbox.phase is Phase.RUNNING:
                sandbox.phase = Phase.EXITED
                self._tell(sandbox.id, api.CONTAINER_STOPPED_EVENT, sandbox)
        return api.StopPodSandboxResponse()

    async def remove_pod_sandbox(
        self, request: api.RemovePodSandboxRequest
    ) -> api.RemovePodSandboxResponse:
        stop = api.StopPodSandboxRequest(pod_sandbox_id=request.pod_sandbox_id)
        await self.stop_pod_sandbox(stop)
        if sandbox := self._sandboxes.get(request.pod_sandbox_id):
            for container in self._of(sandbox):
                del self._containers[container.id]
            del self._sandboxes[sandbox.id]
            self._tell(sandbox.id, api.CONTAINER_DELETED_EVENT, sandbox)
        return api.RemovePodSandboxResponse()

    async def pod_sandbox_status(
        self, request: api.PodSandboxStatusRequest
    ) -> api.PodSandboxStatusResponse:
        sandbox = self._sandbox(request.pod_sandbox_id)
        return api.PodSandboxStatusResponse(
            status=sandbox_status(sandbox),
            containers_statuses=self._statuses(sandbox),
            timestamp=time.time_ns(),
        )

    async def list_pod_sandbox(
        self, request: api.ListPodSandboxRequest
    ) -> api.ListPodSandboxResponse:
        wanted = request.filter
        return api.ListPodSandboxResponse(
            items=[
                sandbox_item(sandbox)
                for sandbox in self._sandboxes.values()
                if wanted.id in ("", sandbox.id)
                and (not wanted.HasField("state") or wanted.state.state == sandbox_state(sandbox))
                and wanted.label_selector.items() <= dict(sandbox.known.labels).items()
            ]
        )

    async def create_container(
        self, request: api.CreateContainerRequest
    ) -> api.CreateContainerResponse:
        sandbox = self._sandbox(request.pod_sandbox_id)
        config, image = request.config, request.config.image.image
        container = Container(
            secrets.token_hex(32),
            sandbox.id,
            config.metadata.name,
            config.SerializeToString(),
            Phase.CREATED,
            time.time_ns(),
            image,
            image,
            "",
        )
        self._containers[container.id] = container
        self._tell(container.id, api.CONTAINER_CREATED_EVENT, sandbox)
        return api.CreateContainerResponse(container_id=container.id)

    async def start_container(
        self, request: api.StartContainerRequest
    ) -> api.StartContainerResponse:
        container = self._container(request.container_id)
        container.phase, container.started_at = Phase.RUNNING, time.time_ns()
        if script := script_of([*container.known.command, *container.known.args]):
            loop = asyncio.get_running_loop()
            self._ends[container.id] = loop.call_later(
                script.seconds, self._end, container, script.code
            )
        self._tell(container.id, api.CONTAINER_STARTED_EVENT, self._sandbox(container.sandbox))
        return api.StartContainerResponse()

    async def stop_container(self, request: api.StopContainerRequest) -> api.StopContainerResponse:
        if container := self._containers.get(request.container_id):
            self._end(container, 0)
        return api.StopContainerResponse()

    async def remove_container(
        self, request: api.RemoveContainerRequest
    ) -> api.RemoveContainerResponse:
        if container := self._containers.pop(request.container_id, None):
            self._end(container, TERMINATED)
            sandbox = self._sandbox(container.sandbox)
            self._tell(container.id, api.CONTAINER_DELETED_EVENT, sandbox)
        return api.RemoveContainerResponse()

    async def container_status(
        self, request: api.ContainerStatusRequest
    ) -> api.ContainerStatusResponse:
        container = self._container(request.container_id)
        handler = self._sandbox(container.sandbox).handler
        return api.ContainerStatusResponse(status=container_status(container, handler))

    async def list_containers(
        self, request: api.ListContainersRequest
    ) -> api.ListContainersResponse:
        wanted = request.filter
        return api.ListContainersResponse(
            containers=[
                container_item(container, "")
                for container in self._containers.values()
                if wanted.id in ("", container.id)
                and wanted.pod_sandbox_id in ("", container.sandbox)
                and (
                    not wanted.HasField("state") or wanted.state.state == container_state(container)
                )
                and wanted.label_selector.items() <= dict(container.known.labels).items()
            ]
        )

    async def update_container_resources(
        self, request: api.UpdateContainerResourcesRequest
    ) -> api.UpdateContainerResourcesResponse:
        container = self._container(request.container_id)
        container.known.windows.resources.CopyFrom(request.windows)
        return api.UpdateContainerResourcesResponse()

    async def exec_sync(self, request: api.ExecSyncRequest) -> api.ExecSyncResponse:
        self._container(request.container_id)
        script = script_of(list(request.cmd))
        return api.ExecSyncResponse(exit_code=script.code if script else 0)

    async def list_container_stats(
        self, request: api.ListContainerStatsRequest
    ) -> api.ListContainerStatsResponse:
        del request
        return api.ListContainerStatsResponse()

    async def list_pod_sandbox_stats(
        self, request: api.ListPodSandboxStatsRequest
    ) -> api.ListPodSandboxStatsResponse:
        del request
        return api.ListPodSandboxStatsResponse()

    def _end(self, container: Container, code: int) -> None:
        if end := self._ends.pop(container.id, None):
            end.cancel()
        if container.phase is Phase.RUNNING:
            container.phase, container.exit_code = Phase.EXITED, code
            container.finished_at = time.time_ns()
            container.reason = "Completed" if code == 0 else "Error"
            sandbox = self._sandbox(container.sandbox)
            self._tell(container.id, api.CONTAINER_STOPPED_EVENT, sandbox)

    def _of(self, sandbox: Sandbox) -> list[Container]:
        return [c for c in self._containers.values() if c.sandbox == sandbox.id]

    def _statuses(self, sandbox: Sandbox) -> Iterable[api.ContainerStatus]:
        return [container_status(one, sandbox.handler) for one in self._of(sandbox)]

    def _sandbox(self, id_: str) -> Sandbox:
        if id_ not in self._sandboxes:
            raise _not_found("pod sandbox", id_)
        return self._sandboxes[id_]

    def _container(self, id_: str) -> Container:
        if id_ not in self._containers:
            raise _not_found("container", id_)
        return self._containers[id_]

    def _tell(self, id_: str, kind: api.ContainerEventType, sandbox: Sandbox) -> None:
        self._events.tell(
            api.ContainerEventResponse(
                container_id=id_,
                container_event_type=kind,
                created_at=time.time_ns(),
                pod_sandbox_status=sandbox_status(sandbox),
                containers_statuses=self._statuses(sandbox),
            )
        )


def _not_found(kind: str, id_: str) -> RemoteError:
    return RemoteError(grpc.StatusCode.NOT_FOUND, f"there is no {kind} {id_}.")
