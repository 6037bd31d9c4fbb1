"""Starting sandboxes and containers: CRI calls with their events, waiting reasons and backoff.

A failed step raises the reason that the waiting container's status reports. Steps that may take
long, image pulls and postStart hooks, are interrupted when the pod terminates.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any, TypeVar

from lightkube.models import core_v1 as v1

from winpod.concurrency import BackoffState
from winpod.cri.handler_status import SANDBOX_INFO, reported_accelerator
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import RemoteError
from winpod.errors import NotFound, Unavailable, WinpodError
from winpod.k8s.pods import ConfigError, format_pod, grace_seconds, metadata_of, spec_of, uid_of
from winpod.kubelet.context import KubeletContext
from winpod.kubelet.cri_convert import container_config, container_hash, sandbox_config
from winpod.kubelet.environment import resolve_environment
from winpod.kubelet.images.image_manager import ImagePullFailed
from winpod.kubelet.lifecycle.hooks import run_hook
from winpod.kubelet.lifecycle.kill import kill_container
from winpod.kubelet.runtime_client import CALL_TIMEOUT
from winpod.kubelet.runtime_status import RuntimeContainer, RuntimePod, RuntimeSandbox
from winpod.kubelet.status.phase import StatusReason
from winpod.kubelet.volumes.manager import MountedVolumes
from winpod.kubelet.volumes.projected import VolumeMountFailed
from winpod.labels import ACCELERATOR_ANNOTATION
from winpod.quantities import format_duration
from winpod.windows.handlers import PROCESS_HANDLER


class ContainerStartFailed(WinpodError):
    """A container could not be started; `reason` is the waiting reason of its status."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class NetworkNotReady(Unavailable):
    def __init__(self, reason: str) -> None:
        super().__init__(f"network is not ready: {reason}")


async def create_sandbox(pod: v1.Pod, attempt: int, context: KubeletContext) -> str:
    """Create a sandbox and return its ID. Requires a ready pod network, unless on host network."""
    reason = "" if spec_of(pod).hostNetwork else await context.runtime.network_unready_reason()
    if reason:
        error = NetworkNotReady(reason)
        await context.record_event(pod, "Warning", "NetworkNotReady", str(error))
        raise error
    try:
        request = api.RunPodSandboxRequest(
            config=sandbox_config(pod, context.node_config, attempt),
            runtime_handler=await runtime_handler_of(pod, context),
        )
        response = await context.runtime.call("RunPodSandbox", request, 2 * CALL_TIMEOUT)
        return str(response.pod_sandbox_id)
    except (RemoteError, NotFound) as error:
        text = f"Failed to create pod sandbox: {error}"
        await context.record_event(pod, "Warning", "FailedCreatePodSandBox", text)
        raise


async def annotate_accelerator(
    pod: v1.Pod, sandbox: RuntimeSandbox | None, context: KubeletContext
) -> None:
    """Annotate the pod with its microVM's accelerator.

    No-op if it has none or is already annotated.
    """
    if sandbox is None or sandbox.handler in ("", PROCESS_HANDLER.name):
        return
    request = api.PodSandboxStatusRequest(pod_sandbox_id=sandbox.id, verbose=True)
    answer = await context.runtime.call("PodSandboxStatus", request)
    annotation = {ACCELERATOR_ANNOTATION: reported_accelerator(answer.info, SANDBOX_INFO)}
    annotations = metadata_of(pod).annotations or {}
    if annotation[ACCELERATOR_ANNOTATION] and not annotation.items() <= annotations.items():
        await context.reporter.annotate(pod, annotation)


async def runtime_handler_of(pod: v1.Pod, context: KubeletContext) -> str:
    """Return the handler of the pod's RuntimeClass, empty for the default one."""
    name = spec_of(pod).runtimeClassName
    if not name:
        return ""
    handler = await context.objects.runtime_handler(name)
    if handler is None:
        raise NotFound(f'failed to get RuntimeClass: RuntimeClass "{name}" not found')
    return handler


async def mount_volumes(pod: v1.Pod, context: KubeletContext) -> MountedVolumes:
    try:
        return await context.volumes.mount(pod)
    except VolumeMountFailed as error:
        await context.record_event(pod, "Warning", "FailedMount", str(error))
        raise


