"""Sandboxes: the place of a pod, from its network to its end."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from winpod.compute.backend import Backend, SandboxAsked
from winpod.compute.plan import HostProcessRefused
from winpod.compute.processes import to_its_end
from winpod.cri.guests import SANDBOX_INFO, Guests
from winpod.cri.proto import api_pb2 as api
from winpod.cri.state import Container, Phase, Sandbox, State
from winpod.cri.statuses import container_status, sandbox_item, sandbox_state, sandbox_status
from winpod.cri.turns import Turns
from winpod.network.attachments import INTERFACE, Attached, Attachment, Dns, PortMapping
from winpod.network.counters import Counters
from winpod.network.settings import Subnet
from winpod.windows.errors import InvalidInput, NotFound, WinpodError
from winpod.windows.handlers import Handler, Handlers
from winpod.windows.isolation import Isolation

_log = logging.getLogger(__name__)
_PAGE = 100
_PROTOCOLS = {api.TCP: "tcp", api.UDP: "udp", api.SCTP: "sctp"}


class Networks(Protocol):
    async def connect(
        self, attachment: Attachment, netns: Path | None, opened: Callable[[], None]
    ) -> Attached:
        """In the given namespace, which the sandbox keeps, or in a new one.

        `opened` is called as soon as that is there.
        """

    async def disconnect(self, sandbox_id: str) -> None: ...

    async def dial(
        self, sandbox_id: str, port: int, addresses: Sequence[str] = ()
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to a port of the sandbox, as its own processes would make it."""

    def holds(self, sandbox_id: str) -> bool:
        """Whether the network of a sandbox that was connected is still there."""

    def netns(self, sandbox_id: str) -> Path | None:
        """Where the sandbox's network namespace is, if it has one."""

    def use(self, subnets: Sequence[Subnet]) -> None:
        """A node has told its own: pods to come are connected there, if that is ours to say."""

    def counters(self, sandbox_id: str) -> Sequence[Counters]:
        """What went through the sandbox's interfaces, its default one first."""

    async def sweep(self, known: Collection[str]) -> list[str]: ...

    async def trouble(self) -> str:
        """Why pods cannot be connected, empty where they can."""

    def describe(self) -> Mapping[str, object]:
        """What it is, for people."""


class IsolationUnavailable(WinpodError):
    code = "FAILED_PRECONDITION"

    def __init__(self, handler: Handler, why: str) -> None:
        super().__init__(
            f'the handler "{handler.name}" asks for {handler.isolation} isolation: {why}',
            "Use a RuntimeClass with the handler runhcs-wcow-process, whose images fit the node.",
        )


