"""A pod's sandboxes and containers in the runtime, as plain data.

Built from CRI responses and from the labels and annotations that a kubelet writes, so that a
restarted agent has the same information as its predecessor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

from winpod.cri.proto import api_pb2 as api
from winpod.kubelet.cri_convert import (
    CONTAINER_HASH_LABEL,
    CONTAINER_NAME_LABEL,
    RESTART_COUNT_LABEL,
)


class ContainerState(StrEnum):
    CREATED = "created"
    RUNNING = "running"
    EXITED = "exited"
    UNKNOWN = "unknown"


_STATES = {
    api.CONTAINER_CREATED: ContainerState.CREATED,
    api.CONTAINER_RUNNING: ContainerState.RUNNING,
    api.CONTAINER_EXITED: ContainerState.EXITED,
}


@dataclass(frozen=True, slots=True)
class RuntimeContainer:
    id: str
    name: str
    state: ContainerState
    created_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None
    exit_code: int = 0
    reason: str = ""
    message: str = ""
    image: str = ""
    image_ref: str = ""
    restart_count: int = 0
    hash: str = ""
    log_path: str = ""
    cpu_maximum: int = 0
    memory_bytes: int = 0

    @property
    def is_running(self) -> bool:
        return self.state is ContainerState.RUNNING

    @property
    def has_exited(self) -> bool:
        return self.state is ContainerState.EXITED

    @property
    def succeeded(self) -> bool:
        return self.has_exited and self.exit_code == 0


@dataclass(frozen=True, slots=True)
class RuntimeSandbox:
    """A sandbox with its containers, oldest first.

    `reported_at` is the runtime's timestamp of the report, in nanoseconds.
    """

    id: str
    attempt: int
    is_ready: bool
    created_at: datetime
    name: str = ""
    namespace: str = ""
    ips: tuple[str, ...] = ()
    host_network: bool = False
    handler: str = ""
    containers: tuple[RuntimeContainer, ...] = ()
    reported_at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class RuntimePod:
    """All sandboxes of one pod, newest first."""

    sandboxes: tuple[RuntimeSandbox, ...] = ()

    @property
    def newest_sandbox(self) -> RuntimeSandbox | None:
        return self.sandboxes[0] if self.sandboxes else None

    @property
    def ips(self) -> tuple[str, ...]:
        return (
            self.newest_sandbox.ips if self.newest_sandbox and self.newest_sandbox.is_ready else ()
        )

    def containers(self) -> Iterator[RuntimeContainer]:
        """Yield the containers of all sandboxes, newest first.

        Sorted by restart count before creation time, because the clock may have been set back.
        """
        every = [container for sandbox in self.sandboxes for container in sandbox.containers]
        yield from sorted(every, key=lambda c: (c.restart_count, c.created_at), reverse=True)

    def containers_named(self, name: str) -> list[RuntimeContainer]:
        return [container for container in self.containers() if container.name == name]

    def latest_container(self, name: str) -> RuntimeContainer | None:
        return next((c for c in self.containers() if c.name == name), None)

    def running_containers(self) -> list[RuntimeContainer]:
        return [container for container in self.containers() if container.is_running]


def to_runtime_pod(sandboxes: Iterable[RuntimeSandbox]) -> RuntimePod:
    newest_first = sorted(sandboxes, key=lambda s: (s.attempt, s.created_at), reverse=True)
    return RuntimePod(tuple(newest_first))


def to_runtime_sandbox(
    status: api.PodSandboxStatus,
    containers: Iterable[api.ContainerStatus],
    reported_at: int,
    termination_message: Callable[[api.ContainerStatus], str],
) -> RuntimeSandbox:
    network = status.network
    extra = (address.ip for address in network.additional_ips)
    return RuntimeSandbox(
        id=status.id,
        attempt=status.metadata.attempt,
        is_ready=status.state == api.SANDBOX_READY,
        created_at=to_datetime(status.created_at),
        name=status.metadata.name,
        namespace=status.metadata.namespace,
        ips=tuple(ip for ip in (network.ip, *extra) if ip),
        host_network=status.linux.namespaces.options.network == api.NODE,
        handler=status.runtime_handler,
        containers=tuple(
            to_runtime_container(container, termination_message)
            for container in sorted(containers, key=lambda c: (c.metadata.attempt, c.created_at))
        ),
        reported_at=reported_at,
    )


def to_runtime_container(
    status: api.ContainerStatus, termination_message: Callable[[api.ContainerStatus], str]
) -> RuntimeContainer:
    limits = status.resources.windows
    state = _STATES.get(status.state, ContainerState.UNKNOWN)
    return RuntimeContainer(
        id=status.id,
        name=status.labels.get(CONTAINER_NAME_LABEL, status.metadata.name),
        state=state,
        created_at=to_datetime(status.created_at),
        started_at=to_datetime(status.started_at) if status.started_at else None,
        finished_at=to_datetime(status.finished_at) if status.finished_at else None,
        exit_code=status.exit_code,
        reason=status.reason,
        message=termination_message(status) if state is ContainerState.EXITED else status.message,
        image=status.image.user_specified_image or status.image.image,
        image_ref=status.image_ref,
        restart_count=_parse_count(
            status.annotations.get(RESTART_COUNT_LABEL), status.metadata.attempt
        ),
        hash=status.annotations.get(CONTAINER_HASH_LABEL, ""),
        log_path=status.log_path,
        cpu_maximum=limits.cpu_maximum,
        memory_bytes=limits.memory_limit_in_bytes,
    )


def _parse_count(text: str | None, default: int) -> int:
    return int(text) if text and text.isascii() and text.isdigit() else default


def to_datetime(nanoseconds: int) -> datetime:
    return datetime.fromtimestamp(nanoseconds / 1e9, UTC)
