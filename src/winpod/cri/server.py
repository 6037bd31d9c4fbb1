"""The server: all of the CRI over one state, one store, one network and one backend."""

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
from winpod.cri.activity import Activity
from winpod.cri.containers import Containers
from winpod.cri.ended import Ended
from winpod.cri.guests import Guests
from winpod.cri.images import ImageService
from winpod.cri.metrics import Metrics
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import IMAGE, RUNTIME, add_service, new_server
from winpod.cri.runtime import Runtime
from winpod.cri.sandboxes import Networks, Sandboxes
from winpod.cri.state import Sandbox, State
from winpod.cri.stats import Stats
from winpod.cri.streams import Streams
from winpod.cri.usage import Meter
from winpod.images.pull import Puller
from winpod.images.store import Store
from winpod.windows.builds import Build
from winpod.windows.errors import InvalidInput
from winpod.windows.handlers import KNOWN, Handlers

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Parts:
    """What a server is made of; whoever made the parts closes them."""

    state: State
    store: Store
    puller: Puller
    backend: Backend
    networks: Networks
    host: Build
    handlers: Handlers = KNOWN
    accelerator: Accelerator | None = None


class CannotListen(InvalidInput):
    """An address is taken, or is none."""


class Server:
    """Answers once what an earlier process left half-done is settled."""

    def __init__(self, parts: Parts) -> None:
        state, backend = parts.state, parts.backend
        self._state, self._backend = state, backend
        guests = Guests(parts.host, backend, parts.accelerator)
        self._runtime = Runtime(state, parts.handlers, backend, guests, parts.networks)
        self._ready = False
        cpus = len(os.sched_getaffinity(0))
        changed = self._changed
        self._containers = Containers(
            state, backend, parts.store, parts.host, parts.handlers, cpus, changed
        )
        self._sandboxes = Sandboxes(
            state,
            backend,
            parts.networks,
            parts.handlers,
            guests,
            self._containers.end,
            self._containers.remove,
            changed,
        )
        images = ImageService(
            parts.store, parts.puller, parts.host, parts.handlers, self._sandboxes.handler_of
        )
        self._ended = Ended(state, self._sandboxes)
        self._activity = Activity()
        self._server = new_server(self._activity)
        meter = Meter(state, backend, parts.networks)
        self._streams = Streams(state, backend, parts.networks, self._activity)
        calls = (
            self._runtime,
            self._sandboxes,
            self._containers,
            Stats(state, meter),
            Metrics(state, meter),
            self._streams,
        )
        add_service(self._server, RUNTIME, *calls, ready=lambda: self._ready)
        add_service(self._server, IMAGE, images, ready=lambda: self._ready)

    def _changed(self, id_: str, kind: api.ContainerEventType, sandbox: Sandbox) -> None:
        self._runtime.changed(id_, kind, sandbox)
        if id_ != sandbox.id and kind == api.CONTAINER_STOPPED_EVENT:
            self._ended.look(sandbox)
        elif id_ != sandbox.id and kind == api.CONTAINER_DELETED_EVENT:
            self._ended.delete_log(id_, sandbox)

    async def start(self, *addresses: str) -> None:
        """Listen at `unix:PATH` and `HOST:PORT`, and return when everything is found again.

        A socket that nobody answers at is replaced. Calls that come too early are told so.
        """
        for address in addresses:
            _listen(self._server, address)
        await self._streams.start(addresses)
        await self._server.start()
        await self._containers.recover()
        await self._sandboxes.recover()
        await self._ended.recover()
        await self._backend.open([*self._state.sandboxes, *self._state.containers])
        self._ready = True

    async def wait(self) -> None:
        await self._server.wait_for_termination()

    async def until_idle(self, seconds: float) -> None:
        """Until nobody has asked for anything for that long, and nothing is to be removed."""
        await self._activity.until_idle(seconds)
        while self._ended.awaits:
            await asyncio.sleep(1)
            await self._activity.until_idle(seconds)

    async def stop(self) -> None:
        """Calls under way may end; containers go on."""
        self._runtime.close()
        self._sandboxes.close()
        await self._server.stop(grace=5)
        await self._streams.stop()
        await self._ended.finish()
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
        raise CannotListen(
            f"the runtime cannot listen at {address}: {reason}.",
            "Choose another --socket or --tcp, or end what listens there.",
        ) from None
    if path:
        path.chmod(0o600)
    elif reached_by_others(address):
        _log.warning("%s is open to everybody who reaches it, and nobody is asked who", address)


def reached_by_others(address: str) -> bool:
    """Whether a `HOST:PORT` is of more than this machine."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return not ip_address(host).is_loopback
    except ValueError:
        return host != "localhost"