async def ensure_images(
    pod: v1.Pod, container: v1.Container, handler: str, context: KubeletContext
) -> api.ImageSpec:
    """Ensure the container's image and its image volumes; return the container's image."""
    try:
        for volume in _image_volumes(pod, container):
            volume_image = v1.Container(
                name=container.name, image=volume.reference, imagePullPolicy=volume.pullPolicy
            )
            await context.image_manager.ensure_image(pod, volume_image, handler)
        return await context.image_manager.ensure_image(pod, container, handler)
    except RemoteError as error:
        text = f'Failed to inspect image "{container.image}": {error}'
        await context.record_event(pod, "Warning", "InspectFailed", text, container.name)
        raise ContainerStartFailed("ImageInspectError", text) from error


def _image_volumes(pod: v1.Pod, container: v1.Container) -> list[v1.ImageVolumeSource]:
    mounted = {mount.name for mount in container.volumeMounts or ()}
    volumes = spec_of(pod).volumes or ()
    return [volume.image for volume in volumes if volume.image and volume.name in mounted]


async def start_container(
    pod: v1.Pod,
    container: v1.Container,
    image: api.ImageSpec,
    mounted: MountedVolumes,
    restart_count: int,
    sandbox: RuntimeSandbox,
    context: KubeletContext,
) -> str:
    """Create and start a container, and return its ID."""
    try:
        request = api.CreateContainerRequest(
            pod_sandbox_id=sandbox.id,
            config=await _config(pod, container, image, mounted, restart_count, sandbox, context),
            sandbox_config=sandbox_config(pod, context.node_config, sandbox.attempt),
        )
    except (ConfigError, VolumeMountFailed) as error:
        raise await _failed(pod, container, "CreateContainerConfigError", error, context) from error
    try:
        created = await context.runtime.call("CreateContainer", request)
    except RemoteError as error:
        raise await _failed(pod, container, "CreateContainerError", error, context) from error
    await context.record_event(pod, "Normal", "Created", "Container created", container.name)
    id_ = str(created.container_id)
    try:
        await context.runtime.call("StartContainer", api.StartContainerRequest(container_id=id_))
    except RemoteError as error:
        raise await _failed(pod, container, "RunContainerError", error, context) from error
    await context.record_event(pod, "Normal", "Started", "Container started", container.name)
    return id_


async def _config(
    pod: v1.Pod,
    container: v1.Container,
    image: api.ImageSpec,
    mounted: MountedVolumes,
    restart_count: int,
    sandbox: RuntimeSandbox,
    context: KubeletContext,
) -> api.ContainerConfig:
    env = await resolve_environment(
        pod, container, context.objects, context.node_config, sandbox.ips
    )
    mounts = mounted.for_container(container, env, sandbox.handler)
    taken = {mount.container_path.lower() for mount in mounts}
    _, message = mounted.termination_log(container, restart_count)
    hosts = mounted.hosts_file(pod, sandbox.ips, context.node_config)
    mounts += [m for m in (message, hosts) if m.container_path.lower() not in taken]
    return container_config(
        pod,
        container,
        node_config=context.node_config,
        image=image,
        env=env,
        mounts=mounts,
        restart_count=restart_count,
    )


async def _failed(
    pod: v1.Pod, container: v1.Container, reason: str, error: WinpodError, context: KubeletContext
) -> ContainerStartFailed:
    await context.record_event(pod, "Warning", "Failed", f"Error: {error}", container.name)
    return ContainerStartFailed(reason, str(error))


async def run_post_start_hook(
    pod: v1.Pod, container: v1.Container, id_: str, ip: str, context: KubeletContext
) -> None:
    """Run the container's postStart hook, if it has one."""
    hook = container.lifecycle.postStart if container.lifecycle else None
    if hook is None:
        return
    try:
        await run_hook(hook, container, id_, ip, context.prober)
    except WinpodError as error:
        text = "PostStartHook failed"
        await context.record_event(pod, "Warning", "FailedPostStartHook", text, container.name)
        raise ContainerStartFailed("PostStartHookError", str(error)) from error