class Sandboxes:
    def __init__(
        self,
        state: State,
        backend: Backend,
        networks: Networks,
        handlers: Handlers,
        guests: Guests,
        stop_container: Callable[[Container], Awaitable[None]],
        remove_container: Callable[[Container], Awaitable[None]],
        changed: Callable[[str, api.ContainerEventType, Sandbox], None],
    ) -> None:
        self._state = state
        self._backend = backend
        self._networks = networks
        self._handlers = handlers
        self._guests = guests
        self._stop_container = stop_container
        self._remove_container = remove_container
        self._changed = changed
        self._turns = Turns()
        self._watching: dict[str, asyncio.Task[None]] = {}

    async def run_pod_sandbox(self, request: api.RunPodSandboxRequest) -> api.RunPodSandboxResponse:
        handler = self._handlers.get(request.runtime_handler)
        config = request.config
        _check(config)
        trouble = self._guests.trouble(handler)
        if handler.isolation is Isolation.HYPERVISOR and trouble:
            raise IsolationUnavailable(handler, trouble)
        sandbox = Sandbox(
            id=secrets.token_hex(32),
            name=_name(config.metadata),
            handler=handler.name,
            config=config.SerializeToString(),
            phase=Phase.MAKING,
            created_at=time.time_ns(),
        )
        self._state.add(sandbox)
        try:
            await self._make(sandbox)
        except BaseException:
            await to_its_end(self._unmake(sandbox))
            raise
        self._changed(sandbox.id, api.CONTAINER_CREATED_EVENT, sandbox)
        self._changed(sandbox.id, api.CONTAINER_STARTED_EVENT, sandbox)
        return api.RunPodSandboxResponse(pod_sandbox_id=sandbox.id)

    async def _make(self, sandbox: Sandbox) -> None:
        known, handler = sandbox.known, self._handlers.get(sandbox.handler)
        netns = await self._backend.make_sandbox(
            SandboxAsked(
                id=sandbox.id,
                hostname=sandbox.hostname,
                servers=tuple(known.dns_config.servers),
                searches=tuple(known.dns_config.searches),
                options=tuple(known.dns_config.options),
                isolation=handler.isolation,
                annotations={**dict(handler.annotations), **known.annotations},
            )
        )
        attached = await self._networks.connect(
            _attachment(sandbox), netns, lambda: self._backend.connecting(sandbox.id)
        )
        await self._backend.connected(sandbox.id, INTERFACE, attached.result)
        self._state.save(
            sandbox,
            phase=Phase.RUNNING,
            ips=" ".join(attached.addresses),
            accelerator=self._guests.accelerator_of(handler),
        )
        self._watch(sandbox)

    def _watch(self, sandbox: Sandbox) -> None:
        """Who loses the microVM that it was in is no longer ready."""
        if self._handlers.get(sandbox.handler).isolation is not Isolation.HYPERVISOR:
            return
        task = self._watching[sandbox.id] = asyncio.create_task(self._stop_when_dead(sandbox))
        task.add_done_callback(lambda _: self._watching.pop(sandbox.id, None))

    async def _stop_when_dead(self, sandbox: Sandbox) -> None:
        await self._backend.until_sandbox_dies(sandbox.id)
        if not sandbox.ending:
            _log.warning("the microVM of sandbox %s has ended", sandbox.id)
            try:
                await self._stop_in_turn(sandbox)
            except (WinpodError, OSError) as error:
                _log.warning("sandbox %s is not taken apart yet: %s", sandbox.id, error)

    def close(self) -> None:
        for task in self._watching.values():
            task.cancel()

    async def _unmake(self, sandbox: Sandbox) -> None:
        """Where even that fails, the sandbox is kept, not ready, for the client to remove."""
        try:
            await self._take_apart(sandbox)
        except (WinpodError, OSError) as error:
            _log.warning("what was made of sandbox %s could not be undone: %s", sandbox.id, error)
            self._state.note(sandbox, phase=Phase.EXITED)
        else:
            self._state.forget(sandbox)

    async def _take_apart(self, sandbox: Sandbox) -> None:
        if (watching := self._watching.get(sandbox.id)) and watching is not asyncio.current_task():
            watching.cancel()
        await self._backend.remove_sandbox(sandbox.id)
        await self._networks.disconnect(sandbox.id)

    async def stop_pod_sandbox(
        self, request: api.StopPodSandboxRequest
    ) -> api.StopPodSandboxResponse:
        if sandbox := self._maybe(request.pod_sandbox_id):
            await to_its_end(self._stop_in_turn(sandbox))
        return api.StopPodSandboxResponse()

    async def _stop_in_turn(self, sandbox: Sandbox) -> None:
        async with self._turns.of(sandbox.id):
            if sandbox.id in self._state.sandboxes:
                await self._stop(sandbox)

    async def _stop(self, sandbox: Sandbox) -> None:
        """It is not ready any more, whatever its end meets; that goes on when it is asked again,
        or at the next start."""
        sandbox.ending = True
        containers = self._state.containers_of(sandbox)
        try:
            await asyncio.gather(*(self._stop_container(container) for container in containers))
        finally:
            self._note_stopped(sandbox)
        await self._take_apart(sandbox)

    def _note_stopped(self, sandbox: Sandbox) -> None:
        if sandbox.phase is Phase.RUNNING:
            self._state.note(sandbox, phase=Phase.EXITED)
            self._changed(sandbox.id, api.CONTAINER_STOPPED_EVENT, sandbox)

    async def remove_pod_sandbox(
        self, request: api.RemovePodSandboxRequest
    ) -> api.RemovePodSandboxResponse:
        if sandbox := self._maybe(request.pod_sandbox_id):
            await to_its_end(self._remove(sandbox))
        return api.RemovePodSandboxResponse()

    async def _remove(self, sandbox: Sandbox) -> None:
        async with self._turns.of(sandbox.id):
            if sandbox.id in self._state.sandboxes:
                if sandbox.phase is Phase.RUNNING:
                    await self._stop(sandbox)
                self._state.note(sandbox, phase=Phase.REMOVING)
                await self._finish_removal(sandbox)

    async def _finish_removal(self, sandbox: Sandbox) -> None:
        containers = self._state.containers_of(sandbox)
        await asyncio.gather(*(self._remove_container(container) for container in containers))
        await self._take_apart(sandbox)
        self._changed(sandbox.id, api.CONTAINER_DELETED_EVENT, sandbox)
        self._state.forget(sandbox)

    async def pod_sandbox_status(
        self, request: api.PodSandboxStatusRequest
    ) -> api.PodSandboxStatusResponse:
        sandbox = self._state.sandbox(request.pod_sandbox_id)
        return api.PodSandboxStatusResponse(
            status=sandbox_status(sandbox),
            info={SANDBOX_INFO: json.dumps(self._details(sandbox))} if request.verbose else {},
            containers_statuses=[
                container_status(c, sandbox.handler) for c in self._state.containers_of(sandbox)
            ],
            timestamp=time.time_ns(),
        )

    def _details(self, sandbox: Sandbox) -> dict[str, object]:
        handler = self._handlers.find(sandbox.handler)
        netns = self._networks.netns(sandbox.id) if sandbox.phase is Phase.RUNNING else None
        return {
            "name": sandbox.name,
            "handler": sandbox.handler,
            "isolation": handler.isolation if handler else None,
            "accelerator": sandbox.accelerator or None,
            "netns": str(netns) if netns else None,
            "addresses": sandbox.ips.split(),
        }

    async def list_pod_sandbox(
        self, request: api.ListPodSandboxRequest
    ) -> api.ListPodSandboxResponse:
        return api.ListPodSandboxResponse(items=self._listed(request.filter))

    async def stream_pod_sandboxes(
        self, request: api.StreamPodSandboxesRequest
    ) -> AsyncIterator[api.StreamPodSandboxesResponse]:
        items = self._listed(request.filter)
        for start in range(0, len(items), _PAGE):
            yield api.StreamPodSandboxesResponse(pod_sandboxes=items[start : start + _PAGE])

    def _listed(self, wanted: api.PodSandboxFilter) -> list[api.PodSandbox]:
        return [
            sandbox_item(sandbox)
            for sandbox in self._state.sandboxes.values()
            if sandbox.phase is not Phase.MAKING
            and sandbox.id.startswith(wanted.id)
            and (not wanted.HasField("state") or wanted.state.state == sandbox_state(sandbox))
            and selected(wanted.label_selector, sandbox.known.labels)
        ]

    async def recover(self) -> None:
        """After a restart: undo what was half made, finish what was half stopped or removed.

        A sandbox whose network is gone, as after a restart of the machine, is not ready.
        """
        for sandbox in list(self._state.sandboxes.values()):
            try:
                await self._settle(sandbox)
            except (WinpodError, OSError) as error:
                _log.warning("sandbox %s is not settled yet: %s", sandbox.id, error)
        for trouble in await self._networks.sweep(list(self._state.sandboxes)):
            _log.warning("%s", trouble)

    async def _settle(self, sandbox: Sandbox) -> None:
        if sandbox.phase is Phase.MAKING:
            await self._unmake(sandbox)
        elif sandbox.phase is Phase.REMOVING:
            await self._finish_removal(sandbox)
        elif sandbox.phase is Phase.EXITED:
            await self._stop(sandbox)
        elif sandbox.phase is Phase.RUNNING and not self._networks.holds(sandbox.id):
            _log.warning("sandbox %s has lost its network namespace", sandbox.id)
            await self._stop(sandbox)
        elif sandbox.phase is Phase.RUNNING:
            self._watch(sandbox)

    def handler_of(self, config: api.PodSandboxConfig) -> str:
        """The handler of the sandbox that a config describes, empty where there is none."""
        name = _name(config.metadata)
        found = (s.handler for s in self._state.sandboxes.values() if s.name == name)
        return next(found, "")

    def _maybe(self, id_: str) -> Sandbox | None:
        try:
            return self._state.sandbox(id_)
        except NotFound:
            return None


