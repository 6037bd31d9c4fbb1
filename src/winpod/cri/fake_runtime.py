"""A runtime without a server, files or images, for thousands of simulated nodes in one process.

It runs the services of the CRI server over the simulated backend and network, with records in
memory only. Every image is present. There are no logs, no statistics and no streaming.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import Message

from winpod.compute.simulated import SimulatedBackend
from winpod.compute.spec import ImageConfig
from winpod.cri.handler_status import HandlerStatus
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import CriClient, RemoteError, Unimplemented, function_name
from winpod.cri.services.containers import ContainerService
from winpod.cri.services.runtime import RuntimeService
from winpod.cri.services.sandboxes import SandboxService
from winpod.cri.state import ContainerRecord, NameInUse, RuntimeState, SandboxRecord
from winpod.errors import WinpodError
from winpod.images.store.records import StoredImage
from winpod.network.simulated import SimulatedSandboxNetwork
from winpod.windows.builds import Build
from winpod.windows.handlers import BUILTIN_HANDLERS, Handlers

_CPUS = 1
"""CPU limits are not applied, so the number of CPUs does not matter."""


class FakeRuntime(CriClient):
    """CriClient that calls the services directly, without gRPC."""

    def __init__(self, host: Build, handlers: Handlers = BUILTIN_HANDLERS) -> None:
        state, backend, networks = MemoryState(), SimulatedBackend(), SimulatedSandboxNetwork(())
        handler_status = HandlerStatus(host, backend)
        self._runtime = RuntimeService(state, handlers, backend, handler_status, networks)
        on_change = self._runtime.publish_event
        self._containers = ContainerService(state, backend, _EveryImage(), host, _CPUS, on_change)
        self._sandboxes = SandboxService(
            state,
            backend,
            networks,
            handlers,
            handler_status,
            self._containers.kill_container,
            self._containers.remove,
            on_change,
        )

    async def call(self, name: str, request: Message) -> Any:
        """Call the first service that implements the method; errors are as over gRPC."""
        for service in (self, self._runtime, self._sandboxes, self._containers):
            if function := getattr(service, function_name(name), None):
                try:
                    return await function(request)
                except WinpodError as error:
                    raise RemoteError(grpc.StatusCode[error.code], str(error)) from error
        raise Unimplemented(name)

    async def stream(self, name: str, request: Message) -> AsyncIterator[Any]:
        if name != "GetContainerEvents":
            raise Unimplemented(name)
        del request
        async for event in self._runtime.get_container_events(api.GetEventsRequest()):
            yield event

    async def close(self) -> None:
        self._runtime.close()
        self._sandboxes.close()
        self._containers.close()

    async def list_images(self, request: api.ListImagesRequest) -> api.ListImagesResponse:
        del request
        return api.ListImagesResponse()

    async def image_status(self, request: api.ImageStatusRequest) -> api.ImageStatusResponse:
        return api.ImageStatusResponse(image=api.Image(id=request.image.image, spec=request.image))

    async def pull_image(self, request: api.PullImageRequest) -> api.PullImageResponse:
        return api.PullImageResponse(image_ref=request.image.image)

    async def create_container(
        self, request: api.CreateContainerRequest
    ) -> api.CreateContainerResponse:
        without_log = api.CreateContainerRequest()
        without_log.CopyFrom(request)
        without_log.config.log_path = ""
        return await self._containers.create_container(without_log)

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


class MemoryState(RuntimeState):
    """Records that are not persisted: an SQLite database takes 100 KiB, more than ten pods."""

    def __init__(self) -> None:
        self.sandboxes = {}
        self.containers = {}
        self._by_sandbox = {}

    def add(self, record: SandboxRecord | ContainerRecord) -> None:
        if any(other.name == record.name for other in self._table(record).values()):
            raise NameInUse(record)
        self._add_to_cache(record)

    def save(self, record: SandboxRecord | ContainerRecord, **changes: Any) -> None:
        for name, value in changes.items():
            setattr(record, name, value)

    def delete(self, record: SandboxRecord | ContainerRecord) -> None:
        self._remove_from_cache(record)

    def close(self) -> None:
        pass


class _EveryImage:
    """Images that are present under every name, with a command."""

    async def find(self, image: api.ImageSpec, sandbox: SandboxRecord) -> StoredImage:
        del sandbox
        return StoredImage(
            id=image.image,
            handler="",
            host="",
            manifest="",
            tags=(),
            digests=(),
            architecture="",
            os_version="",
            size=0,
            pinned=False,
            pulled_at=0.0,
            layers=(),
        )

    def config(self, image: StoredImage) -> ImageConfig:
        return ImageConfig(cmd=(image.id,))

    def layers(self, image: StoredImage) -> Sequence[Path]:
        del image
        return ()

    async def retain(self, container_id: str, image: StoredImage) -> None: ...

    async def release(self, container_id: str) -> None: ...