RETRY_SECONDS = 10.0
SHORT_RETRY_SECONDS = 2.0
_Result = TypeVar("_Result")


class StartInterrupted(Exception):
    """The pod terminates, so the start was abandoned."""


class ContainerStarter:
    def __init__(self, context: KubeletContext, terminating: asyncio.Event) -> None:
        self._context = context
        self._terminating = terminating
        self._backoffs: dict[tuple[str, str], BackoffState] = {}
        self._ready_at: dict[str, float] = {}
        self.waiting: dict[str, StatusReason] = {}

    async def start(
        self,
        pod: v1.Pod,
        container: v1.Container,
        runtime_pod: RuntimePod,
        mounted: MountedVolumes,
        restart_count: int,
    ) -> float | None:
        """Start a container. Return the seconds until the next attempt, or None on success."""
        name, sandbox = container.name, runtime_pod.newest_sandbox
        if sandbox is None:
            return None
        if wait := await self._remaining_backoff(
            pod, container, runtime_pod.latest_container(name)
        ):
            return wait
        try:
            image = await self._unless_terminating(
                ensure_images(pod, container, sandbox.handler, self._context)
            )
            id_ = await start_container(
                pod, container, image, mounted, restart_count, sandbox, self._context
            )
            ip = sandbox.ips[0] if sandbox.ips else ""
            await self._unless_terminating(
                run_post_start_hook(pod, container, id_, ip, self._context)
            )
        except (ImagePullFailed, ContainerStartFailed) as error:
            self.waiting[name] = StatusReason(error.reason, str(error))
            if error.reason == "PostStartHookError":
                await self._kill_after_failed_hook(pod, name)
            # The next attempt only reports the back-off of the pull.
            return SHORT_RETRY_SECONDS if error.reason == "ErrImagePull" else RETRY_SECONDS
        self.waiting.pop(name, None)
        return None

    async def _remaining_backoff(
        self, pod: v1.Pod, container: v1.Container, last: RuntimeContainer | None
    ) -> float:
        """Return the remaining crash-loop backoff of the container in seconds, 0 if none."""
        if last is None or not last.has_exited:
            return 0
        policy, now = self._context.backoff, self._context.clock()
        finished_at = last.finished_at or last.created_at
        key = container.name, container_hash(container)
        state = self._backoffs.get(key)
        left = self._remaining_wait(last.id, policy.ready_at(state, finished_at) - now, state)
        if state is None or left <= 0:
            self._ready_at.pop(last.id, None)
            self._backoffs[key] = policy.next(state, finished_at, now)
            return 0
        about = f"restarting failed container={container.name} pod={format_pod(pod)}"
        crash_loop = StatusReason(
            "CrashLoopBackOff", f"back-off {format_duration(state.wait)} {about}"
        )
        if self.waiting.get(container.name) != crash_loop:
            self.waiting[container.name] = crash_loop
            text = f"Back-off restarting failed container {container.name} in pod {format_pod(pod)}"
            await self._context.record_event(pod, "Warning", "BackOff", text, container.name)
        return left

    def _remaining_wait(self, id_: str, wait: timedelta, state: BackoffState | None) -> float:
        """Return the remaining seconds of a wait. The wall clock is read only when it begins."""
        maximum = state.wait.total_seconds() if state else 0.0
        first = time.monotonic() + min(wait.total_seconds(), maximum)
        return self._ready_at.setdefault(id_, first) - time.monotonic()

    async def _kill_after_failed_hook(self, pod: v1.Pod, name: str) -> None:
        await self._context.pleg.refresh(uid_of(pod))
        runtime_pod = self._context.pleg.pod(uid_of(pod))
        last, ip = runtime_pod.latest_container(name), runtime_pod.ips[0] if runtime_pod.ips else ""
        if last and last.is_running:
            grace, text = grace_seconds(pod), "FailedPostStartHook"
            await kill_container(pod, last, ip, grace, self._context, message=text)

    async def _unless_terminating(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        task = asyncio.ensure_future(work)
        terminating = asyncio.ensure_future(self._terminating.wait())
        try:
            await asyncio.wait({task, terminating}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise StartInterrupted
            return task.result()
        finally:
            terminating.cancel()
            task.cancel()
