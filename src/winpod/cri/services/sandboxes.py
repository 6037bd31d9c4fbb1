"""Sandbox calls of the CRI RuntimeService, and the interface of the pod network."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from winpod.compute.backend import Backend, SandboxSpec
from winpod.compute.spec import HostProcessUnsupported
from winpod.concurrency import KeyedLock, run_to_completion
from winpod.config import Subnet
from winpod.cri.convert import (
    to_container_status,
    to_sandbox_item,
    to_sandbox_state,
    to_sandbox_status,
)
from winpod.cri.handler_status import SANDBOX_INFO, HandlerStatus
from winpod.cri.proto import api_pb2 as api
from winpod.cri.state import ContainerRecord, Phase, RuntimeState, SandboxRecord
from winpod.errors import InvalidInput, NotFound, WinpodError
from winpod.labels import PROCESS_HANDLER_NAME
from winpod.network.attachments import INTERFACE, Attachment, AttachResult, Dns, PortMapping
from winpod.network.netns import InterfaceCounters
from winpod.windows.handlers import Handler, Handlers
from winpod.windows.isolation import Isolation

_log = logging.getLogger(__name__)
_PAGE = 100
_PROTOCOLS = {api.TCP: "tcp", api.UDP: "udp", api.SCTP: "sctp"}


class SandboxNetwork(Protocol):
    async def connect(
        self, attachment: Attachment, netns: Path | None, opened: Callable[[], None]
    ) -> AttachResult:
        """Connect a sandbox in the given network namespace, or in a new one.

        `opened` is called as soon as the namespace exists.
        """

    async def disconnect(self, sandbox_id: str) -> None: ...

    async def dial(
        self, sandbox_id: str, port: int, addresses: Sequence[str] = ()
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to a port of the sandbox from within its network namespace."""

    def is_connected(self, sandbox_id: str) -> bool:
        """Whether the network of a connected sandbox still exists."""

    def netns(self, sandbox_id: str) -> Path | None:
        """Return the path of the sandbox's network namespace, if any."""

    def set_subnets(self, subnets: Sequence[Subnet]) -> None:
        """Set the pod CIDRs of the node for new pods. Ignored with external CNI configuration."""

    def counters(self, sandbox_id: str) -> Sequence[InterfaceCounters]:
        """Return the counters of the sandbox's interfaces, the default one first."""

    async def remove_unknown(self, config: Collection[str]) -> list[str]: ...

    async def unavailable_reason(self) -> str:
        """Return why pods cannot be connected; empty if they can."""

    def describe(self) -> Mapping[str, object]:
        """Describe the network for verbose status."""


class IsolationUnavailable(WinpodError):
    code = "FAILED_PRECONDITION"

    def __init__(self, handler: Handler, why: str) -> None:
        super().__init__(
            f'the handler "{handler.name}" requires {handler.isolation} isolation: {why}',
            f"Use a RuntimeClass with handler {PROCESS_HANDLER_NAME} "
            "and an image that fits the node.",
        )


