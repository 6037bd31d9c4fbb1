"""What the runtime has of a pod: its sandboxes and their containers, as plain data.

Read from the CRI's answers and from the labels that a kubelet writes, so that a new process knows
as much as the old one did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

from winpod.cri.proto import api_pb2 as api
from winpod.node.requests import CONTAINER_HASH, CONTAINER_NAME, RESTART_COUNT


class State(StrEnum):
    CREATED = "created"
    RUNNING = "running"
    EXITED = "exited"
    UNKNOWN = "unknown"


_STATES = {
    api.CONTAINER_CREATED: State.CREATED,
    api.CONTAINER_RUNNING: State.RUNNING,
    api.CONTAINER_EXITED: State.EXITED,
}


@dataclass(frozen=True, slots=True)
class ContainerSeen:
    id: str
    name: str
    state: State
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
        return self.state is State.RUNNING

    @property
    def has_ended(self) -> bool:
        return self.state is State.EXITED

    @property
    def succeeded(self) -> bool:
        return self.has_ended and self.exit_code == 0


@dataclass(frozen=True, slots=True)
class SandboxSeen:
    """The oldest container first. `told_at` is when the runtime said so, in its nanoseconds."""

    id: str
    attempt: int
    is_ready: bool
    created_at: datetime
    name: str = ""
    namespace: str = ""
    ips: tuple[str, ...] = ()
    host_network: bool = False
    handler: str = ""
    containers: tuple[ContainerSeen, ...] = ()
    told_at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class PodSeen:
    """Everything of one pod; the newest sandbox first."""

    sandboxes: tuple[SandboxSeen, ...] = ()

    @property
    def newest(self) -> SandboxSeen | None:
        return self.sandboxes[0] if self.sandboxes else None

    @property
    def ips(self) -> tuple[str, ...]:
        return self.newest.ips if self.newest and self.newest.is_ready else ()

    def containers(self) -> Iterator[ContainerSeen]:
        """Of all sandboxes, the newest of each name first, whatever the clock said."""
        found = [container for sandbox in self.sandboxes for container in sandbox.containers]
        yield from sorted(found, key=lambda c: (c.restart_count, c.created_at), reverse=True)

    def of(self, name: str) -> list[ContainerSeen]:
        return [container for container in self.containers() if container.name == name]

    def last(self, name: str) -> ContainerSeen | None:
        return next((c for c in self.containers() if c.name == name), None)

    def running(self) -> list[ContainerSeen]:
        return [container for container in self.containers() if container.is_running]


def pod_seen(sandboxes: Iterable[SandboxSeen]) -> PodSeen:
    newest_first = sorted(sandboxes, key=lambda s: (s.attempt, s.created_at), reverse=True)
    return PodSeen(tuple(newest_first))


def sandbox_seen(
    status: api.PodSandboxStatus,
    containers: Iterable[api.ContainerStatus],
    told_at: int,
    last_words: Callable[[api.ContainerStatus], str],
) -> SandboxSeen:
    network = status.network
    extra = (address.ip for address in network.additional_ips)
    return SandboxSeen(
        id=status.id,
        attempt=status.metadata.attempt,
        is_ready=status.state == api.SANDBOX_READY,
        created_at=time_of(status.created_at),
        name=status.metadata.name,
        namespace=status.metadata.namespace,
        ips=tuple(ip for ip in (network.ip, *extra) if ip),
        host_network=status.linux.namespaces.options.network == api.NODE,
        handler=status.runtime_handler,
        containers=tuple(
            container_seen(one, last_words)
            for one in sorted(containers, key=lambda c: (c.metadata.attempt, c.created_at))
        ),
        told_at=told_at,
    )


def container_seen(
    status: api.ContainerStatus, last_words: Callable[[api.ContainerStatus], str]
) -> ContainerSeen:
    limits = status.resources.windows
    state = _STATES.get(status.state, State.UNKNOWN)
    return ContainerSeen(
        id=status.id,
        name=status.labels.get(CONTAINER_NAME, status.metadata.name),
        state=state,
        created_at=time_of(status.created_at),
        started_at=time_of(status.started_at) if status.started_at else None,
        finished_at=time_of(status.finished_at) if status.finished_at else None,
        exit_code=status.exit_code,
        reason=status.reason,
        message=last_words(status) if state is State.EXITED else status.message,
        image=status.image.user_specified_image or status.image.image,
        image_ref=status.image_ref,
        restart_count=_number(status.annotations.get(RESTART_COUNT), status.metadata.attempt),
        hash=status.annotations.get(CONTAINER_HASH, ""),
        log_path=status.log_path,
        cpu_maximum=limits.cpu_maximum,
        memory_bytes=limits.memory_limit_in_bytes,
    )


def _number(text: str | None, otherwise: int) -> int:
    return int(text) if text and text.isascii() and text.isdigit() else otherwise


def time_of(nanoseconds: int) -> datetime:
    return datetime.fromtimestamp(nanoseconds / 1e9, UTC)
