"""How containers are ended: their hook, their grace, and in which order those of a pod go.

Sidecars serve the others, so they go after them, the last one first. All share one grace period,
and the hook takes its time from it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import grpc
from lightkube.models import core_v1 as v1

from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import RemoteError
from winpod.node.decide import Kill, KillReason
from winpod.node.hooks import run_hook
from winpod.node.means import Means
from winpod.node.pods import all_containers, grace_seconds, sidecars
from winpod.node.seen import ContainerSeen, PodSeen
from winpod.node.view import CALL_SECONDS
from winpod.windows.errors import WinpodError

LEAST_GRACE = 2


def grace_of(pod: v1.Pod, kill: Kill) -> int:
    """A probe that failed may have a grace of its own."""
    container = next((c for c in all_containers(pod) if c.name == kill.container.name), None)
    probes = {
        KillReason.LIVENESS_PROBE: container and container.livenessProbe,
        KillReason.STARTUP_PROBE: container and container.startupProbe,
    }
    probe = probes.get(kill.reason)
    own = probe.terminationGracePeriodSeconds if probe else None
    return grace_seconds(pod) if own is None else own


async def end_container(
    pod: v1.Pod,
    seen: ContainerSeen,
    ip: str,
    grace: float,
    means: Means,
    *,
    message: str = "",
    turn: Sequence[asyncio.Event] = (),
) -> None:
    """`turn` are the ends that this one waits for, as long as its grace lasts."""
    deadline = time.monotonic() + grace
    text = message or f"Stopping container {seen.name}"
    await means.tell(pod, "Normal", "Killing", text, seen.name)
    if grace > 0:
        await _before_stop(pod, seen, ip, grace, means)
        with suppress(TimeoutError):
            async with asyncio.timeout(max(deadline - time.monotonic(), 0)):
                for event in turn:
                    await event.wait()
    left = max(int(deadline - time.monotonic()), LEAST_GRACE)
    request = api.StopContainerRequest(container_id=seen.id, timeout=left)
    try:
        await means.call("StopContainer", request, CALL_SECONDS + left)
    except RemoteError as error:
        if error.status is not grpc.StatusCode.NOT_FOUND:
            raise


async def _before_stop(
    pod: v1.Pod, seen: ContainerSeen, ip: str, grace: float, means: Means
) -> None:
    container = next((c for c in all_containers(pod) if c.name == seen.name), None)
    hook = container.lifecycle.preStop if container and container.lifecycle else None
    if container is None or hook is None:
        return
    try:
        async with asyncio.timeout(grace):
            await run_hook(hook, container, seen.id, ip, means.checks)
    except TimeoutError:
        pass
    except WinpodError:
        text = "PreStopHook failed"
        await means.tell(pod, "Warning", "FailedPreStopHook", text, seen.name)


async def end_containers(pod: v1.Pod, seen: PodSeen, grace: float, means: Means) -> None:
    """All that run, or may run."""
    ip = seen.ips[0] if seen.ips else ""
    alive = [container for container in seen.containers() if not container.has_ended]
    ended = {container.id: asyncio.Event() for container in alive}
    last = [container.name for container in sidecars(pod)]

    async def end(container: ContainerSeen) -> None:
        turn = [ended[other.id] for other in alive if _goes_before(other, container, last)]
        try:
            await end_container(pod, container, ip, grace, means, turn=turn)
        finally:
            ended[container.id].set()

    await asyncio.gather(*(end(container) for container in alive))


async def reset_containers(
    pod: v1.Pod, containers: Sequence[ContainerSeen], ip: str, means: Means
) -> None:
    """Ended without grace, and removed, one after the other; their logs stay."""
    for container in containers:
        if not container.has_ended:
            await end_container(pod, container, ip, 0, means)
        request = api.RemoveContainerRequest(container_id=container.id)
        await means.call("RemoveContainer", request)


async def end_containers_in_time(
    pod: Callable[[], v1.Pod],
    seen: Callable[[], PodSeen],
    grace: float | None,
    hurry: asyncio.Event,
    means: Means,
) -> None:
    """Begun again, with the pod's new grace, each time somebody is in a hurry."""
    while True:
        hurry.clear()
        stated = grace_seconds(pod()) if grace is None else grace
        work = asyncio.ensure_future(end_containers(pod(), seen(), stated, means))
        hurried = asyncio.ensure_future(hurry.wait())
        try:
            await asyncio.wait({work, hurried}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                return work.result()
        finally:
            hurried.cancel()
            work.cancel()


def _goes_before(one: ContainerSeen, other: ContainerSeen, sidecars: list[str]) -> bool:
    if one.id == other.id or other.name not in sidecars:
        return False
    return one.name not in sidecars or sidecars.index(one.name) > sidecars.index(other.name)


async def stop_sandboxes(seen: PodSeen, means: Means) -> None:
    for sandbox in seen.sandboxes:
        if sandbox.is_ready:
            request = api.StopPodSandboxRequest(pod_sandbox_id=sandbox.id)
            await means.call("StopPodSandbox", request)


async def remove_sandboxes(seen: PodSeen, means: Means) -> None:
    for sandbox in seen.sandboxes:
        request = api.RemovePodSandboxRequest(pod_sandbox_id=sandbox.id)
        await means.call("RemovePodSandbox", request)
