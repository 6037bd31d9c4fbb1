"""The steps that take everything of ours off an instance, and leave what is not ours.

Services go first, those that others depend on last, and before containerd the pods that a drain
left; then networks, files and directories. The host's name, its features, Docker and what is in
directories that we share stay.
"""

from __future__ import annotations

from collections.abc import Iterator

from winpod.instances.rules.desired import Desired
from winpod.instances.rules.state import Service, State
from winpod.instances.rules.steps import Do, Step
from winpod.instances.rules.stopping import CONTAINERD, is_ours, to_stop

_WHY = "nothing of ours is to be left"


def removal(state: State, desired: Desired) -> tuple[Step, ...]:
    """A directory that we share is in it once it is empty: no earlier reading can promise that."""
    return (
        *_services(state, desired),
        *_networks(state, desired),
        *_files(state, desired),
        *_directories(state, desired),
    )


def _services(state: State, desired: Desired) -> Iterator[Step]:
    names = [service.name for service in reversed(desired.services)] + [*desired.unwanted_services]
    ours = [one for name in names if (one := state.service(name)) and is_ours(one)]
    stops = to_stop(state, [service.name for service in ours])
    yield from (_stop(service) for service in stops if not _waits_for_containerd(state, service))
    if any(service.name.lower() == CONTAINERD for service in ours):
        for pod in sorted(state.pods):
            yield Step(Do.REMOVE_POD, pod, "no such pod", "it is there", _WHY)
    yield from (_stop(service) for service in stops if _waits_for_containerd(state, service))
    for service in ours:
        yield Step(Do.REMOVE_SERVICE, service.name, "no such service", "it is there", _WHY)


def _waits_for_containerd(state: State, service: Service) -> bool:
    """It is containerd, or somebody has made containerd depend on it."""
    return any(one.name.lower() == CONTAINERD for one in to_stop(state, [service.name]))


def _stop(service: Service) -> Step:
    why = "it is to be removed"
    return Step(Do.STOP_SERVICE, service.name, "stopped", str(service.state), why)


def _networks(state: State, desired: Desired) -> Iterator[Step]:
    for network in state.networks:
        if network.name in desired.networks:
            why = f"it is {network.name}, which we made"
            yield Step(Do.REMOVE_NETWORK, network.id, "no such network", network.name, why)


def _files(state: State, desired: Desired) -> Iterator[Step]:
    for path in (*(file.path for file in desired.files), *desired.unwanted_files):
        if path in state.files and not _is_beneath(path, desired.owned):
            yield Step(Do.REMOVE_FILE, path, "no such file", "it is there", _WHY)


def _directories(state: State, desired: Desired) -> Iterator[Step]:
    for path in desired.owned:
        if path in state.directories:
            yield Step(Do.REMOVE_DIRECTORY, path, "no such directory", "it is there", _WHY)
    for path in reversed(desired.directories):
        is_shared = path not in desired.owned and not _is_beneath(path, desired.owned)
        if is_shared and path in state.empty:
            yield Step(Do.REMOVE_DIRECTORY, path, "no such directory", "an empty one", _WHY)


def _is_beneath(path: str, directories: tuple[str, ...]) -> bool:
    return any(path.startswith(f"{directory}\\") for directory in directories)
