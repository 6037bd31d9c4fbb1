"""Killing containers: preStop hooks, grace periods, and the order within a pod.

Sidecars serve the other containers, so they are killed after them, in reverse order. All containers
share one grace period, which includes the preStop hook.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import grpc

from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import RemoteError
from winpod.errors import WinpodError
from winpod.k8s.models import core_v1 as v1
from winpod.k8s.pods import all_containers, grace_seconds, sidecars
from winpod.kubelet.context import KubeletContext
from winpod.kubelet.lifecycle.hooks import run_hook
from winpod.kubelet.pod_actions import ContainerKill, KillReason
from winpod.kubelet.runtime_client import CALL_TIMEOUT
from winpod.kubelet.runtime_status import RuntimeContainer, RuntimePod

MIN_GRACE_SECONDS = 2


def grace_period(pod: v1.Pod, kill: ContainerKill) -> int:
    """Return the grace period; a failed probe may define its own."""
    container = next((c for c in all_containers(pod) if c.name == kill.container.name), None)
    probes = {
        KillReason.LIVENESS_PROBE: container and container.livenessProbe,
        KillReason.STARTUP_PROBE: container and container.startupProbe,
    }
    probe = probes.get(kill.reason)
    own = probe.terminationGracePeriodSeconds if probe else None
    return grace_seconds(pod) if own is None else own


async def kill_container(
    pod: v1.Pod,
    container: RuntimeContainer,
    ip: str,
    grace: float,
    context: KubeletContext,
    *,
    message: str = "",
    predecessors: Sequence[asyncio.Event] = (),
) -> None:
    """Run the preStop hook and stop the container.

    `predecessors` are the exits to wait for first, within the grace period.
    """
    deadline = time.monotonic() + grace
    text = message or f"Stopping container {container.name}"
    await context.record_event(pod, "Normal", "Killing", text, container.name)
    if grace > 0:
        await _run_pre_stop_hook(pod, container, ip, grace, context)
        with suppress(TimeoutError):
            async with asyncio.timeout(max(deadline - time.monotonic(), 0)):
                for event in predecessors:
                    await event.wait()
    left = max(int(deadline - time.monotonic()), MIN_GRACE_SECONDS)
    request = api.StopContainerRequest(container_id=container.id, timeout=left)
    try:
        await context.runtime.call("StopContainer", request, CALL_TIMEOUT + left)
    except RemoteError as error:
        if error.status is not grpc.StatusCode.NOT_FOUND:
            raise


async def _run_pre_stop_hook(
    pod: v1.Pod, container: RuntimeContainer, ip: str, grace: float, context: KubeletContext
) -> None:
    spec = next((c for c in all_containers(pod) if c.name == container.name), None)
    hook = spec.lifecycle.preStop if spec and spec.lifecycle else None
    if spec is None or hook is None:
        return
    try:
        async with asyncio.timeout(grace):
            await run_hook(hook, spec, container.id, ip, context.prober)
    except TimeoutError:
        pass
    except WinpodError:
        text = "PreStopHook failed"
        await context.record_event(pod, "Warning", "FailedPreStopHook", text, container.name)


async def kill_containers(
    pod: v1.Pod, runtime_pod: RuntimePod, grace: float, context: KubeletContext
) -> None:
    """Kill all containers that have not exited."""
    ip = runtime_pod.ips[0] if runtime_pod.ips else ""
    alive = [container for container in runtime_pod.containers() if not container.has_exited]
    ended = {container.id: asyncio.Event() for container in alive}
    sidecar_names = [container.name for container in sidecars(pod)]

    async def end(container: RuntimeContainer) -> None:
        predecessors = [
            ended[other.id] for other in alive if _is_killed_before(other, container, sidecar_names)
        ]
        try:
            await kill_container(pod, container, ip, grace, context, predecessors=predecessors)
        finally:
            ended[container.id].set()

    await asyncio.gather(*(end(container) for container in alive))


async def reset_containers(
    pod: v1.Pod, containers: Sequence[RuntimeContainer], ip: str, context: KubeletContext
) -> None:
    """Kill the containers without grace and remove them in order; keep their logs."""
    for container in containers:
        if not container.has_exited:
            await kill_container(pod, container, ip, 0, context)
        request = api.RemoveContainerRequest(container_id=container.id)
        await context.runtime.call("RemoveContainer", request)


async def kill_containers_until_deadline(
    pod: Callable[[], v1.Pod],
    runtime_pod: Callable[[], RuntimePod],
    grace: float | None,
    grace_shortened: asyncio.Event,
    context: KubeletContext,
) -> None:
    """Kill all containers, and start over with the new grace period whenever it is shortened."""
    while True:
        grace_shortened.clear()
        seconds = grace_seconds(pod()) if grace is None else grace
        killing = asyncio.ensure_future(kill_containers(pod(), runtime_pod(), seconds, context))
        shortened = asyncio.ensure_future(grace_shortened.wait())
        try:
            await asyncio.wait({killing, shortened}, return_when=asyncio.FIRST_COMPLETED)
            if killing.done():
                return killing.result()
        finally:
            shortened.cancel()
            killing.cancel()


def _is_killed_before(
    container: RuntimeContainer, other: RuntimeContainer, sidecars: list[str]
) -> bool:
    if container.id == other.id or other.name not in sidecars:
        return False
    return container.name not in sidecars or sidecars.index(container.name) > sidecars.index(
        other.name
    )


async def stop_sandboxes(runtime_pod: RuntimePod, context: KubeletContext) -> None:
    for sandbox in runtime_pod.sandboxes:
        if sandbox.is_ready:
            request = api.StopPodSandboxRequest(pod_sandbox_id=sandbox.id)
            await context.runtime.call("StopPodSandbox", request)


async def remove_sandboxes(runtime_pod: RuntimePod, context: KubeletContext) -> None:
    for sandbox in runtime_pod.sandboxes:
        request = api.RemovePodSandboxRequest(pod_sandbox_id=sandbox.id)
        await context.runtime.call("RemovePodSandbox", request)
