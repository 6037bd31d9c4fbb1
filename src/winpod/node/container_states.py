"""What the runtime has of a container, and had, in the API's words.

What was said before counts where the runtime has forgotten: a restart count does not fall, and the
end before this one is remembered.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from lightkube.models import core_v1 as v1

from winpod.node.pods import whole_seconds
from winpod.node.seen import ContainerSeen, State

RUNTIME = "winpod"
MESSAGES_LIMIT = 12 * 1024
_LOST = 137
_NEVER = datetime.fromtimestamp(0, UTC)

ASSUMED_DONE = v1.ContainerState(
    terminated=v1.ContainerStateTerminated(
        exitCode=0,
        reason="Completed",
        message="the runtime no longer has this init container, and the pod went on after it",
    )
)


def lost(message: str) -> v1.ContainerState:
    """The end of a container that nobody has seen end."""
    return v1.ContainerState(
        terminated=v1.ContainerStateTerminated(
            exitCode=_LOST, reason="ContainerStatusUnknown", message=message
        )
    )


LOST_WHILE_RUNNING = lost("the container was running, and the runtime no longer has it")
LOST_AT_THE_END = lost("the pod has ended, and nobody has seen this container end")


def container_id(id_: str) -> str:
    return f"{RUNTIME}://{id_}"


def unseen(
    container: v1.Container, state: v1.ContainerState, before: v1.ContainerStatus | None
) -> v1.ContainerStatus:
    """The status of a container that the runtime does not have."""
    return v1.ContainerStatus(
        name=container.name,
        image=container.image or "",
        imageID="",
        ready=False,
        restartCount=before.restartCount if before else 0,
        state=state,
        lastState=before.lastState if before else None,
    )


def told(history: Sequence[ContainerSeen], before: v1.ContainerStatus | None) -> v1.ContainerStatus:
    """The status of a container of which the runtime has this, the newest first."""
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


def _restarts(last: ContainerSeen, before: v1.ContainerStatus | None) -> int:
    """One more than was said, where what ran before it is forgotten."""
    if before is None:
        return last.restart_count
    state = before.state or v1.ContainerState()
    if last.state is State.UNKNOWN and state.running:
        return before.restartCount + 1
    is_next = last.is_running and state.terminated is not None
    return max(last.restart_count, before.restartCount + is_next)


def _state_now(last: ContainerSeen, before: v1.ContainerStatus | None) -> v1.ContainerState:
    if last.state is State.UNKNOWN and before and before.state:
        if before.state.running:
            return lost("the runtime does not know what became of the container, which was running")
        if before.state.terminated and before.containerID == container_id(last.id):
            return before.state
    return _state(last)


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
    match container.state:
        case State.RUNNING:
            started = _time(container.started_at)
            return v1.ContainerState(running=v1.ContainerStateRunning(startedAt=started))
        case State.EXITED:
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
    """What never was has the beginning of time for its time, as a kubelet has it."""
    return whole_seconds(time or _NEVER)


def mounts(container: v1.Container) -> list[v1.VolumeMountStatus] | None:
    """Windows has no mounts that are read-only all the way down."""
    return [
        v1.VolumeMountStatus(
            name=mount.name,
            mountPath=mount.mountPath,
            readOnly=mount.readOnly or None,
            recursiveReadOnly="Disabled" if mount.readOnly else None,
        )
        for mount in container.volumeMounts or ()
    ] or None


def shorten_messages(statuses: Sequence[v1.ContainerStatus]) -> None:
    """All messages of a pod together have a limit, shared by its containers."""
    share = MESSAGES_LIMIT // max(len(statuses), 1)
    for status in statuses:
        for state in (status.state, status.lastState):
            end = state.terminated if state else None
            if end and end.message:
                end.message = end.message.encode()[:share].decode(errors="ignore")
