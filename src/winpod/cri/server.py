"""CRI server: wires the services to one state, image store, network and compute backend."""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

import grpc.aio

from winpod.compute.backend import Backend
from winpod.compute.hypervisor.accelerator import Accelerator
from winpod.cri.handler_status import HandlerStatus
from winpod.cri.idle import IdleTracker
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import IMAGE, RUNTIME, add_service, new_server
from winpod.cri.services.auto_remove import AutoRemove
from winpod.cri.services.containers import ContainerService
from winpod.cri.services.exec import ExecService
from winpod.cri.services.images import ImageService, StoredContainerImages
from winpod.cri.services.metrics import MetricsService
from winpod.cri.services.runtime import RuntimeService
from winpod.cri.services.sandboxes import SandboxNetwork, SandboxService
from winpod.cri.services.stats import StatsService, UsageMeter
from winpod.cri.state import RuntimeState, SandboxRecord
from winpod.errors import InvalidInput
from winpod.images.pull.puller import Puller
from winpod.images.store.store import Store
from winpod.windows.builds import Build
from winpod.windows.handlers import BUILTIN_HANDLERS, Handlers

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class ServerComponents:
    """Components of a server. The creator closes them."""

    state: RuntimeState
    store: Store
    puller: Puller
    backend: Backend
    networks: SandboxNetwork
    host: Build
    handlers: Handlers = BUILTIN_HANDLERS
    accelerator: Accelerator | None = None


class ListenFailed(InvalidInput):
    """A listen address is in use or invalid."""


class CriServer:
    """The CRI server. Serves calls once the state of an earlier process is recovered."""

    def __init__(self, components: ServerComponents) -> None:
        state, backend = components.state, components.backend
        self._state, self._backend = state, backend
        handler_status = HandlerStatus(components.host, backend, components.accelerator)
        self._runtime = RuntimeService(
            state, components.handlers, backend, handler_status, components.networks
        )
        self._ready = False
        cpus = len(os.sched_getaffinity(0))
        on_change = self._on_change
        container_images = StoredContainerImages(
            components.store, components.host, components.handlers
        )
        self._containers = ContainerService(
            state, backend, container_images, components.host, cpus, on_change
        )
        self._sandboxes = SandboxService(
            state,
            backend,
            components.networks,
            components.handlers,
            handler_status,
            self._containers.kill_container,
            self._containers.remove,
            on_change,
        )
        images = ImageService(
            components.store,
            components.puller,
            components.host,
            components.handlers,
            self._sandboxes.handler_of,
        )
        self._auto_remove = AutoRemove(state, self._sandboxes)
        self._idle_tracker = IdleTracker()
        self._server = new_server(self._idle_tracker)
        meter = UsageMeter(state, backend, components.networks)
        self._exec = ExecService(state, backend, components.networks, self._idle_tracker)
        services = (
            self._runtime,
            self._sandboxes,
            self._containers,
            StatsService(state, meter),
            MetricsService(state, meter),
            self._exec,
        )
        for descriptor, implementations in ((RUNTIME, services), (IMAGE, (images,))):
            add_service(
                self._server,
                descriptor,
                *implementations,
                ready=lambda: self._ready,
                find_subject=state.log_fields,
            )

    def _on_change(self, id_: str, kind: api.ContainerEventType, sandbox: SandboxRecord) -> None:
        self._runtime.publish_event(id_, kind, sandbox)
        if id_ != sandbox.id and kind == api.CONTAINER_STOPPED_EVENT:
            self._auto_remove.check(sandbox)
        elif id_ != sandbox.id and kind == api.CONTAINER_DELETED_EVENT:
            self._auto_remove.delete_log(id_, sandbox)

    async def start(self, *addresses: str) -> None:
        """Listen on `unix:PATH` and `HOST:PORT`, and return when the state is recovered.

        A stale socket is replaced. Calls fail with NotInitialized until then.
        """
        for address in addresses:
            _listen(self._server, address)
        await self._exec.start(addresses)
        await self._server.start()
        await self._containers.recover()
        await self._sandboxes.recover()
        await self._auto_remove.recover()
        await self._backend.open([*self._state.sandboxes, *self._state.containers])
        self._ready = True

    async def wait(self) -> None:
        await self._server.wait_for_termination()

    async def wait_idle(self, seconds: float) -> None:
        """Wait until there were no calls for that long and no removal is pending."""
        await self._idle_tracker.wait_idle(seconds)
        while self._auto_remove.has_pending:
            await asyncio.sleep(1)
            await self._idle_tracker.wait_idle(seconds)

    async def stop(self) -> None:
        """Stop serving after a grace period for pending calls. Containers keep running."""
        self._runtime.close()
        self._sandboxes.close()
        await self._server.stop(grace=5)
        await self._exec.stop()
        await self._auto_remove.wait_done()
        self._containers.close()
        await self._backend.close()


def _listen(server: grpc.aio.Server, address: str) -> None:
    path = Path(address.removeprefix("unix:")) if address.startswith("unix:") else None
    try:
        if path:
            path.parent.mkdir(parents=True, exist_ok=True)
        server.add_insecure_port(address)
    except (OSError, RuntimeError) as error:
        reason = str(error).partition(";")[0]
        raise ListenFailed(
            f"cannot listen on {address}: {reason}.",
            "Choose another --socket or --tcp, or stop the process that uses it.",
        ) from None
    if path:
        path.chmod(0o600)
    elif is_remote_address(address):
        _log.warning(
            "CRI endpoint %s is reachable from other hosts without authentication", address
        )


def is_remote_address(address: str) -> bool:
    """Whether a `HOST:PORT` is reachable from other machines."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return not ip_address(host).is_loopback
    except ValueError:
        return host != "localhost"
