"""A pod's status to the letter: from what the runtime has, what is known, and what was said.

What was said before counts where the runtime has forgotten: a container that is gone has ended, a
restart count does not fall, and a pod that is over stays so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from lightkube.models import core_v1 as v1

from winpod.node.decide import needs_sandbox, starts_again
from winpod.node.health import WELL, Health, Result
from winpod.node.phase import Told, conditions_of, phase_of
from winpod.node.pods import (
    ENDED,
    ephemeral_containers,
    init_containers,
    is_deleted,
    is_sidecar,
    qos_class,
    regular_containers,
    whole_seconds,
    with_fields,
)
from winpod.node.requests import metadata_of, spec_of
from winpod.node.seen import ContainerSeen, PodSeen, State

RUNTIME = "winpod"
MESSAGE_LIMIT = 4096
MESSAGES_LIMIT = 12 * 1024
_LOST = 137
_OURS = (
    "PodReadyToStartContainers",
    "Initialized",
    "Ready",
    "ContainersReady",
    "PodScheduled",
    "PodResizePending",
    "PodResizeInProgress",
)


@dataclass(frozen=True, slots=True)
class Why:
    """The word and the sentence for what keeps a container waiting, or ended a pod."""

    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class Known:
    """What the engine knows of a pod beside what the runtime has.

    `failure` is why the pod has failed, whatever its containers did. `is_over` says that nothing
    is started again.
    """

    start_time: datetime
    waiting: Mapping[str, Why] = field(default_factory=dict)
    health: Mapping[str, Health] = field(default_factory=dict)
    failure: Why | None = None
    is_over: bool = False
    conditions: tuple[Told, ...] = ()


def make_status(
    pod: v1.Pod,
    seen: PodSeen,
    known: Known,
    before: v1.PodStatus | None,
    host_ip: str,
    now: datetime,
) -> v1.PodStatus:
    before = before or pod.status or v1.PodStatus()
    writer = _Writer(pod, seen, known)
    init = writer.statuses(init_containers(pod), before.initContainerStatuses)
    regular = writer.statuses(regular_containers(pod), before.containerStatuses)
    debugging = writer.statuses(ephemeral_containers(pod), before.ephemeralContainerStatuses)
    _shorten_messages([*init, *regular, *debugging])
    statuses = {status.name: status for status in (*init, *regular)}
    phase, why = _phase(pod, seen, statuses, known, before)
    others = [c for c in (pod.status and pod.status.conditions) or () if c.type not in _OURS]
    told = conditions_of(
        pod, statuses, phase, has_sandbox=not needs_sandbox(pod, seen), others=others
    )
    ours = [_dated(one, pod, before, now) for one in (*known.conditions, *told)]
    added = {condition.type for condition in ours}
    ips = seen.ips or ((host_ip,) if spec_of(pod).hostNetwork and host_ip else ())
    return v1.PodStatus(
        phase=phase,
        reason=why.reason or None,
        message=why.message or None,
        conditions=[*(c for c in others if c.type not in added), *ours],
        hostIP=host_ip or None,
        hostIPs=[v1.HostIP(ip=host_ip)] if host_ip else None,
        podIP=ips[0] if ips else None,
        podIPs=[v1.PodIP(ip=ip) for ip in ips] or None,
        startTime=whole_seconds(known.start_time),
        initContainerStatuses=init or None,
        containerStatuses=regular,
        ephemeralContainerStatuses=debugging or None,
        qosClass=qos_class(pod),
        observedGeneration=metadata_of(pod).generation,
    )


def rejected(pod: v1.Pod, why: Why, now: datetime) -> v1.PodStatus:
    """The status of a pod that the node does not take."""
    return v1.PodStatus(
        phase="Failed",
        reason=why.reason,
        message=f"Pod was rejected: {why.message}",
        startTime=whole_seconds(now),
        qosClass=qos_class(pod),
        conditions=(pod.status and pod.status.conditions) or None,
        observedGeneration=metadata_of(pod).generation,
    )


def _phase(
    pod: v1.Pod,
    seen: PodSeen,
    statuses: Mapping[str, v1.ContainerStatus],
    known: Known,
    before: v1.PodStatus,
) -> tuple[str, Why]:
    """A pod that is over stays so; none is while a container still runs."""
    kept = Why(before.reason or "", before.message or "")
    stated = (pod.status and pod.status.phase) or ""
    for phase in (stated, before.phase or ""):
        if phase in ENDED:
            return phase, kept
    phase, why = phase_of(pod, statuses, is_over=known.is_over), Why("")
    if known.failure:
        phase, why = "Failed", known.failure
    if phase in ENDED and seen.running():
        return before.phase or "Pending", kept
    return phase, kept if phase == before.phase else why


def _dated(told: Told, pod: v1.Pod, before: v1.PodStatus, now: datetime) -> v1.PodCondition:
    status = "True" if told.holds else "False"
    old = next((c for c in before.conditions or () if c.type == told.type), None)
    changed = old is None or old.status != status or old.lastTransitionTime is None
    return v1.PodCondition(
        type=told.type,
        status=status,
        reason=told.reason or None,
        message=told.message or None,
        lastTransitionTime=whole_seconds(now) if changed or not old else old.lastTransitionTime,
        observedGeneration=metadata_of(pod).generation,
    )


class _Writer:
    """Container statuses of one pod."""

    def __init__(self, pod: v1.Pod, seen: PodSeen, known: Known) -> None:
        self._pod = pod
        self._seen = seen
        self._known = known
        self._init = {container.name for container in init_containers(pod)}
        self._probed = self._init | {container.name for container in regular_containers(pod)}
        self._has_begun = any(seen.last(c.name) for c in regular_containers(pod))

    def statuses(
        self, containers: Sequence[v1.Container], before: Sequence[v1.ContainerStatus] | None
    ) -> list[v1.ContainerStatus]:
        old = {status.name: status for status in before or ()}
        return [self._status(container, old.get(container.name)) for container in containers]

    def _status(
        self, container: v1.Container, before: v1.ContainerStatus | None
    ) -> v1.ContainerStatus:
        history = self._seen.of(container.name)
        status = _told(history, before) if history else self._unseen(container, before)
        self._add_waiting(container, status, history[0] if history else None)
        self._add_health(container, status, history[0] if history else None)
        resources = container.resources
        if history and resources and (resources.requests or resources.limits):
            status.resources = resources
            status.allocatedResources = resources.requests
        status.volumeMounts = [
            v1.VolumeMountStatus(
                name=mount.name,
                mountPath=mount.mountPath,
                readOnly=mount.readOnly,
                recursiveReadOnly="Disabled" if mount.readOnly else None,
            )
            for mount in container.volumeMounts or ()
        ] or None
        return status

    def _unseen(
        self, container: v1.Container, before: v1.ContainerStatus | None
    ) -> v1.ContainerStatus:
        """Not made yet, or forgotten by the runtime."""
        state = before.state if before else None
        if before and state and state.terminated:
            return with_fields(before)
        name = container.name
        if name in self._init and not is_sidecar(container) and self._has_begun:
            return _empty(container, v1.ContainerState(terminated=_ASSUMED_DONE), before)
        reason = "PodInitializing" if self._init else "ContainerCreating"
        waiting = v1.ContainerState(waiting=v1.ContainerStateWaiting(reason=reason))
        status = _empty(container, waiting, before)
        if state and state.running:
            status.lastState = v1.ContainerState(terminated=_LOST_WHILE_RUNNING)
            if not is_deleted(self._pod):
                status.restartCount += 1
        return status

    def _add_waiting(
        self, container: v1.Container, status: v1.ContainerStatus, last: ContainerSeen | None
    ) -> None:
        why = self._known.waiting.get(container.name)
        if why is None or self._known.is_over or is_deleted(self._pod):
            return
        is_step = container.name in self._init and not is_sidecar(container)
        if (is_step and last and last.succeeded) or not starts_again(container, self._pod, last):
            return
        if status.state and status.state.terminated:
            status.lastState = status.state
        status.state = v1.ContainerState(
            waiting=v1.ContainerStateWaiting(reason=why.reason, message=why.message or None)
        )

    def _add_health(
        self, container: v1.Container, status: v1.ContainerStatus, last: ContainerSeen | None
    ) -> None:
        if container.name not in self._probed:
            return
        health = self._known.health.get(last.id, WELL) if last else WELL
        is_running = bool(status.state and status.state.running)
        status.started = is_running and health.has_started
        if container.name in self._init and not is_sidecar(container):
            end = status.state and status.state.terminated
            status.ready = bool(end and end.exitCode == 0)
        else:
            status.ready = status.started and health.readiness is Result.SUCCESS


_ASSUMED_DONE = v1.ContainerStateTerminated(
    exitCode=0,
    reason="Completed",
    message="the runtime no longer has this init container, and the pod went on after it",
)
_LOST_WHILE_RUNNING = v1.ContainerStateTerminated(
    exitCode=_LOST,
    reason="ContainerStatusUnknown",
    message="the container was running, and the runtime no longer has it",
)


def _empty(
    container: v1.Container, state: v1.ContainerState, before: v1.ContainerStatus | None
) -> v1.ContainerStatus:
    return v1.ContainerStatus(
        name=container.name,
        image=container.image or "",
        imageID="",
        ready=False,
        restartCount=before.restartCount if before else 0,
        state=state,
        lastState=before.lastState if before else None,
    )


def _told(
    history: Sequence[ContainerSeen], before: v1.ContainerStatus | None
) -> v1.ContainerStatus:
    last = history[0]
    return v1.ContainerStatus(
        name=last.name,
        image=last.image,
        imageID=last.image_ref,
        containerID=container_id(last.id),
        ready=False,
        restartCount=last.restart_count,
        state=_state(last),
        lastState=_last_state(history, before),
    )


def _last_state(
    history: Sequence[ContainerSeen], before: v1.ContainerStatus | None
) -> v1.ContainerState | None:
    if len(history) > 1:
        return _state(history[1])
    if before is None:
        return None
    is_new = before.containerID not in (None, container_id(history[0].id))
    if is_new and before.state and before.state.terminated:
        return before.state
    waits_again = before.lastState and before.lastState.terminated
    if waits_again and waits_again.containerID == container_id(history[0].id):
        return None
    return before.lastState


def _state(container: ContainerSeen) -> v1.ContainerState:
    started = whole_seconds(container.started_at) if container.started_at else None
    match container.state:
        case State.RUNNING:
            return v1.ContainerState(running=v1.ContainerStateRunning(startedAt=started))
        case State.EXITED:
            ended = whole_seconds(container.finished_at) if container.finished_at else None
            return v1.ContainerState(
                terminated=v1.ContainerStateTerminated(
                    exitCode=container.exit_code,
                    reason=container.reason or None,
                    message=container.message or None,
                    startedAt=started,
                    finishedAt=ended,
                    containerID=container_id(container.id),
                )
            )
    return v1.ContainerState(waiting=v1.ContainerStateWaiting())


def container_id(id_: str) -> str:
    return f"{RUNTIME}://{id_}"


def _shorten_messages(statuses: Sequence[v1.ContainerStatus]) -> None:
    """All messages of a pod together have a limit, shared by its containers."""
    share = min(MESSAGE_LIMIT, MESSAGES_LIMIT // max(len(statuses), 1))
    for status in statuses:
        for state in (status.state, status.lastState):
            end = state.terminated if state else None
            if end and end.message:
                end.message = end.message.encode()[:share].decode(errors="ignore")
