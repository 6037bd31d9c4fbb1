"""The phase and conditions of a pod, and the kubelet's own state that they depend on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from winpod.k8s.models import core_v1 as v1
from winpod.k8s.pods import (
    RESTARTING_ALL,
    init_containers,
    is_sidecar,
    regular_containers,
    should_restart,
    sidecars,
    spec_of,
)
from winpod.kubelet.prober.results import ContainerHealth

Statuses = Mapping[str, v1.ContainerStatus]


@dataclass(frozen=True, slots=True)
class PodCondition:
    """A pod condition without timestamps."""

    type: str
    status: bool
    reason: str = ""
    message: str = ""


def phase_of(pod: v1.Pod, statuses: Statuses, *, is_finished: bool, has_run: bool) -> str:
    """Return the pod phase.

    `is_finished`: no container is restarted, regardless of the restart policy. `has_run`: a regular
    container was created in the current sandbox.
    """
    if any(
        _failed_permanently(c, pod, statuses.get(c.name)) for c in _run_once_init_containers(pod)
    ):
        return "Failed"
    regular = [statuses.get(container.name) for container in regular_containers(pod)]
    sidecar_statuses = [statuses.get(container.name) for container in sidecars(pod)]
    if any(not _has_terminated(statuses.get(c.name)) for c in _run_once_init_containers(pod)):
        return "Pending"
    if not has_run and any(_is_starting(status) for status in sidecar_statuses):
        return "Pending"
    if any(_waits_for_first(status) for status in (*regular, *sidecar_statuses)):
        return "Pending"
    if any(_running(status) for status in (*regular, *sidecar_statuses)):
        return "Running"
    ends = [_end(status) for status in regular]
    will_restart = [
        end is None or _will_restart(container, pod, end)
        for container, end in zip(regular_containers(pod), ends, strict=True)
    ]
    if any(will_restart) and not is_finished:
        return "Running"
    return "Succeeded" if all(end and end.exitCode == 0 for end in ends) else "Failed"


def _run_once_init_containers(pod: v1.Pod) -> list[v1.Container]:
    return [container for container in init_containers(pod) if not is_sidecar(container)]


def _state(status: v1.ContainerStatus | None) -> v1.ContainerState:
    return (status and status.state) or v1.ContainerState()


def _running(status: v1.ContainerStatus | None) -> bool:
    return _state(status).running is not None


def _end(status: v1.ContainerStatus | None) -> v1.ContainerStateTerminated | None:
    """Return the last termination, also of a container that waits to be restarted."""
    before = (status and status.lastState) or v1.ContainerState()
    return _state(status).terminated or before.terminated


def _waits_for_first(status: v1.ContainerStatus | None) -> bool:
    return status is None or (_state(status).waiting is not None and _end(status) is None)


def _is_starting(status: v1.ContainerStatus | None) -> bool:
    if status is None or _waits_for_first(status):
        return True
    return _running(status) and not status.started


def _has_terminated(status: v1.ContainerStatus | None) -> bool:
    """Whether an init container has terminated, successfully or not."""
    return not _running(status) and _end(status) is not None


def _failed_permanently(
    container: v1.Container, pod: v1.Pod, status: v1.ContainerStatus | None
) -> bool:
    end = None if _running(status) else _end(status)
    return end is not None and end.exitCode != 0 and not _will_restart(container, pod, end)


def _will_restart(container: v1.Container, pod: v1.Pod, end: v1.ContainerStateTerminated) -> bool:
    return should_restart(container, pod, end.exitCode) or end.reason == RESTARTING_ALL


def conditions_of(
    pod: v1.Pod,
    statuses: Statuses,
    phase: str,
    *,
    has_sandbox: bool,
    others: Sequence[v1.PodCondition] = (),
    before: Sequence[v1.PodCondition] = (),
) -> list[PodCondition]:
    """Return the pod's conditions.

    `others` are the conditions that readiness gates may refer to, `before` the reported ones.
    """
    was_initialized = any(c.type == "Initialized" and c.status == "True" for c in before)
    containers = _containers_ready(pod, statuses, phase)
    return [
        PodCondition("PodReadyToStartContainers", has_sandbox),
        _initialized(pod, statuses, phase, was_initialized=was_initialized),
        _ready(pod, containers, others),
        containers,
        PodCondition("PodScheduled", True),
    ]


def _containers_ready(pod: v1.Pod, statuses: Statuses, phase: str) -> PodCondition:
    condition_type = "ContainersReady"
    if phase in _TERMINAL_REASONS:
        return PodCondition(condition_type, False, _TERMINAL_REASONS[phase])
    unready = [
        container.name
        for container in (*sidecars(pod), *regular_containers(pod))
        if not ((status := statuses.get(container.name)) and status.ready)
    ]
    if unready:
        message = f"containers with unready status: {_format_names(unready)}"
        return PodCondition(condition_type, False, "ContainersNotReady", message)
    return PodCondition(condition_type, True)


_TERMINAL_REASONS = {"Succeeded": "PodCompleted", "Failed": "PodFailed"}


def _ready(
    pod: v1.Pod, containers: PodCondition, others: Sequence[v1.PodCondition]
) -> PodCondition:
    if not containers.status:
        return PodCondition("Ready", False, containers.reason, containers.message)
    stated = {condition.type: condition.status for condition in others}
    messages = [
        _gate_message(gate.conditionType, stated.get(gate.conditionType))
        for gate in spec_of(pod).readinessGates or ()
        if stated.get(gate.conditionType) != "True"
    ]
    if messages:
        return PodCondition("Ready", False, "ReadinessGatesNotReady", ", ".join(messages))
    return PodCondition("Ready", True)


def _gate_message(gate: str, status: str | None) -> str:
    if status is None:
        return f'corresponding condition of pod readiness gate "{gate}" does not exist.'
    return f'the status of pod readiness gate "{gate}" is not "True", but {status}'


def _initialized(
    pod: v1.Pod, statuses: Statuses, phase: str, *, was_initialized: bool
) -> PodCondition:
    condition_type = "Initialized"
    if phase == "Succeeded":
        return PodCondition(condition_type, True, "PodCompleted")
    if was_initialized or any(
        _is_past_waiting(statuses.get(c.name)) for c in regular_containers(pod)
    ):
        return PodCondition(condition_type, True)
    incomplete = [
        container.name
        for container in init_containers(pod)
        if not _is_initialized(container, statuses.get(container.name))
    ]
    if incomplete:
        message = f"containers with incomplete status: {_format_names(incomplete)}"
        return PodCondition(condition_type, False, "ContainersNotInitialized", message)
    return PodCondition(condition_type, True)


def _is_past_waiting(status: v1.ContainerStatus | None) -> bool:
    return _running(status) or _state(status).terminated is not None


def has_initialized(pod: v1.Pod, statuses: Statuses) -> bool:
    """Whether any status shows that the init containers have completed."""
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


def _format_names(names: Iterable[str]) -> str:
    return f"[{' '.join(names)}]"


_RESIZING = "PodResizeInProgress"
RESIZE_CONDITIONS = ("PodResizePending", _RESIZING)


@dataclass(frozen=True, slots=True)
class StatusReason:
    """Reason and message for a waiting container or a failed pod."""

    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class PodState:
    """The kubelet's own state of a pod, beside what the runtime reports.

    `failure` overrides the phase that follows from the containers. `is_finished`: no container is
    restarted.
    """

    start_time: datetime
    waiting: Mapping[str, StatusReason] = field(default_factory=dict)
    health: Mapping[str, ContainerHealth] = field(default_factory=dict)
    failure: StatusReason | None = None
    is_finished: bool = False
    conditions: tuple[PodCondition, ...] = ()

    @property
    def is_resizing(self) -> bool:
        return any(condition.type == _RESIZING for condition in self.conditions)
