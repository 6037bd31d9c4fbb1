r"""Which services of an instance are ours, and in which order they stop.

Those that depend on a service stop before it. Docker never stops, and a program outside of `C:\k`
is nobody's of ours even under a name that we know.
"""

from __future__ import annotations

from collections.abc import Iterable

from winpod.instances import paths
from winpod.instances.rules.state import Running, Service, State

CONTAINERD, KUBELET = "containerd", "kubelet"
DOCKER = ("docker", "com.docker.service")
_DOCKER_FLAGS = (
    "--container-runtime=docker",
    "--network-plugin=",
    "--image-pull-progress-deadline=",
    "--docker-endpoint=",
)


def runs_on_docker(state: State) -> bool:
    """Whether the kubelet of this instance is one from before containerd."""
    kubelet = state.service(KUBELET)
    if kubelet is None:
        return False
    flags = any(flag in kubelet.command_line for flag in _DOCKER_FLAGS)
    return flags or kubelet.depends_on(*DOCKER)


def is_ours(service: Service) -> bool:
    return f"{paths.ROOT}\\".lower() in service.command_line.lower()


def to_stop(state: State, names: Iterable[str]) -> tuple[Service, ...]:
    """What has to stop, and has not yet, before none of these runs."""
    order: dict[str, Service] = {}
    seen: set[str] = set(DOCKER)

    def add(name: str) -> None:
        if name in seen:
            return
        seen.add(name)
        for other in sorted(state.services):
            if state.services[other].depends_on(name):
                add(other)
        service = state.services.get(name)
        if service and service.state is not Running.STOPPED:
            order[name] = service

    for name in names:
        add(name.lower())
    return tuple(order.values())
