"""A pod in one line, as kubectl words it."""

from __future__ import annotations

from lightkube.models import core_v1 as v1

from winpod.node.pods import condition, init_containers, is_deleted, is_sidecar
from winpod.node.requests import spec_of


def state_of(pod: v1.Pod) -> str:
    """`Running`, `CrashLoopBackOff`, `Init:0/2`, `Completed`, `Terminating`..."""
    status = pod.status or v1.PodStatus()
    found = status.reason or status.phase or "Pending"
    starting = _starting(pod, status)
    if starting:
        found = starting
    else:
        for container in reversed(status.containerStatuses or ()):
            found = _of_container(container.state) or found
    if found == "Completed" and any(c.ready for c in status.containerStatuses or ()):
        found = "Running"
    if is_deleted(pod) and status.phase not in ("Succeeded", "Failed"):
        found = "Terminating"
    return found


def _starting(pod: v1.Pod, status: v1.PodStatus) -> str:
    containers = init_containers(pod)
    by_name = {one.name: one for one in containers}
    for number, container in enumerate(status.initContainerStatuses or ()):
        state = container.state or v1.ContainerState()
        spec = by_name.get(container.name)
        if state.terminated and state.terminated.exitCode == 0:
            continue
        if spec is not None and is_sidecar(spec) and container.started:
            continue
        reason = _of_container(state)
        if not reason or reason == "PodInitializing":
            return f"Init:{number}/{len(containers)}"
        return f"Init:{reason}"
    return ""


def _of_container(state: v1.ContainerState | None) -> str:
    if state and state.waiting and state.waiting.reason:
        return state.waiting.reason
    if state and state.terminated:
        ended = state.terminated
        return ended.reason or f"ExitCode:{ended.exitCode}"
    return ""


def readiness(pod: v1.Pod) -> str:
    statuses = (pod.status.containerStatuses if pod.status else None) or ()
    return f"{sum(bool(one.ready) for one in statuses)}/{len(spec_of(pod).containers)}"


def restart_count(pod: v1.Pod) -> int:
    statuses = (pod.status.containerStatuses if pod.status else None) or ()
    return sum(one.restartCount for one in statuses)


def trouble_of(pod: v1.Pod) -> str:
    """The sentence of whatever the pod or a container waits for, or of how the pod failed."""
    status = pod.status or v1.PodStatus()
    for container in (*(status.initContainerStatuses or ()), *(status.containerStatuses or ())):
        state = container.state or v1.ContainerState()
        if state.waiting and state.waiting.message:
            return state.waiting.message
        last = container.lastState or v1.ContainerState()
        for ended in (state.terminated, last.terminated):
            if ended and ended.exitCode and ended.message:
                return ended.message
    scheduled = condition(status, "PodScheduled")
    waiting = scheduled.message if scheduled and scheduled.status == "False" else ""
    return status.message or waiting or ""
