"""The statuses of a pod's containers: what they do, what they wait for, how probes find them."""

from __future__ import annotations

from collections.abc import Sequence

from lightkube.models import core_v1 as v1

from winpod.node.container_states import ASSUMED_DONE, LOST_WHILE_RUNNING, mounts, told, unseen
from winpod.node.decide import starts_again
from winpod.node.health import WELL, Result
from winpod.node.known import Known
from winpod.node.pods import (
    init_containers,
    is_deleted,
    is_sidecar,
    regular_containers,
    with_fields,
)
from winpod.node.restart_all import removed
from winpod.node.seen import ContainerSeen, PodSeen


class ContainerStatuses:
    """Of the containers of one pod, kind by kind."""

    def __init__(
        self, pod: v1.Pod, seen: PodSeen, known: Known, *, is_restarting_all: bool
    ) -> None:
        self._pod = pod
        self._seen = seen
        self._known = known
        self._is_restarting_all = is_restarting_all
        self._init = {container.name for container in init_containers(pod)}
        self._probed = self._init | {container.name for container in regular_containers(pod)}
        self._has_begun = any(seen.last(c.name) for c in regular_containers(pod))

    def of(
        self, containers: Sequence[v1.Container], before: Sequence[v1.ContainerStatus] | None
    ) -> list[v1.ContainerStatus]:
        old = {status.name: status for status in before or ()}
        return [self._status(container, old.get(container.name)) for container in containers]

    def _status(
        self, container: v1.Container, before: v1.ContainerStatus | None
    ) -> v1.ContainerStatus:
        history = self._seen.of(container.name)
        status = told(history, before) if history else self._unseen(container, before)
        self._add_waiting(container, status, history[0] if history else None)
        self._add_health(container, status, history[0] if history else None)
        if history:
            self._add_resources(container, status, before)
        status.volumeMounts = mounts(container)
        return status

    def _add_resources(
        self, container: v1.Container, status: v1.ContainerStatus, before: v1.ContainerStatus | None
    ) -> None:
        """What it was given; while that is not done yet, what it had stays."""
        given = container.resources or v1.ResourceRequirements()
        status.allocatedResources = given.requests or None
        is_same = before is not None and before.containerID == status.containerID
        had = before.resources if before and is_same and self._known.is_resizing else None
        status.resources = had or given

    def _unseen(
        self, container: v1.Container, before: v1.ContainerStatus | None
    ) -> v1.ContainerStatus:
        """Not made yet, or forgotten by the runtime."""
        state = before.state if before else None
        if before and self._is_restarting_all and not (state and state.waiting):
            return removed(unseen(container, v1.ContainerState(), before), before)
        if before and state and state.terminated:
            return with_fields(before)
        name = container.name
        if name in self._init and not is_sidecar(container) and self._has_begun:
            return unseen(container, ASSUMED_DONE, before)
        reason = "PodInitializing" if self._init else "ContainerCreating"
        waiting = v1.ContainerState(waiting=v1.ContainerStateWaiting(reason=reason))
        status = unseen(container, waiting, before)
        if state and state.running:
            status.lastState = LOST_WHILE_RUNNING
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
