"""Starting sandboxes and containers: CRI calls with their events, waiting reasons and backoff.

A container starts in the steps of the kubelet: crash-loop backoff, images, environment and mounts,
create, start, postStart hook. A failed step sets the reason that the waiting container's status
reports. Steps that may take long, image pulls and postStart hooks, are interrupted when the pod
terminates.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from winpod.concurrency import BackoffState
from winpod.cri.handler_status import SANDBOX_INFO, reported_accelerator
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import RemoteError
from winpod.errors import NotFound, Unavailable, WinpodError
from winpod.k8s.models import core_v1 as v1
from winpod.k8s.pods import ConfigError, format_pod, grace_seconds, metadata_of, spec_of, uid_of
from winpod.kubelet.context import KubeletContext
from winpod.kubelet.cri_convert import container_config, container_hash, sandbox_config
from winpod.kubelet.environment import resolve_environment
from winpod.kubelet.images.image_manager import ImagePullFailed
from winpod.kubelet.interfaces import EventType
from winpod.kubelet.lifecycle.hooks import run_hook
from winpod.kubelet.lifecycle.kill import kill_container
from winpod.kubelet.runtime_client import CALL_TIMEOUT
from winpod.kubelet.runtime_status import RuntimeContainer, RuntimeSandbox
from winpod.kubelet.status.phase import StatusReason
from winpod.kubelet.volumes.manager import MountedVolumes
from winpod.kubelet.volumes.projected import VolumeMountFailed
from winpod.labels import ACCELERATOR_ANNOTATION
from winpod.quantities import format_duration
from winpod.windows.handlers import PROCESS_HANDLER

RETRY_SECONDS = 10.0
SHORT_RETRY_SECONDS = 2.0
_Result = TypeVar("_Result")


class StartInterrupted(Exception):
    """The pod terminates, so the start was abandoned."""


class ContainerStartFailed(WinpodError):
    """A container could not be started; `reason` is the waiting reason of its status."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class NetworkNotReady(Unavailable):
    def __init__(self, reason: str) -> None:
        super().__init__(f"network is not ready: {reason}")


async def create_sandbox(pod: v1.Pod, attempt: int, context: KubeletContext) -> None:
    """Create a sandbox. Requires a ready pod network, unless on host network."""
    reason = "" if spec_of(pod).hostNetwork else await context.runtime.network_unready_reason()
    if reason:
        error = NetworkNotReady(reason)
        await context.record_event(pod, "Warning", "NetworkNotReady", str(error))
        raise error
    try:
        request = api.RunPodSandboxRequest(
            config=sandbox_config(pod, context.node_config, attempt),
            runtime_handler=await _runtime_handler(pod, context),
        )
        response = await context.runtime.call("RunPodSandbox", request, 2 * CALL_TIMEOUT)
    except (RemoteError, NotFound) as error:
        text = f"Failed to create pod sandbox: {error}"
        await context.record_event(pod, "Warning", "FailedCreatePodSandBox", text)
        raise
    await context.pleg.refresh(uid_of(pod), response.pod_sandbox_id)
    await annotate_accelerator(pod, context.pleg.pod(uid_of(pod)).newest_sandbox, context)


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


async def _runtime_handler(pod: v1.Pod, context: KubeletContext) -> str:
    """Return the handler of the pod's RuntimeClass, empty for the default one."""
    name = spec_of(pod).runtimeClassName
    if not name:
        return ""
    handler = await context.objects.runtime_handler(name)
    if handler is None:
        raise NotFound(f'failed to get RuntimeClass: RuntimeClass "{name}" not found')
    return handler


async def mount_volumes(pod: v1.Pod, context: KubeletContext) -> MountedVolumes:
    """Mount the volumes of a pod, before its sandbox is created."""
    try:
        with context.metrics.time_volume_operation("mount"):
            return await context.volumes.mount(pod)
    except VolumeMountFailed as error:
        await context.record_event(pod, "Warning", "FailedMount", str(error))
        raise


