"""The phase of a pod, and the conditions that follow from its containers' statuses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from lightkube.models import core_v1 as v1

from winpod.node.pods import (
    RESTARTING_ALL,
    init_containers,
    is_sidecar,
    regular_containers,
    restarts,
    sidecars,
)
from winpod.node.requests import spec_of

Statuses = Mapping[str, v1.ContainerStatus]


@dataclass(frozen=True, slots=True)
class Told:
    """A condition without its times."""

    type: str
    holds: bool
    reason: str = ""
    message: str = ""


def phase_of(pod: v1.Pod, statuses: Statuses, *, is_over: bool, has_run: bool) -> str:
    """`is_over`: nothing of the pod is started again, whatever its restart policy says.

    `has_run`: a regular container was made in the sandbox that the pod has now.
    """
    if any(_failed_for_good(c, pod, statuses.get(c.name)) for c in _steps(pod)):
        return "Failed"
    regular = [statuses.get(container.name) for container in regular_containers(pod)]
    beside = [statuses.get(container.name) for container in sidecars(pod)]
    if any(not _is_past(statuses.get(c.name)) for c in _steps(pod)):
        return "Pending"
    if not has_run and any(_is_starting(status) for status in beside):
        return "Pending"
    if any(_waits_for_first(status) for status in (*regular, *beside)):
        return "Pending"
    if any(_running(status) for status in (*regular, *beside)):
        return "Running"
    ends = [_end(status) for status in regular]
    again = [
        end is None or _goes_on(container, pod, end)
        for container, end in zip(regular_containers(pod), ends, strict=True)
    ]
    if any(again) and not is_over:
        return "Running"
    return "Succeeded" if all(end and end.exitCode == 0 for end in ends) else "Failed"


def _steps(pod: v1.Pod) -> list[v1.Container]:
    return [container for container in init_containers(pod) if not is_sidecar(container)]


def _state(status: v1.ContainerStatus | None) -> v1.ContainerState:
    return (status and status.state) or v1.ContainerState()


def _running(status: v1.ContainerStatus | None) -> bool:
    return _state(status).running is not None


def _end(status: v1.ContainerStatus | None) -> v1.ContainerStateTerminated | None:
    """How it ended last, whether it waits to be started again or not."""
    before = (status and status.lastState) or v1.ContainerState()
    return _state(status).terminated or before.terminated


def _waits_for_first(status: v1.ContainerStatus | None) -> bool:
    return status is None or (_state(status).waiting is not None and _end(status) is None)


def _is_starting(status: v1.ContainerStatus | None) -> bool:
    if status is None or _waits_for_first(status):
        return True
    return _running(status) and not status.started


def _is_past(status: v1.ContainerStatus | None) -> bool:
    """Whether an init container has ended, well or not."""
    return not _running(status) and _end(status) is not None


def _failed_for_good(
    container: v1.Container, pod: v1.Pod, status: v1.ContainerStatus | None
) -> bool:
    end = None if _running(status) else _end(status)
    return end is not None and end.exitCode != 0 and not _goes_on(container, pod, end)


def _goes_on(container: v1.Container, pod: v1.Pod, end: v1.ContainerStateTerminated) -> bool:
    return restarts(container, pod, end.exitCode) or end.reason == RESTARTING_ALL


def conditions_of(
    pod: v1.Pod,
    statuses: Statuses,
    phase: str,
    *,
    has_sandbox: bool,
    others: Sequence[v1.PodCondition] = (),
    before: Sequence[v1.PodCondition] = (),
) -> list[Told]:
    """`others` are those that readiness gates may name, `before` what was told of this pod."""
    was_initialized = any(c.type == "Initialized" and c.status == "True" for c in before)
    containers = _containers_ready(pod, statuses, phase)
    return [
        Told("PodReadyToStartContainers", has_sandbox),
        _initialized(pod, statuses, phase, was_so=was_initialized),
        _ready(pod, containers, others),
        containers,
        Told("PodScheduled", True),
    ]


def _containers_ready(pod: v1.Pod, statuses: Statuses, phase: str) -> Told:
    kind = "ContainersReady"
    if phase in _OVER:
        return Told(kind, False, _OVER[phase])
    unready = [
        container.name
        for container in (*sidecars(pod), *regular_containers(pod))
        if not ((status := statuses.get(container.name)) and status.ready)
    ]
    if unready:
        message = f"containers with unready status: {_listed(unready)}"
        return Told(kind, False, "ContainersNotReady", message)
    return Told(kind, True)


_OVER = {"Succeeded": "PodCompleted", "Failed": "PodFailed"}


def _ready(pod: v1.Pod, containers: Told, others: Sequence[v1.PodCondition]) -> Told:
    if not containers.holds:
        return Told("Ready", False, containers.reason, containers.message)
    stated = {condition.type: condition.status for condition in others}
    messages = [
        _gate_message(gate.conditionType, stated.get(gate.conditionType))
        for gate in spec_of(pod).readinessGates or ()
        if stated.get(gate.conditionType) != "True"
    ]
    if messages:
        return Told("Ready", False, "ReadinessGatesNotReady", ", ".join(messages))
    return Told("Ready", True)


def _gate_message(gate: str, status: str | None) -> str:
    if status is None:
        return f'corresponding condition of pod readiness gate "{gate}" does not exist.'
    return f'the status of pod readiness gate "{gate}" is not "True", but {status}'


def _initialized(pod: v1.Pod, statuses: Statuses, phase: str, *, was_so: bool) -> Told:
    kind = "Initialized"
    if phase == "Succeeded":
        return Told(kind, True, "PodCompleted")
    if was_so or any(_is_past_waiting(statuses.get(c.name)) for c in regular_containers(pod)):
        return Told(kind, True)
    incomplete = [
        container.name
        for container in init_containers(pod)
        if not _is_initialized(container, statuses.get(container.name))
    ]
    if incomplete:
        message = f"containers with incomplete status: {_listed(incomplete)}"
        return Told(kind, False, "ContainersNotInitialized", message)
    return Told(kind, True)


def _is_past_waiting(status: v1.ContainerStatus | None) -> bool:
    return _running(status) or _state(status).terminated is not None


def has_initialized(pod: v1.Pod, statuses: Statuses) -> bool:
    """Whether anything tells that the containers after the init containers have had their turn."""
    if not init_containers(pod):
        return True
    if any(
        status is not None and (_state(status).waiting is None or _end(status) is not None)
        for status in (statuses.get(c.name) for c in regular_containers(pod))
    ):
        return True
    last = init_containers(pod)[-1]
    status, end = statuses.get(last.name), _end(statuses.get(last.name))
    if is_sidecar(last):
        return _running(status) and bool(status and status.started)
    return end is not None and end.exitCode == 0


def _is_initialized(container: v1.Container, status: v1.ContainerStatus | None) -> bool:
    if status is None:
        return False
    return bool(status.started if is_sidecar(container) else status.ready)


def _listed(names: Iterable[str]) -> str:
    return f"[{' '.join(names)}]"