class SandboxService:
    def __init__(
        self,
        state: RuntimeState,
        backend: Backend,
        networks: SandboxNetwork,
        handlers: Handlers,
        handler_status: HandlerStatus,
        stop_container: Callable[[ContainerRecord], Awaitable[None]],
        remove_container: Callable[[ContainerRecord], Awaitable[None]],
        on_change: Callable[[str, api.ContainerEventType, SandboxRecord], None],
    ) -> None:
        self._state = state
        self._backend = backend
        self._networks = networks
        self._handlers = handlers
        self._handler_status = handler_status
        self._stop_container = stop_container
        self._remove_container = remove_container
        self._on_change = on_change
        self._locks = KeyedLock(asyncio.Lock)
        self._watches: dict[str, asyncio.Task[None]] = {}

    async def run_pod_sandbox(self, request: api.RunPodSandboxRequest) -> api.RunPodSandboxResponse:
        handler = self._handlers.get(request.runtime_handler)
        config = request.config
        _check(config)
        reason = self._handler_status.unavailable_reason(handler)
        if handler.isolation is Isolation.HYPERVISOR and reason:
            raise IsolationUnavailable(handler, reason)
        sandbox = SandboxRecord(
            id=secrets.token_hex(32),
            name=_name(config.metadata),
            handler=handler.name,
            config=config.SerializeToString(),
            phase=Phase.CREATING,
            created_at=time.time_ns(),
        )
        self._state.add(sandbox)
        try:
            await self._create(sandbox)
        except BaseException:
            await run_to_completion(self._roll_back(sandbox))
            raise
        self._on_change(sandbox.id, api.CONTAINER_CREATED_EVENT, sandbox)
        self._on_change(sandbox.id, api.CONTAINER_STARTED_EVENT, sandbox)
        return api.RunPodSandboxResponse(pod_sandbox_id=sandbox.id)

    async def _create(self, sandbox: SandboxRecord) -> None:
        config, handler = sandbox.parsed_config, self._handlers.get(sandbox.handler)
        netns = await self._backend.create_sandbox(
            SandboxSpec(
                id=sandbox.id,
                hostname=sandbox.hostname,
                servers=tuple(config.dns_config.servers),
                searches=tuple(config.dns_config.searches),
                options=tuple(config.dns_config.options),
                isolation=handler.isolation,
                annotations={**dict(handler.annotations), **config.annotations},
            )
        )
        attach_result = await self._networks.connect(
            _attachment(sandbox), netns, lambda: self._backend.netns_ready(sandbox.id)
        )
        await self._backend.network_ready(sandbox.id, INTERFACE, attach_result.result)
        self._state.save(
            sandbox,
            phase=Phase.RUNNING,
            ips=" ".join(attach_result.addresses),
            accelerator=self._handler_status.accelerator_of(handler),
        )
        self._watch(sandbox)

    def _watch(self, sandbox: SandboxRecord) -> None:
        """Watch the microVM of a sandbox, and stop the sandbox when it exits."""
        if self._handlers.get(sandbox.handler).isolation is not Isolation.HYPERVISOR:
            return
        task = self._watches[sandbox.id] = asyncio.create_task(self._stop_when_dead(sandbox))
        task.add_done_callback(lambda _: self._watches.pop(sandbox.id, None))

    async def _stop_when_dead(self, sandbox: SandboxRecord) -> None:
        await self._backend.wait_sandbox_exit(sandbox.id)
        if not sandbox.ending:
            _log.warning("MicroVM of sandbox %s exited", sandbox.id)
            try:
                await self._stop_locked(sandbox)
            except (WinpodError, OSError) as error:
                _log.warning("Failed to stop sandbox %s: %s", sandbox.id, error)

    def close(self) -> None:
        for task in self._watches.values():
            task.cancel()

    async def _roll_back(self, sandbox: SandboxRecord) -> None:
        """Roll back creation. If that fails, keep the sandbox for the client to remove."""
        try:
            await self._release(sandbox)
        except (WinpodError, OSError) as error:
            _log.warning("Failed to roll back creation of sandbox %s: %s", sandbox.id, error)
            self._state.save_best_effort(sandbox, phase=Phase.EXITED)
        else:
            self._state.delete(sandbox)

    async def _release(self, sandbox: SandboxRecord) -> None:
        if (watch := self._watches.get(sandbox.id)) and watch is not asyncio.current_task():
            watch.cancel()
        await self._backend.remove_sandbox(sandbox.id)
        await self._networks.disconnect(sandbox.id)

    async def stop_pod_sandbox(
        self, request: api.StopPodSandboxRequest
    ) -> api.StopPodSandboxResponse:
        if sandbox := self._find(request.pod_sandbox_id):
            await run_to_completion(self._stop_locked(sandbox))
        return api.StopPodSandboxResponse()

    async def _stop_locked(self, sandbox: SandboxRecord) -> None:
        async with self._locks.lock(sandbox.id):
            if sandbox.id in self._state.sandboxes:
                await self._stop(sandbox)

    async def _stop(self, sandbox: SandboxRecord) -> None:
        """Stop the sandbox. It is not ready from now on, even if this fails.

        A failed stop is continued by the next call or at the next start.
        """
        sandbox.ending = True
        containers = self._state.containers_of(sandbox)
        try:
            await asyncio.gather(*(self._stop_container(container) for container in containers))
        finally:
            self._record_stopped(sandbox)
        await self._release(sandbox)

    def _record_stopped(self, sandbox: SandboxRecord) -> None:
        if sandbox.phase is Phase.RUNNING:
            self._state.save_best_effort(sandbox, phase=Phase.EXITED)
            self._on_change(sandbox.id, api.CONTAINER_STOPPED_EVENT, sandbox)

    async def remove_pod_sandbox(
        self, request: api.RemovePodSandboxRequest
    ) -> api.RemovePodSandboxResponse:
        if sandbox := self._find(request.pod_sandbox_id):
            await run_to_completion(self._remove(sandbox))
        return api.RemovePodSandboxResponse()

    async def _remove(self, sandbox: SandboxRecord) -> None:
        async with self._locks.lock(sandbox.id):
            if sandbox.id in self._state.sandboxes:
                if sandbox.phase is Phase.RUNNING:
                    await self._stop(sandbox)
                self._state.save_best_effort(sandbox, phase=Phase.REMOVING)
                await self._finish_removal(sandbox)

    async def _finish_removal(self, sandbox: SandboxRecord) -> None:
        containers = self._state.containers_of(sandbox)
        await asyncio.gather(*(self._remove_container(container) for container in containers))
        await self._release(sandbox)
        self._on_change(sandbox.id, api.CONTAINER_DELETED_EVENT, sandbox)
        self._state.delete(sandbox)

    async def pod_sandbox_status(
        self, request: api.PodSandboxStatusRequest
    ) -> api.PodSandboxStatusResponse:
        sandbox = self._state.sandbox(request.pod_sandbox_id)
        return api.PodSandboxStatusResponse(
            status=to_sandbox_status(sandbox),
            info={SANDBOX_INFO: json.dumps(self._details(sandbox))} if request.verbose else {},
            containers_statuses=[
                to_container_status(c, sandbox.handler) for c in self._state.containers_of(sandbox)
            ],
            timestamp=time.time_ns(),
        )

    def _details(self, sandbox: SandboxRecord) -> dict[str, object]:
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
        return api.ListPodSandboxResponse(items=self._list(request.filter))

    async def stream_pod_sandboxes(
        self, request: api.StreamPodSandboxesRequest
    ) -> AsyncIterator[api.StreamPodSandboxesResponse]:
        items = self._list(request.filter)
        for start in range(0, len(items), _PAGE):
            yield api.StreamPodSandboxesResponse(pod_sandboxes=items[start : start + _PAGE])

    def _list(self, filter_: api.PodSandboxFilter) -> list[api.PodSandbox]:
        return [
            to_sandbox_item(sandbox)
            for sandbox in self._state.sandboxes.values()
            if sandbox.phase is not Phase.CREATING
            and sandbox.id.startswith(filter_.id)
            and (not filter_.HasField("state") or filter_.state.state == to_sandbox_state(sandbox))
            and matches_selector(filter_.label_selector, sandbox.parsed_config.labels)
        ]

    async def recover(self) -> None:
        """Recover after a restart: roll back partial creations, finish partial stops and removals.

        A sandbox whose network is gone, for example after a reboot, is stopped.
        """
        for sandbox in list(self._state.sandboxes.values()):
            try:
                await self._recover(sandbox)
            except (WinpodError, OSError) as error:
                _log.warning("Failed to recover sandbox %s: %s", sandbox.id, error)
        for reason in await self._networks.remove_unknown(list(self._state.sandboxes)):
            _log.warning("%s", reason)

    async def _recover(self, sandbox: SandboxRecord) -> None:
        if sandbox.phase is Phase.CREATING:
            await self._roll_back(sandbox)
        elif sandbox.phase is Phase.REMOVING:
            await self._finish_removal(sandbox)
        elif sandbox.phase is Phase.EXITED:
            await self._stop(sandbox)
        elif sandbox.phase is Phase.RUNNING and not self._networks.is_connected(sandbox.id):
            _log.warning("Sandbox %s has lost its network namespace", sandbox.id)
            await self._stop(sandbox)
        elif sandbox.phase is Phase.RUNNING:
            self._watch(sandbox)

    def handler_of(self, config: api.PodSandboxConfig) -> str:
        """Return the handler of the sandbox with this config; empty if there is none."""
        name = _name(config.metadata)
        handlers = (s.handler for s in self._state.sandboxes.values() if s.name == name)
        return next(handlers, "")

    def _find(self, id_: str) -> SandboxRecord | None:
        try:
            return self._state.sandbox(id_)
        except NotFound:
            return None


