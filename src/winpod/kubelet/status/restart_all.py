"""The RestartAllContainers rule: a container exit that restarts all containers of its pod.

All containers are removed and started again in the current sandbox, init containers first. The
statuses report this until the containers have started again.
"""

from __future__ import annotations

from collections.abc import Iterator

from winpod.k8s.models import core_v1 as v1
from winpod.k8s.pods import RESTARTING_ALL, init_containers, regular_containers, should_restart_all
from winpod.kubelet.runtime_status import RuntimeContainer, RuntimePod
from winpod.kubelet.status.phase import PodCondition

CONDITION = "AllContainersRestarting"
_EXIT_CODE = 137
_MESSAGE = "the container was removed because the exit of another container restarts the pod"
_TERMINAL_REASONS = {"Succeeded": "PodCompleted", "Failed": "PodFailed"}


def could_restart_all(pod: v1.Pod) -> bool:
    return any(
        rule.action == "RestartAllContainers"
        for container in _containers(pod)
        for rule in container.restartPolicyRules or ()
    )


def containers_to_reset(pod: v1.Pod, runtime_pod: RuntimePod) -> tuple[RuntimeContainer, ...]:
    """Return the containers to remove.

    Those that triggered the restart come last, so that the trigger survives an interruption.
    """
    if not _is_triggered(pod, runtime_pod):
        return ()
    containers = [
        (_triggers(container, current), current)
        for container in (*regular_containers(pod), *init_containers(pod))
        for current in runtime_pod.containers_named(container.name)
    ]
    return tuple(current for _, current in sorted(containers, key=lambda pair: pair[0]))


def is_restarting_all(pod: v1.Pod, runtime_pod: RuntimePod, before: v1.PodStatus) -> bool:
    """Whether a restart was triggered and is not complete, or its end was not reported yet."""
    if not could_restart_all(pod):
        return False
    was_restarting = any(
        c.type == CONDITION and c.status == "True" for c in before.conditions or ()
    )
    return was_restarting or _is_triggered(pod, runtime_pod)


def restarting_condition(
    pod: v1.Pod, runtime_pod: RuntimePod, before: v1.PodStatus, phase: str
) -> Iterator[PodCondition]:
    """Yield the condition, for pods that have such a rule."""
    if not could_restart_all(pod):
        return
    if phase in _TERMINAL_REASONS:
        yield PodCondition(CONDITION, False, _TERMINAL_REASONS[phase])
    elif is_restarting_all(pod, runtime_pod, before) and any(
        runtime_pod.containers_named(c.name) for c in _containers(pod)
    ):
        message = "container exited with restart policy rule"
        yield PodCondition(CONDITION, True, "RestartAllContainersStarted", message)
    else:
        yield PodCondition(CONDITION, False)


def removed_container_status(
    status: v1.ContainerStatus, before: v1.ContainerStatus
) -> v1.ContainerStatus:
    """Update the status of a container that was removed to be restarted."""
    status.state = v1.ContainerState(
        waiting=v1.ContainerStateWaiting(reason=RESTARTING_ALL, message=_MESSAGE)
    )
    status.lastState = v1.ContainerState(
        terminated=v1.ContainerStateTerminated(
            exitCode=_EXIT_CODE, reason=RESTARTING_ALL, message=_MESSAGE
        )
    )
    status.restartCount = before.restartCount + 1
    return status


def _is_triggered(pod: v1.Pod, runtime_pod: RuntimePod) -> bool:
    latest = (
        (container, runtime_pod.latest_container(container.name)) for container in _containers(pod)
    )
    return any(last is not None and _triggers(container, last) for container, last in latest)


def _triggers(container: v1.Container, current: RuntimeContainer) -> bool:
    return current.has_exited and should_restart_all(container, current.exit_code)


def _containers(pod: v1.Pod) -> list[v1.Container]:
    return [*init_containers(pod), *regular_containers(pod)]