@dataclass(frozen=True, slots=True)
class _Start:
    """One attempt to start a container in the pod's sandbox."""

    pod: v1.Pod
    container: v1.Container
    sandbox: RuntimeSandbox
    mounted: MountedVolumes
    restart_count: int
    context: KubeletContext

    async def ensure_images(self) -> api.ImageSpec:
        """Ensure the container's image and its image volumes; return the container's image."""
        container, image_manager = self.container, self.context.image_manager
        try:
            for volume in self._image_volumes():
                volume_image = v1.Container(
                    name=container.name, image=volume.reference, imagePullPolicy=volume.pullPolicy
                )
                await image_manager.ensure_image(self.pod, volume_image, self.sandbox.handler)
            return await image_manager.ensure_image(self.pod, container, self.sandbox.handler)
        except RemoteError as error:
            text = f'Failed to inspect image "{container.image}": {error}'
            await self._record("Warning", "InspectFailed", text)
            raise ContainerStartFailed("ImageInspectError", text) from error

    def _image_volumes(self) -> list[v1.ImageVolumeSource]:
        mounted = {mount.name for mount in self.container.volumeMounts or ()}
        volumes = spec_of(self.pod).volumes or ()
        return [volume.image for volume in volumes if volume.image and volume.name in mounted]

    async def create_and_start(self, image: api.ImageSpec) -> str:
        """Create and start the container, and return its ID."""
        runtime, node_config = self.context.runtime, self.context.node_config
        try:
            request = api.CreateContainerRequest(
                pod_sandbox_id=self.sandbox.id,
                config=await self._config(image),
                sandbox_config=sandbox_config(self.pod, node_config, self.sandbox.attempt),
            )
        except (ConfigError, VolumeMountFailed) as error:
            raise await self._failed("CreateContainerConfigError", error) from error
        try:
            id_ = str((await runtime.call("CreateContainer", request)).container_id)
        except RemoteError as error:
            raise await self._failed("CreateContainerError", error) from error
        await self._record("Normal", "Created", "Container created")
        try:
            await runtime.call("StartContainer", api.StartContainerRequest(container_id=id_))
        except RemoteError as error:
            raise await self._failed("RunContainerError", error) from error
        await self._record("Normal", "Started", "Container started")
        return id_

    async def _config(self, image: api.ImageSpec) -> api.ContainerConfig:
        pod, container, node_config = self.pod, self.container, self.context.node_config
        env = await resolve_environment(
            pod, container, self.context.objects, node_config, self.sandbox.ips
        )
        mounts = self.mounted.for_container(container, env, self.sandbox.handler)
        taken = {mount.container_path.lower() for mount in mounts}
        own = self.mounted.kubelet_mounts(
            pod, container, self.restart_count, self.sandbox.ips, node_config
        )
        mounts += [mount for mount in own if mount.container_path.lower() not in taken]
        return container_config(
            pod,
            container,
            node_config=node_config,
            image=image,
            env=env,
            mounts=mounts,
            restart_count=self.restart_count,
        )

    async def run_post_start_hook(self, id_: str) -> None:
        """Run the container's postStart hook, if it has one."""
        container, ips = self.container, self.sandbox.ips
        hook = container.lifecycle.postStart if container.lifecycle else None
        if hook is None:
            return
        try:
            await run_hook(hook, container, id_, ips[0] if ips else "", self.context.prober)
        except WinpodError as error:
            await self._record("Warning", "FailedPostStartHook", "PostStartHook failed")
            raise ContainerStartFailed("PostStartHookError", str(error)) from error

    async def _failed(self, reason: str, error: WinpodError) -> ContainerStartFailed:
        await self._record("Warning", "Failed", f"Error: {error}")
        return ContainerStartFailed(reason, str(error))

    async def _record(self, kind: EventType, reason: str, message: str) -> None:
        await self.context.record_event(self.pod, kind, reason, message, self.container.name)


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
        containers: Iterable[v1.Container],
        mounted: MountedVolumes,
        status: v1.PodStatus | None,
    ) -> float:
        """Start the containers. Return the seconds until the pod has to be synced again.

        `status` has the restart counts of containers that the runtime no longer has.
        """
        runtime_pod = self._context.pleg.pod(uid_of(pod))
        sandbox = runtime_pod.newest_sandbox
        if sandbox is None:
            return 0
        waits = []
        for container in containers:
            last = runtime_pod.latest_container(container.name)
            count = _restart_count(container.name, last, status)
            start = _Start(pod, container, sandbox, mounted, count, self._context)
            waits.append(await self._remaining_backoff(start, last) or await self._start(start))
        return min(waits, default=0)

    async def _start(self, start: _Start) -> float:
        """Start a container. Return the seconds until the next attempt, or 0 on success."""
        name = start.container.name
        try:
            image = await self._unless_terminating(start.ensure_images())
            id_ = await start.create_and_start(image)
            await self._unless_terminating(start.run_post_start_hook(id_))
        except (ImagePullFailed, ContainerStartFailed) as error:
            self.waiting[name] = StatusReason(error.reason, str(error))
            if error.reason == "PostStartHookError":
                await self._kill_after_failed_hook(start.pod, name)
            # The next attempt only reports the back-off of the pull.
            return SHORT_RETRY_SECONDS if error.reason == "ErrImagePull" else RETRY_SECONDS
        self.waiting.pop(name, None)
        return 0

    async def _remaining_backoff(self, start: _Start, last: RuntimeContainer | None) -> float:
        """Return the remaining crash-loop backoff of the container in seconds, 0 if none."""
        if last is None or not last.has_exited:
            return 0
        pod, container = start.pod, start.container
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


def _restart_count(name: str, last: RuntimeContainer | None, status: v1.PodStatus | None) -> int:
    if last:
        return last.restart_count + 1
    status = status or v1.PodStatus()
    statuses = (*(status.initContainerStatuses or ()), *(status.containerStatuses or ()))
    return next((c.restartCount for c in statuses if c.name == name), 0)
