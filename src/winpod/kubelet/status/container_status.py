"""Container statuses of a pod, from the runtime's containers and the previous status.

The previous status fills in what the runtime no longer has: restart counts never decrease, and the
last termination state is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from winpod.clock import truncate_to_seconds
from winpod.k8s.models import core_v1 as v1
from winpod.k8s.pods import init_containers, is_deleted, is_sidecar, regular_containers, with_fields
from winpod.kubelet.pod_actions import should_start
from winpod.kubelet.prober.results import HEALTHY, ProbeResult
from winpod.kubelet.runtime_status import ContainerState, RuntimeContainer, RuntimePod
from winpod.kubelet.status.phase import PodState
from winpod.kubelet.status.restart_all import removed_container_status

RUNTIME = "winpod"
MESSAGES_LIMIT = 12 * 1024
_LOST_EXIT_CODE = 137
_EPOCH = datetime.fromtimestamp(0, UTC)

ASSUMED_COMPLETED = v1.ContainerState(
    terminated=v1.ContainerStateTerminated(
        exitCode=0,
        reason="Completed",
        message="the runtime no longer has this init container, and the pod has passed it",
    )
)


def lost_state(message: str) -> v1.ContainerState:
    """Return the terminated state of a container whose exit was not observed."""
    return v1.ContainerState(
        terminated=v1.ContainerStateTerminated(
            exitCode=_LOST_EXIT_CODE, reason="ContainerStatusUnknown", message=message
        )
    )


LOST_WHILE_RUNNING = lost_state("the container was running, but the runtime no longer has it")
LOST_AT_TERMINATION = lost_state(
    "the pod has terminated, and the exit of this container was not observed"
)


def container_id(id_: str) -> str:
    return f"{RUNTIME}://{id_}"


def missing_container_status(
    container: v1.Container, state: v1.ContainerState, before: v1.ContainerStatus | None
) -> v1.ContainerStatus:
    """Return the status of a container that the runtime does not have."""
    return v1.ContainerStatus(
        name=container.name,
        image=container.image or "",
        imageID="",
        ready=False,
        restartCount=before.restartCount if before else 0,
        state=state,
        lastState=before.lastState if before else None,
    )


def status_from_history(
    history: Sequence[RuntimeContainer], before: v1.ContainerStatus | None
) -> v1.ContainerStatus:
    """Return the status of a container from its runtime containers, newest first."""
    last = history[0]
    return v1.ContainerStatus(
        name=last.name,
        image=last.image,
        imageID=last.image_ref,
        containerID=container_id(last.id),
        ready=False,
        restartCount=_restarts(last, before),
        state=_state_now(last, before),
        lastState=_last_state(history, before),
    )


def _restarts(last: RuntimeContainer, before: v1.ContainerStatus | None) -> int:
    """Return the restart count, one higher than before if the previous container was forgotten."""
    if before is None:
        return last.restart_count
    state = before.state or v1.ContainerState()
    if last.state is ContainerState.UNKNOWN and state.running:
        return before.restartCount + 1
    is_next = last.is_running and state.terminated is not None
    return max(last.restart_count, before.restartCount + is_next)


def _state_now(last: RuntimeContainer, before: v1.ContainerStatus | None) -> v1.ContainerState:
    if last.state is ContainerState.UNKNOWN and before and before.state:
        if before.state.running:
            return lost_state("the container was running, and its state in the runtime is unknown")
        if before.state.terminated and before.containerID == container_id(last.id):
            return before.state
    return _state(last)


def _last_state(
    history: Sequence[RuntimeContainer], before: v1.ContainerStatus | None
) -> v1.ContainerState | None:
    if len(history) > 1:
        return _state(history[1])
    if before is None:
        return None
    is_new = before.containerID not in (None, container_id(history[0].id))
    if is_new and before.state and before.state.terminated:
        return before.state
    last_end = before.lastState and before.lastState.terminated
    if last_end and last_end.containerID == container_id(history[0].id):
        return None
    return before.lastState


def _state(container: RuntimeContainer) -> v1.ContainerState:
    match container.state:
        case ContainerState.RUNNING:
            started = _time(container.started_at)
            return v1.ContainerState(running=v1.ContainerStateRunning(startedAt=started))
        case ContainerState.EXITED:
            return v1.ContainerState(
                terminated=v1.ContainerStateTerminated(
                    exitCode=container.exit_code,
                    reason=container.reason or None,
                    message=container.message or None,
                    startedAt=_time(container.started_at),
                    finishedAt=_time(container.finished_at),
                    containerID=container_id(container.id),
                )
            )
    return v1.ContainerState(waiting=v1.ContainerStateWaiting())


def _time(time: datetime | None) -> datetime:
    """Truncate a time; a missing one becomes the epoch, as in the kubelet."""
    return truncate_to_seconds(time or _EPOCH)


def mount_statuses(container: v1.Container) -> list[v1.VolumeMountStatus] | None:
    """Return the volume mount statuses. Windows has no recursive read-only mounts."""
    return [
        v1.VolumeMountStatus(
            name=mount.name,
            mountPath=mount.mountPath,
            readOnly=mount.readOnly or None,
            recursiveReadOnly="Disabled" if mount.readOnly else None,
        )
        for mount in container.volumeMounts or ()
    ] or None


def truncate_messages(statuses: Sequence[v1.ContainerStatus]) -> None:
    """Truncate termination messages: all containers of a pod share one size limit."""
    share = MESSAGES_LIMIT // max(len(statuses), 1)
    for status in statuses:
        for state in (status.state, status.lastState):
            end = state.terminated if state else None
            if end and end.message:
                end.message = end.message.encode()[:share].decode(errors="ignore")


class ContainerStatuses:
    """Builds the statuses of one pod's containers."""

    def __init__(
        self, pod: v1.Pod, runtime_pod: RuntimePod, pod_state: PodState, *, is_restarting_all: bool
    ) -> None:
        self._pod = pod
        self._runtime_pod = runtime_pod
        self._pod_state = pod_state
        self._is_restarting_all = is_restarting_all
        self._init = {container.name for container in init_containers(pod)}
        self._probed = self._init | {container.name for container in regular_containers(pod)}
        self._has_regular_started = any(
            runtime_pod.latest_container(c.name) for c in regular_containers(pod)
        )

    def build(
        self, containers: Sequence[v1.Container], before: Sequence[v1.ContainerStatus] | None
    ) -> list[v1.ContainerStatus]:
        old = {status.name: status for status in before or ()}
        return [self._status(container, old.get(container.name)) for container in containers]

    def _status(
        self, container: v1.Container, before: v1.ContainerStatus | None
    ) -> v1.ContainerStatus:
        history = self._runtime_pod.containers_named(container.name)
        status = (
            status_from_history(history, before) if history else self._missing(container, before)
        )
        self._add_waiting(container, status, history[0] if history else None)
        self._add_health(container, status, history[0] if history else None)
        if history:
            self._add_resources(container, status, before)
        status.volumeMounts = mount_statuses(container)
        return status

    def _add_resources(
        self, container: v1.Container, status: v1.ContainerStatus, before: v1.ContainerStatus | None
    ) -> None:
        """Set the allocated resources; the actual ones stay as they were during a resize."""
        allocated = container.resources or v1.ResourceRequirements()
        status.allocatedResources = allocated.requests or None
        is_same = before is not None and before.containerID == status.containerID
        previous = before.resources if before and is_same and self._pod_state.is_resizing else None
        status.resources = previous or allocated

    def _missing(
        self, container: v1.Container, before: v1.ContainerStatus | None
    ) -> v1.ContainerStatus:
        """Return the status of a container that was not created yet, or that the runtime lost."""
        state = before.state if before else None
        if before and self._is_restarting_all and not (state and state.waiting):
            return removed_container_status(
                missing_container_status(container, v1.ContainerState(), before), before
            )
        if before and state and state.terminated:
            return with_fields(before)
        name = container.name
        if name in self._init and not is_sidecar(container) and self._has_regular_started:
            return missing_container_status(container, ASSUMED_COMPLETED, before)
        reason = "PodInitializing" if self._init else "ContainerCreating"
        waiting = v1.ContainerState(waiting=v1.ContainerStateWaiting(reason=reason))
        status = missing_container_status(container, waiting, before)
        if state and state.running:
            status.lastState = LOST_WHILE_RUNNING
            if not is_deleted(self._pod):
                status.restartCount += 1
        return status

    def _add_waiting(
        self, container: v1.Container, status: v1.ContainerStatus, last: RuntimeContainer | None
    ) -> None:
        reason = self._pod_state.waiting.get(container.name)
        if reason is None or self._pod_state.is_finished or is_deleted(self._pod):
            return
        is_run_once_init = container.name in self._init and not is_sidecar(container)
        if (is_run_once_init and last and last.succeeded) or not should_start(
            container, self._pod, last
        ):
            return
        if status.state and status.state.terminated:
            status.lastState = status.state
        status.state = v1.ContainerState(
            waiting=v1.ContainerStateWaiting(reason=reason.reason, message=reason.message or None)
        )

    def _add_health(
        self, container: v1.Container, status: v1.ContainerStatus, last: RuntimeContainer | None
    ) -> None:
        if container.name not in self._probed:
            return
        health = self._pod_state.health.get(last.id, HEALTHY) if last else HEALTHY
        is_running = bool(status.state and status.state.running)
        status.started = is_running and health.has_started
        if container.name in self._init and not is_sidecar(container):
            end = status.state and status.state.terminated
            status.ready = bool(end and end.exitCode == 0)
        else:
            status.ready = status.started and health.readiness is ProbeResult.SUCCESS