def matches_selector(selector: object, labels: object) -> bool:
    return all(labels.get(k) == v for k, v in selector.items())  # type: ignore[attr-defined]


def _name(metadata: api.PodSandboxMetadata) -> str:
    return f"{metadata.name}_{metadata.namespace}_{metadata.uid}_{metadata.attempt}"


def _check(config: api.PodSandboxConfig) -> None:
    if not config.metadata.name:
        raise InvalidInput("the sandbox has no name.", "metadata.name is required.")
    if config.windows.security_context.host_process:
        raise HostProcessUnsupported


def _attachment(sandbox: SandboxRecord) -> Attachment:
    config = sandbox.parsed_config
    return Attachment(
        sandbox_id=sandbox.id,
        pod_name=config.metadata.name,
        pod_namespace=config.metadata.namespace,
        pod_uid=config.metadata.uid,
        hostname=sandbox.hostname,
        port_mappings=tuple(_port_mapping(mapping) for mapping in config.port_mappings),
        dns=Dns(
            tuple(config.dns_config.servers),
            tuple(config.dns_config.searches),
            tuple(config.dns_config.options),
        ),
        annotations=dict(config.annotations),
    )


def _port_mapping(mapping: api.PortMapping) -> PortMapping:
    protocol = _PROTOCOLS.get(mapping.protocol, str(mapping.protocol))
    return PortMapping(mapping.container_port, mapping.host_port, protocol, mapping.host_ip)
