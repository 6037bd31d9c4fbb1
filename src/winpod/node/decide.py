"""What to do next for a pod: decided from what it asks and what the runtime has, and nothing else.

Init containers run in order, each once; those that restart go on as sidecars, and the next waits
only until they have started. A pod whose sandbox is lost begins anew, and so does one of which a
container's rule asks for it. What is decided is done, and then it is decided again, until nothing
is left to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from lightkube.models import core_v1 as v1

from winpod.node.health import WELL, Health, Result
from winpod.node.pods import (
    ephemeral_containers,
    init_containers,
    is_sidecar,
    regular_containers,
    restarts,
    restarts_when_killed,
)
from winpod.node.requests import container_hash, container_resources, spec_of
from winpod.node.restart_all import resets
from winpod.node.seen import ContainerSeen, PodSeen, State


class KillReason(StrEnum):
    NONE = ""
    STARTUP_PROBE = "StartupProbe"
    LIVENESS_PROBE = "LivenessProbe"


@dataclass(frozen=True, slots=True)
class Kill:
    container: ContainerSeen
    message: str
    reason: KillReason = KillReason.NONE


@dataclass(frozen=True, slots=True)
class Resize:
    seen: ContainerSeen
    container: v1.Container


@dataclass(frozen=True, slots=True)
class Plan:
    """In this order: the pod ended, a sandbox made, containers ended, resized, started.

    `resets` are containers that are ended and removed, in this order, so that all begin anew.
    """

    resets: tuple[ContainerSeen, ...] = ()
    end_pod: bool = False
    make_sandbox: bool = False
    attempt: int = 0
    kills: tuple[Kill, ...] = ()
    resizes: tuple[Resize, ...] = ()
    starts: tuple[v1.Container, ...] = ()


def decide(pod: v1.Pod, seen: PodSeen, health: Mapping[str, Health], cpus: int) -> Plan:
    if going := resets(pod, seen):
        return Plan(resets=going)
    if needs_sandbox(pod, seen):
        return _begin_anew(pod, seen)
    debugging = [c for c in ephemeral_containers(pod) if seen.last(c.name) is None]
    beginning = _initialize(pod, seen, health)
    if beginning.has_failed:
        return Plan(end_pod=True)
    if not beginning.is_done:
        return Plan(kills=tuple(beginning.kills), starts=(*debugging, *beginning.starts))
    running = _run(pod, seen, health, cpus)
    if not running.kept and not running.starts:
        return Plan(end_pod=True)
    return Plan(
        kills=(*beginning.kills, *running.kills),
        resizes=tuple(running.resizes),
        starts=(*debugging, *beginning.starts, *running.starts),
    )


def needs_sandbox(pod: v1.Pod, seen: PodSeen) -> bool:
    newest = seen.newest
    if newest is None or not newest.is_ready:
        return True
    if sum(sandbox.is_ready for sandbox in seen.sandboxes) > 1:
        return True
    host_network = bool(spec_of(pod).hostNetwork)
    return newest.host_network != host_network or not (host_network or newest.ips)


def _begin_anew(pod: v1.Pod, seen: PodSeen) -> Plan:
    attempt = seen.newest.attempt + 1 if seen.newest else 0
    has_run = any(True for _ in seen.containers())
    if attempt and has_run and spec_of(pod).restartPolicy == "Never":
        return Plan(end_pod=True)
    starts = [c for c in regular_containers(pod) if not _is_done(c, pod, seen)]
    if not starts and any(seen.last(c.name) for c in regular_containers(pod)):
        return Plan(end_pod=True)
    first = init_containers(pod)[:1] or starts
    return Plan(end_pod=attempt > 0, make_sandbox=True, attempt=attempt, starts=tuple(first))


def _is_done(container: v1.Container, pod: v1.Pod, seen: PodSeen) -> bool:
    """Whether it has succeeded, and does not run again."""
    last = seen.last(container.name)
    return last is not None and last.succeeded and not restarts(container, pod, 0)


@dataclass(slots=True)
class _Beginning:
    is_done: bool = False
    has_failed: bool = False
    kills: list[Kill] = field(default_factory=list)
    starts: list[v1.Container] = field(default_factory=list)

    def again(self, container: v1.Container, kill: Kill | None = None) -> None:
        self.starts.insert(0, container)
        if kill:
            self.kills.append(kill)


def _initialize(pod: v1.Pod, seen: PodSeen, health: Mapping[str, Health]) -> _Beginning:
    """Backwards, because those that are done may be forgotten by the runtime: the last one that
    has begun says how far the pod is. In a new sandbox it begins anew."""
    found = _Beginning()
    containers = init_containers(pod)
    current = seen.newest.containers if seen.newest else ()
    begun = _has_begun(pod, seen)
    found.is_done = begun or not containers
    for index in reversed(range(len(containers))):
        container = containers[index]
        last = next((c for c in reversed(current) if c.name == container.name), None)
        if last is None:
            if begun and is_sidecar(container):
                found.again(container)
            continue
        if begun and not is_sidecar(container):
            continue
        is_over = _look_at(container, last, pod, health, found)
        if found.has_failed:
            return found
        if is_over and index == len(containers) - 1:
            found.is_done = True
        elif is_over and not begun:
            found.starts.insert(0, containers[index + 1])
        begun = True
    if containers and not begun:
        found.starts.insert(0, containers[0])
    return found


def _has_begun(pod: v1.Pod, seen: PodSeen) -> bool:
    """Whether a container after the init containers has been made in this sandbox."""
    names = {container.name for container in regular_containers(pod)}
    current = seen.newest.containers if seen.newest else ()
    return any(c.name in names for c in current)


def _look_at(
    container: v1.Container,
    last: ContainerSeen,
    pod: v1.Pod,
    health: Mapping[str, Health],
    found: _Beginning,
) -> bool:
    """Whether the next one may start; what has to be done for this one is noted."""
    match last.state:
        case State.CREATED:
            found.again(container)
        case State.RUNNING if is_sidecar(container):
            return _look_at_sidecar(container, last, health.get(last.id, WELL), found)
        case State.RUNNING:
            pass
        case State.EXITED if is_sidecar(container):
            found.again(container)
        case State.EXITED if last.succeeded:
            return True
        case State.EXITED if restarts(container, pod, last.exit_code):
            found.again(container)
        case State.UNKNOWN if is_sidecar(container) or restarts_when_killed(container, pod):
            found.again(container, _unknown(last))
        case _:
            found.has_failed = True
    return False


def _look_at_sidecar(
    container: v1.Container, last: ContainerSeen, health: Health, found: _Beginning
) -> bool:
    about = f"Init container {container.name}"
    if health.startup is Result.FAILURE:
        message = f"{about} failed startup probe"
        found.again(container, Kill(last, message, KillReason.STARTUP_PROBE))
    if not health.has_started:
        return False
    if _is_changed(container, last):
        found.again(container, Kill(last, f"{about} definition changed"))
    elif health.liveness is Result.FAILURE:
        message = f"{about} failed liveness probe"
        found.again(container, Kill(last, message, KillReason.LIVENESS_PROBE))
    return True


@dataclass(slots=True)
class _Running:
    kept: int = 0
    kills: list[Kill] = field(default_factory=list)
    resizes: list[Resize] = field(default_factory=list)
    starts: list[v1.Container] = field(default_factory=list)


def _run(pod: v1.Pod, seen: PodSeen, health: Mapping[str, Health], cpus: int) -> _Running:
    found = _Running()
    for container in regular_containers(pod):
        last = seen.last(container.name)
        if last is None or not last.is_running:
            if last and last.state is State.UNKNOWN:
                found.kills.append(_unknown(last))
            if starts_again(container, pod, last):
                found.starts.append(container)
            continue
        kill, restart = _reason_to_end(container, last, pod, health.get(last.id, WELL), cpus)
        if kill is None:
            found.kept += 1
            if _is_resized(container, last, cpus):
                found.resizes.append(Resize(last, container))
            continue
        found.kills.append(kill)
        if restart:
            found.starts.append(container)
    return found


def starts_again(container: v1.Container, pod: v1.Pod, last: ContainerSeen | None) -> bool:
    """Whether a container that does not run should."""
    if last is None or not last.has_ended:
        return last is None or not last.is_running
    return restarts(container, pod, last.exit_code)


def _reason_to_end(
    container: v1.Container, last: ContainerSeen, pod: v1.Pod, health: Health, cpus: int
) -> tuple[Kill | None, bool]:
    restart = restarts_when_killed(container, pod)
    about, reason = f"Container {container.name}", KillReason.NONE
    if _is_changed(container, last):
        message, restart = f"{about} definition changed", True
    elif health.liveness is Result.FAILURE:
        message, reason = f"{about} failed liveness probe", KillReason.LIVENESS_PROBE
    elif health.startup is Result.FAILURE:
        message, reason = f"{about} failed startup probe", KillReason.STARTUP_PROBE
    elif _is_resized(container, last, cpus) and _resize_restarts(container, last, cpus):
        message, restart = f"{about} resize requires restart", True
    else:
        return None, False
    return Kill(last, f"{message}, will be restarted" if restart else message, reason), restart


def _unknown(last: ContainerSeen) -> Kill:
    return Kill(last, 'Container is in "unknown" state, try killing it before restart')


def _is_changed(container: v1.Container, last: ContainerSeen) -> bool:
    return bool(last.hash) and last.hash != container_hash(container)


def _changes(container: v1.Container, last: ContainerSeen, cpus: int) -> set[str]:
    """The resources whose limits are not what the runtime has. To have no limit is no change."""
    wanted = container_resources(container.resources, cpus)
    pairs = {
        "cpu": (wanted.cpu_maximum, last.cpu_maximum),
        "memory": (wanted.memory_limit_in_bytes, last.memory_bytes),
    }
    return {name for name, (asked, has) in pairs.items() if asked and asked != has}


def _is_resized(container: v1.Container, last: ContainerSeen, cpus: int) -> bool:
    return bool(_changes(container, last, cpus))


def _resize_restarts(container: v1.Container, last: ContainerSeen, cpus: int) -> bool:
    changes = _changes(container, last, cpus)
    return any(
        policy.restartPolicy == "RestartContainer" and policy.resourceName in changes
        for policy in container.resizePolicy or ()
    )