def selected(selector: object, labels: object) -> bool:
    return all(labels.get(k) == v for k, v in selector.items())  # type: ignore[attr-defined]


def _name(metadata: api.PodSandboxMetadata) -> str:
    return f"{metadata.name}_{metadata.namespace}_{metadata.uid}_{metadata.attempt}"


def _check(config: api.PodSandboxConfig) -> None:
    if not config.metadata.name:
        raise InvalidInput("the sandbox has no name.", "metadata.name is required.")
    if config.windows.security_context.host_process:
        raise HostProcessRefused


def _attachment(sandbox: Sandbox) -> Attachment:
    known = sandbox.known
    return Attachment(
        sandbox_id=sandbox.id,
        pod_name=known.metadata.name,
        pod_namespace=known.metadata.namespace,
        pod_uid=known.metadata.uid,
        hostname=sandbox.hostname,
        port_mappings=tuple(_port_mapping(mapping) for mapping in known.port_mappings),
        dns=Dns(
            tuple(known.dns_config.servers),
            tuple(known.dns_config.searches),
            tuple(known.dns_config.options),
        ),
        annotations=dict(known.annotations),
    )


def _port_mapping(mapping: api.PortMapping) -> PortMapping:
    protocol = _PROTOCOLS.get(mapping.protocol, str(mapping.protocol))
    return PortMapping(mapping.container_port, mapping.host_port, protocol, mapping.host_ip)
