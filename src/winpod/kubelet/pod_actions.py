"""Computes the next actions for a pod from its spec and its state in the runtime. Pure.

Init containers run in order, each once; restartable ones continue as sidecars, and the next init
container waits only until they have started. A pod starts over if its sandbox is lost or if a
RestartAllContainers rule fires. The worker executes the actions and computes again until none are
left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from winpod.k8s.models import core_v1 as v1
from winpod.k8s.pods import (
    ephemeral_containers,
    init_containers,
    is_sidecar,
    regular_containers,
    should_restart,
    should_restart_after_kill,
    spec_of,
)
from winpod.kubelet.cri_convert import container_hash, container_resources
from winpod.kubelet.prober.results import HEALTHY, ContainerHealth, ProbeResult
from winpod.kubelet.runtime_status import ContainerState, RuntimeContainer, RuntimePod
from winpod.kubelet.status.restart_all import containers_to_reset


class KillReason(StrEnum):
    NONE = ""
    STARTUP_PROBE = "StartupProbe"
    LIVENESS_PROBE = "LivenessProbe"


@dataclass(frozen=True, slots=True)
class ContainerKill:
    container: RuntimeContainer
    message: str
    reason: KillReason = KillReason.NONE


@dataclass(frozen=True, slots=True)
class ContainerResize:
    current: RuntimeContainer
    container: v1.Container


@dataclass(frozen=True, slots=True)
class PodActions:
    """Actions in order: kill the pod, create a sandbox, then kill, resize and start containers.

    `resets` are containers to kill and remove, in order, before all containers start again.
    """

    resets: tuple[RuntimeContainer, ...] = ()
    kill_pod: bool = False
    make_sandbox: bool = False
    attempt: int = 0
    kills: tuple[ContainerKill, ...] = ()
    resizes: tuple[ContainerResize, ...] = ()
    starts: tuple[v1.Container, ...] = ()


def compute_pod_actions(
    pod: v1.Pod, runtime_pod: RuntimePod, health: Mapping[str, ContainerHealth], cpus: int
) -> PodActions:
    if resets := containers_to_reset(pod, runtime_pod):
        return PodActions(resets=resets)
    if needs_sandbox(pod, runtime_pod):
        return _start_over(pod, runtime_pod)
    ephemeral = [
        c for c in ephemeral_containers(pod) if runtime_pod.latest_container(c.name) is None
    ]
    init = _compute_init_actions(pod, runtime_pod, health)
    if init.has_failed:
        return PodActions(kill_pod=True)
    if not init.is_done:
        return PodActions(kills=tuple(init.kills), starts=(*ephemeral, *init.starts))
    regular = _compute_regular_actions(pod, runtime_pod, health, cpus)
    if not regular.kept and not regular.starts:
        return PodActions(kill_pod=True)
    return PodActions(
        kills=(*init.kills, *regular.kills),
        resizes=tuple(regular.resizes),
        starts=(*ephemeral, *init.starts, *regular.starts),
    )


def needs_sandbox(pod: v1.Pod, runtime_pod: RuntimePod) -> bool:
    newest = runtime_pod.newest_sandbox
    if newest is None or not newest.is_ready:
        return True
    if sum(sandbox.is_ready for sandbox in runtime_pod.sandboxes) > 1:
        return True
    host_network = bool(spec_of(pod).hostNetwork)
    return newest.host_network != host_network or not (host_network or newest.ips)


def _start_over(pod: v1.Pod, runtime_pod: RuntimePod) -> PodActions:
    attempt = runtime_pod.newest_sandbox.attempt + 1 if runtime_pod.newest_sandbox else 0
    has_run = any(True for _ in runtime_pod.containers())
    if attempt and has_run and spec_of(pod).restartPolicy == "Never":
        return PodActions(kill_pod=True)
    starts = [c for c in regular_containers(pod) if not _is_done(c, pod, runtime_pod)]
    if not starts and any(runtime_pod.latest_container(c.name) for c in regular_containers(pod)):
        return PodActions(kill_pod=True)
    first = init_containers(pod)[:1] or starts
    return PodActions(kill_pod=attempt > 0, make_sandbox=True, attempt=attempt, starts=tuple(first))


def _is_done(container: v1.Container, pod: v1.Pod, runtime_pod: RuntimePod) -> bool:
    """Whether the container has succeeded and is not restarted."""
    last = runtime_pod.latest_container(container.name)
    return last is not None and last.succeeded and not should_restart(container, pod, 0)


@dataclass(slots=True)
class _InitActions:
    is_done: bool = False
    has_failed: bool = False
    kills: list[ContainerKill] = field(default_factory=list)
    starts: list[v1.Container] = field(default_factory=list)

    def restart(self, container: v1.Container, kill: ContainerKill | None = None) -> None:
        self.starts.insert(0, container)
        if kill:
            self.kills.append(kill)


def _compute_init_actions(
    pod: v1.Pod, runtime_pod: RuntimePod, health: Mapping[str, ContainerHealth]
) -> _InitActions:
    """Compute the actions for init containers.

    Iterates backwards, because the runtime may have lost completed ones: the last one that was
    created shows the progress. A new sandbox starts over.
    """
    actions = _InitActions()
    containers = init_containers(pod)
    current = runtime_pod.newest_sandbox.containers if runtime_pod.newest_sandbox else ()
    has_started = _has_regular_container(pod, runtime_pod)
    actions.is_done = has_started or not containers
    for index in reversed(range(len(containers))):
        container = containers[index]
        last = next((c for c in reversed(current) if c.name == container.name), None)
        if last is None:
            if has_started and is_sidecar(container):
                actions.restart(container)
            continue
        if has_started and not is_sidecar(container):
            continue
        may_continue = _add_init_actions(container, last, pod, health, actions)
        if actions.has_failed:
            return actions
        if may_continue and index == len(containers) - 1:
            actions.is_done = True
        elif may_continue and not has_started:
            actions.starts.insert(0, containers[index + 1])
        has_started = True
    if containers and not has_started:
        actions.starts.insert(0, containers[0])
    return actions


def _has_regular_container(pod: v1.Pod, runtime_pod: RuntimePod) -> bool:
    """Whether a regular container has been created in the current sandbox."""
    names = {container.name for container in regular_containers(pod)}
    current = runtime_pod.newest_sandbox.containers if runtime_pod.newest_sandbox else ()
    return any(c.name in names for c in current)


def _add_init_actions(
    container: v1.Container,
    last: RuntimeContainer,
    pod: v1.Pod,
    health: Mapping[str, ContainerHealth],
    actions: _InitActions,
) -> bool:
    """Add the actions for one init container; return whether the next one may start."""
    match last.state:
        case ContainerState.CREATED:
            actions.restart(container)
        case ContainerState.RUNNING if is_sidecar(container):
            return _add_sidecar_actions(container, last, health.get(last.id, HEALTHY), actions)
        case ContainerState.RUNNING:
            pass
        case ContainerState.EXITED if is_sidecar(container):
            actions.restart(container)
        case ContainerState.EXITED if last.succeeded:
            return True
        case ContainerState.EXITED if should_restart(container, pod, last.exit_code):
            actions.restart(container)
        case ContainerState.UNKNOWN if is_sidecar(container) or should_restart_after_kill(
            container, pod
        ):
            actions.restart(container, _kill_unknown(last))
        case _:
            actions.has_failed = True
    return False


def _add_sidecar_actions(
    container: v1.Container, last: RuntimeContainer, health: ContainerHealth, actions: _InitActions
) -> bool:
    about = f"Init container {container.name}"
    if health.startup is ProbeResult.FAILURE:
        message = f"{about} failed startup probe"
        actions.restart(container, ContainerKill(last, message, KillReason.STARTUP_PROBE))
    if not health.has_started:
        return False
    if _definition_changed(container, last):
        actions.restart(container, ContainerKill(last, f"{about} definition changed"))
    elif health.liveness is ProbeResult.FAILURE:
        message = f"{about} failed liveness probe"
        actions.restart(container, ContainerKill(last, message, KillReason.LIVENESS_PROBE))
    return True


@dataclass(slots=True)
class _RegularActions:
    kept: int = 0
    kills: list[ContainerKill] = field(default_factory=list)
    resizes: list[ContainerResize] = field(default_factory=list)
    starts: list[v1.Container] = field(default_factory=list)


def _compute_regular_actions(
    pod: v1.Pod, runtime_pod: RuntimePod, health: Mapping[str, ContainerHealth], cpus: int
) -> _RegularActions:
    actions = _RegularActions()
    for container in regular_containers(pod):
        last = runtime_pod.latest_container(container.name)
        if last is None or not last.is_running:
            if last and last.state is ContainerState.UNKNOWN:
                actions.kills.append(_kill_unknown(last))
            if should_start(container, pod, last):
                actions.starts.append(container)
            continue
        kill, restart = _kill_action(container, last, pod, health.get(last.id, HEALTHY), cpus)
        if kill is None:
            actions.kept += 1
            if _is_resized(container, last, cpus):
                actions.resizes.append(ContainerResize(last, container))
            continue
        actions.kills.append(kill)
        if restart:
            actions.starts.append(container)
    return actions


def should_start(container: v1.Container, pod: v1.Pod, last: RuntimeContainer | None) -> bool:
    """Whether a container that is not running should be started."""
    if last is None or not last.has_exited:
        return last is None or not last.is_running
    return should_restart(container, pod, last.exit_code)


def _kill_action(
    container: v1.Container, last: RuntimeContainer, pod: v1.Pod, health: ContainerHealth, cpus: int
) -> tuple[ContainerKill | None, bool]:
    restart = should_restart_after_kill(container, pod)
    about, reason = f"Container {container.name}", KillReason.NONE
    if _definition_changed(container, last):
        message, restart = f"{about} definition changed", True
    elif health.liveness is ProbeResult.FAILURE:
        message, reason = f"{about} failed liveness probe", KillReason.LIVENESS_PROBE
    elif health.startup is ProbeResult.FAILURE:
        message, reason = f"{about} failed startup probe", KillReason.STARTUP_PROBE
    elif _is_resized(container, last, cpus) and _resize_restarts(container, last, cpus):
        message, restart = f"{about} resize requires restart", True
    else:
        return None, False
    return ContainerKill(
        last, f"{message}, will be restarted" if restart else message, reason
    ), restart


def _kill_unknown(last: RuntimeContainer) -> ContainerKill:
    return ContainerKill(last, 'Container is in "unknown" state, try killing it before restart')


def _definition_changed(container: v1.Container, last: RuntimeContainer) -> bool:
    return bool(last.hash) and last.hash != container_hash(container)


def _changed_resources(container: v1.Container, last: RuntimeContainer, cpus: int) -> set[str]:
    """Return the resources whose limits differ from the runtime's; removed limits do not count."""
    desired = container_resources(container.resources, cpus)
    pairs = {
        "cpu": (desired.cpu_maximum, last.cpu_maximum),
        "memory": (desired.memory_limit_in_bytes, last.memory_bytes),
    }
    return {name for name, (limit, actual) in pairs.items() if limit and limit != actual}


def _is_resized(container: v1.Container, last: RuntimeContainer, cpus: int) -> bool:
    return bool(_changed_resources(container, last, cpus))


def _resize_restarts(container: v1.Container, last: RuntimeContainer, cpus: int) -> bool:
    changes = _changed_resources(container, last, cpus)
    return any(
        policy.restartPolicy == "RestartContainer" and policy.resourceName in changes
        for policy in container.resizePolicy or ()
    )
