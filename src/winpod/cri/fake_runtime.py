"""In-memory fake runtime, for thousands of simulated nodes in one process.

It answers like the CRI server but has no socket, no files and no images: every image is present,
and a container runs until it is stopped or its scripted command ends. Nothing is persisted.
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
from winpod.compute.simulated import TERMINATED, parse_script
from winpod.cri.convert import (
    to_container_item,
    to_container_state,
    to_container_status,
    to_sandbox_item,
    to_sandbox_state,
    to_sandbox_status,
)
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import CriClient, RemoteError, Unimplemented, function_name
from winpod.cri.services.runtime import ContainerEventBus
from winpod.cri.state import ContainerRecord, Phase, SandboxRecord
from winpod.network.attachments import Attachment
from winpod.network.simulated import SimulatedSandboxNetwork
from winpod.windows.handlers import BUILTIN_HANDLERS, Handlers
from winpod.windows.isolation import Isolation


class FakeRuntime(CriClient):
    """CriClient that calls the fake implementation directly, without gRPC."""

    def __init__(self, handlers: Handlers = BUILTIN_HANDLERS) -> None:
        self._handlers = handlers
        self._networks = SimulatedSandboxNetwork(())
        self._events = ContainerEventBus()
        self._sandboxes: dict[str, SandboxRecord] = {}
        self._containers: dict[str, ContainerRecord] = {}
        self._exit_timers: dict[str, asyncio.TimerHandle] = {}

    async def call(self, name: str, request: Message) -> Any:
        function = getattr(self, function_name(name), None)
        if function is None:
            raise Unimplemented(name)
        return await function(request)

    async def stream(self, name: str, request: Message) -> AsyncIterator[Any]:
        if name != "GetContainerEvents":
            raise Unimplemented(name)
        del request
        async for event in self._events.subscribe():
            yield event

    async def close(self) -> None:
        for timer in self._exit_timers.values():
            timer.cancel()
        self._events.close()

    async def version(self, request: api.VersionRequest) -> api.VersionResponse:
        del request
        return api.VersionResponse(runtime_name="winpod", runtime_version=__version__)

    async def status(self, request: api.StatusRequest) -> api.StatusResponse:
        del request
        reason = await self._networks.unavailable_reason()
        names = (h.name for h in self._handlers if h.isolation is Isolation.PROCESS)
        return api.StatusResponse(
            status=api.RuntimeStatus(
                conditions=[
                    api.RuntimeCondition(type="RuntimeReady", status=True),
                    api.RuntimeCondition(type="NetworkReady", status=not reason, message=reason),
                ]
            ),
            runtime_handlers=[api.RuntimeHandler(name=name) for name in ("", *names)],
        )

    async def update_runtime_config(
        self, request: api.UpdateRuntimeConfigRequest
    ) -> api.UpdateRuntimeConfigResponse:
        subnets = request.runtime_config.network_config.pod_cidr.split(",")
        self._networks.set_subnets([ip_network(subnet) for subnet in subnets if subnet])
        return api.UpdateRuntimeConfigResponse()

    async def list_images(self, request: api.ListImagesRequest) -> api.ListImagesResponse:
        del request
        return api.ListImagesResponse()

    async def image_status(self, request: api.ImageStatusRequest) -> api.ImageStatusResponse:
        return api.ImageStatusResponse(image=api.Image(id=request.image.image, spec=request.image))

    async def pull_image(self, request: api.PullImageRequest) -> api.PullImageResponse:
        return api.PullImageResponse(image_ref=request.image.image)

    async def run_pod_sandbox(self, request: api.RunPodSandboxRequest) -> api.RunPodSandboxResponse:
        sandbox = SandboxRecord(
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
        self._publish(sandbox.id, api.CONTAINER_STARTED_EVENT, sandbox)
        return api.RunPodSandboxResponse(pod_sandbox_id=sandbox.id)

    async def stop_pod_sandbox(
        self, request: api.StopPodSandboxRequest
    ) -> api.StopPodSandboxResponse:
        if sandbox := self._sandboxes.get(request.pod_sandbox_id):
            for container in self._containers_of(sandbox):
                self._exit(container, TERMINATED)
            await self._networks.disconnect(sandbox.id)
            if sandbox.phase is Phase.RUNNING:
                sandbox.phase = Phase.EXITED
                self._publish(sandbox.id, api.CONTAINER_STOPPED_EVENT, sandbox)
        return api.StopPodSandboxResponse()

    async def remove_pod_sandbox(
        self, request: api.RemovePodSandboxRequest
    ) -> api.RemovePodSandboxResponse:
        stop = api.StopPodSandboxRequest(pod_sandbox_id=request.pod_sandbox_id)
        await self.stop_pod_sandbox(stop)
        if sandbox := self._sandboxes.get(request.pod_sandbox_id):
            for container in self._containers_of(sandbox):
                del self._containers[container.id]
            del self._sandboxes[sandbox.id]
            self._publish(sandbox.id, api.CONTAINER_DELETED_EVENT, sandbox)
        return api.RemovePodSandboxResponse()

    async def pod_sandbox_status(
        self, request: api.PodSandboxStatusRequest
    ) -> api.PodSandboxStatusResponse:
        sandbox = self._sandbox(request.pod_sandbox_id)
        return api.PodSandboxStatusResponse(
            status=to_sandbox_status(sandbox),
            containers_statuses=self._statuses(sandbox),
            timestamp=time.time_ns(),
        )

    async def list_pod_sandbox(
        self, request: api.ListPodSandboxRequest
    ) -> api.ListPodSandboxResponse:
        filter_ = request.filter
        return api.ListPodSandboxResponse(
            items=[
                to_sandbox_item(sandbox)
                for sandbox in self._sandboxes.values()
                if filter_.id in ("", sandbox.id)
                and (
                    not filter_.HasField("state")
                    or filter_.state.state == to_sandbox_state(sandbox)
                )
                and filter_.label_selector.items() <= dict(sandbox.parsed_config.labels).items()
            ]
        )

    async def create_container(
        self, request: api.CreateContainerRequest
    ) -> api.CreateContainerResponse:
        sandbox = self._sandbox(request.pod_sandbox_id)
        config, image = request.config, request.config.image.image
        container = ContainerRecord(
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
        self._publish(container.id, api.CONTAINER_CREATED_EVENT, sandbox)
        return api.CreateContainerResponse(container_id=container.id)

    async def start_container(
        self, request: api.StartContainerRequest
    ) -> api.StartContainerResponse:
        container = self._container(request.container_id)
        container.phase, container.started_at = Phase.RUNNING, time.time_ns()
        if script := parse_script(
            [*container.parsed_config.command, *container.parsed_config.args]
        ):
            loop = asyncio.get_running_loop()
            self._exit_timers[container.id] = loop.call_later(
                script.seconds, self._exit, container, script.code
            )
        self._publish(container.id, api.CONTAINER_STARTED_EVENT, self._sandbox(container.sandbox))
        return api.StartContainerResponse()

    async def stop_container(self, request: api.StopContainerRequest) -> api.StopContainerResponse:
        if container := self._containers.get(request.container_id):
            self._exit(container, 0)
        return api.StopContainerResponse()

    async def remove_container(
        self, request: api.RemoveContainerRequest
    ) -> api.RemoveContainerResponse:
        if container := self._containers.pop(request.container_id, None):
            self._exit(container, TERMINATED)
            sandbox = self._sandbox(container.sandbox)
            self._publish(container.id, api.CONTAINER_DELETED_EVENT, sandbox)
        return api.RemoveContainerResponse()

    async def container_status(
        self, request: api.ContainerStatusRequest
    ) -> api.ContainerStatusResponse:
        container = self._container(request.container_id)
        handler = self._sandbox(container.sandbox).handler
        return api.ContainerStatusResponse(status=to_container_status(container, handler))

    async def list_containers(
        self, request: api.ListContainersRequest
    ) -> api.ListContainersResponse:
        filter_ = request.filter
        return api.ListContainersResponse(
            containers=[
                to_container_item(container, "")
                for container in self._containers.values()
                if filter_.id in ("", container.id)
                and filter_.pod_sandbox_id in ("", container.sandbox)
                and (
                    not filter_.HasField("state")
                    or filter_.state.state == to_container_state(container)
                )
                and filter_.label_selector.items() <= dict(container.parsed_config.labels).items()
            ]
        )

    async def update_container_resources(
        self, request: api.UpdateContainerResourcesRequest
    ) -> api.UpdateContainerResourcesResponse:
        container = self._container(request.container_id)
        container.parsed_config.windows.resources.CopyFrom(request.windows)
        return api.UpdateContainerResourcesResponse()

    async def exec_sync(self, request: api.ExecSyncRequest) -> api.ExecSyncResponse:
        self._container(request.container_id)
        script = parse_script(list(request.cmd))
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

    def _exit(self, container: ContainerRecord, code: int) -> None:
        if timer := self._exit_timers.pop(container.id, None):
            timer.cancel()
        if container.phase is Phase.RUNNING:
            container.phase, container.exit_code = Phase.EXITED, code
            container.finished_at = time.time_ns()
            container.reason = "Completed" if code == 0 else "Error"
            sandbox = self._sandbox(container.sandbox)
            self._publish(container.id, api.CONTAINER_STOPPED_EVENT, sandbox)

    def _containers_of(self, sandbox: SandboxRecord) -> list[ContainerRecord]:
        return [c for c in self._containers.values() if c.sandbox == sandbox.id]

    def _statuses(self, sandbox: SandboxRecord) -> Iterable[api.ContainerStatus]:
        return [
            to_container_status(container, sandbox.handler)
            for container in self._containers_of(sandbox)
        ]

    def _sandbox(self, id_: str) -> SandboxRecord:
        if id_ not in self._sandboxes:
            raise _not_found("pod sandbox", id_)
        return self._sandboxes[id_]

    def _container(self, id_: str) -> ContainerRecord:
        if id_ not in self._containers:
            raise _not_found("container", id_)
        return self._containers[id_]

    def _publish(self, id_: str, kind: api.ContainerEventType, sandbox: SandboxRecord) -> None:
        self._events.publish(
            api.ContainerEventResponse(
                container_id=id_,
                container_event_type=kind,
                created_at=time.time_ns(),
                pod_sandbox_status=to_sandbox_status(sandbox),
                containers_statuses=self._statuses(sandbox),
            )
        )


def _not_found(kind: str, id_: str) -> RemoteError:
    return RemoteError(grpc.StatusCode.NOT_FOUND, f"{kind} {id_} not found.")
