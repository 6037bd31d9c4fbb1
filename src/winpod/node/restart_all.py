"""A container whose end makes all of its pod begin anew, by a rule of its own.

All containers are removed, and what comes then is as at the pod's beginning, in the sandbox that it
has. Statuses say so until they have started again.
"""

from __future__ import annotations

from collections.abc import Iterator

from lightkube.models import core_v1 as v1

from winpod.node.phase import Told
from winpod.node.pods import RESTARTING_ALL, init_containers, regular_containers, restarts_all
from winpod.node.seen import ContainerSeen, PodSeen

CONDITION = "AllContainersRestarting"
_EXIT_CODE = 137
_MESSAGE = "the container was removed because another one's end restarts them all"
_ENDED = {"Succeeded": "PodCompleted", "Failed": "PodFailed"}


def could_restart_all(pod: v1.Pod) -> bool:
    return any(
        rule.action == "RestartAllContainers"
        for container in _containers(pod)
        for rule in container.restartPolicyRules or ()
    )


def resets(pod: v1.Pod, seen: PodSeen) -> tuple[ContainerSeen, ...]:
    """What has to go. Those that ask for it go last, so that it is known until all others have."""
    if not _is_asked(pod, seen):
        return ()
    made = [
        (_asks(container, one), one)
        for container in (*regular_containers(pod), *init_containers(pod))
        for one in seen.of(container.name)
    ]
    return tuple(one for _, one in sorted(made, key=lambda pair: pair[0]))


def is_restarting_all(pod: v1.Pod, seen: PodSeen, before: v1.PodStatus) -> bool:
    """From when one asks for it until the last of all is gone, and as long as that was not told."""
    if not could_restart_all(pod):
        return False
    was_so = any(c.type == CONDITION and c.status == "True" for c in before.conditions or ())
    return was_so or _is_asked(pod, seen)


def restarting(pod: v1.Pod, seen: PodSeen, before: v1.PodStatus, phase: str) -> Iterator[Told]:
    """The condition, for pods that could."""
    if not could_restart_all(pod):
        return
    if phase in _ENDED:
        yield Told(CONDITION, False, _ENDED[phase])
    elif is_restarting_all(pod, seen, before) and any(seen.of(c.name) for c in _containers(pod)):
        message = "container exited with restart policy rule"
        yield Told(CONDITION, True, "RestartAllContainersStarted", message)
    else:
        yield Told(CONDITION, False)


def removed(status: v1.ContainerStatus, before: v1.ContainerStatus) -> v1.ContainerStatus:
    """The status of a container that was removed so that it starts again."""
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


def _is_asked(pod: v1.Pod, seen: PodSeen) -> bool:
    found = ((container, seen.last(container.name)) for container in _containers(pod))
    return any(last is not None and _asks(container, last) for container, last in found)


def _asks(container: v1.Container, seen: ContainerSeen) -> bool:
    return seen.has_ended and restarts_all(container, seen.exit_code)


def _containers(pod: v1.Pod) -> list[v1.Container]:
    return [*init_containers(pod), *regular_containers(pod)]
