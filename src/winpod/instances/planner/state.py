r"""Observed state of an instance: plain data, read in one pass.

Only what was queried is included. Paths are spelled as in the query, services are keyed by
lower-case name, and what does not exist is absent. A service is managed if its program is below
`C:\k`, whatever its name. Services stop after those that depend on them; Docker is never stopped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from winpod.instances import paths
from winpod.windows.builds import Build

UNREADABLE = "a file that cannot be read"
"""Stands in for the hash of a file that another process has opened exclusively."""


class StartType(StrEnum):
    AUTO = "auto"
    MANUAL = "manual"
    DISABLED = "disabled"


class ServiceState(StrEnum):
    RUNNING = "running"
    STOPPED = "stopped"
    STARTING = "starting"
    STOPPING = "stopping"


class FeatureState(StrEnum):
    """`PENDING` is enabled after the next reboot; `ABSENT` does not exist in this Windows."""

    ENABLED = "enabled"
    DISABLED = "disabled"
    PENDING = "pending"
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class ObservedService:
    """`restarts` are the delays of restarts after failures, in milliseconds."""

    name: str
    command_line: str
    depends: tuple[str, ...] = ()
    start: StartType = StartType.AUTO
    state: ServiceState = ServiceState.RUNNING
    description: str = ""
    restarts: tuple[int, ...] = ()
    reset_seconds: int = 0

    def depends_on(self, *names: str) -> bool:
        lowered = {name.lower() for name in names}
        return any(name.lower() in lowered for name in self.depends)


@dataclass(frozen=True, slots=True)
class Network:
    """A network of the Host Networking Service."""

    id: str
    name: str
    type: str = ""


@dataclass(frozen=True, slots=True)
class InstanceState:
    """The observed state.

    `booted` changes with each boot. `version` is the content of the version file, empty if it does
    not exist. `empty` are the empty ones of `directories`. `images` and `pods` are those of
    containerd while it runs, pods by ID.
    """

    build: Build
    product: str
    hostname: str
    booted: str
    version: str = ""
    features: Mapping[str, FeatureState] = field(default_factory=dict)
    directories: frozenset[str] = frozenset()
    empty: frozenset[str] = frozenset()
    files: Mapping[str, str] = field(default_factory=dict)
    services: Mapping[str, ObservedService] = field(default_factory=dict)
    networks: tuple[Network, ...] = ()
    free_bytes: int = 0
    images: frozenset[str] = frozenset()
    pods: frozenset[str] = frozenset()

    def service(self, name: str) -> ObservedService | None:
        return self.services.get(name.lower())

    def runs(self, name: str) -> bool:
        service = self.service(name)
        return service is not None and service.state is ServiceState.RUNNING


CONTAINERD, KUBELET = "containerd", "kubelet"
DOCKER = ("docker", "com.docker.service")
_DOCKER_FLAGS = (
    "--container-runtime=docker",
    "--network-plugin=",
    "--image-pull-progress-deadline=",
    "--docker-endpoint=",
)


def runs_on_docker(state: InstanceState) -> bool:
    """Whether the kubelet of this instance uses dockershim."""
    kubelet = state.service(KUBELET)
    if kubelet is None:
        return False
    flags = any(flag in kubelet.command_line for flag in _DOCKER_FLAGS)
    return flags or kubelet.depends_on(*DOCKER)


def is_managed_service(service: ObservedService) -> bool:
    return f"{paths.ROOT}\\".lower() in service.command_line.lower()


def services_to_stop(state: InstanceState, names: Iterable[str]) -> tuple[ObservedService, ...]:
    """Return the running services to stop, in order, so that none of these names runs."""
    order: dict[str, ObservedService] = {}
    seen: set[str] = set(DOCKER)

    def add(name: str) -> None:
        if name in seen:
            return
        seen.add(name)
        for other in sorted(state.services):
            if state.services[other].depends_on(name):
                add(other)
        service = state.services.get(name)
        if service and service.state is not ServiceState.STOPPED:
            order[name] = service

    for name in names:
        add(name.lower())
    return tuple(order.values())
