"""How a sandbox is made and a container is started: one call after the other, with their events.

What fails says the word that a waiting container's status has for it.
"""

from __future__ import annotations

from lightkube.models import core_v1 as v1

from winpod.cri.guests import SANDBOX_INFO, told_accelerator
from winpod.cri.labels import ACCELERATOR_ANNOTATION
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import RemoteError
from winpod.node.environment import ConfigError, resolve
from winpod.node.hooks import run_hook
from winpod.node.means import Means
from winpod.node.requests import container_config, metadata_of, sandbox_config, spec_of
from winpod.node.seen import SandboxSeen
from winpod.node.view import CALL_SECONDS
from winpod.node.volume_files import VolumeFailed
from winpod.node.volumes import Mounted
from winpod.windows.errors import NotFound, Unavailable, WinpodError
from winpod.windows.handlers import PROCESS


class StartFailed(WinpodError):
    """A container waits; `reason` is what its status says."""

    def __init__(self, reason: str, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason


class NetworkNotReady(Unavailable):
    def __init__(self, trouble: str) -> None:
        super().__init__(f"network is not ready: {trouble}")


async def make_sandbox(pod: v1.Pod, attempt: int, means: Means) -> str:
    """Its id. A pod that is to be connected waits until the runtime can do that."""
    trouble = "" if spec_of(pod).hostNetwork else await means.readiness.trouble()
    if trouble:
        error = NetworkNotReady(trouble)
        await means.tell(pod, "Warning", "NetworkNotReady", str(error))
        raise error
    try:
        request = api.RunPodSandboxRequest(
            config=sandbox_config(pod, means.facts, attempt),
            runtime_handler=await handler_of(pod, means),
        )
        made = await means.call("RunPodSandbox", request, 2 * CALL_SECONDS)
        return str(made.pod_sandbox_id)
    except (RemoteError, NotFound) as error:
        text = f"Failed to create pod sandbox: {error}"
        await means.tell(pod, "Warning", "FailedCreatePodSandBox", text)
        raise


async def tell_accelerator(pod: v1.Pod, sandbox: SandboxSeen | None, means: Means) -> None:
    """What runs the pod's microVM; of a pod that has none, and of one that is told, nothing."""
    if sandbox is None or sandbox.handler in ("", PROCESS.name):
        return
    request = api.PodSandboxStatusRequest(pod_sandbox_id=sandbox.id, verbose=True)
    answer = await means.call("PodSandboxStatus", request)
    told = {ACCELERATOR_ANNOTATION: told_accelerator(answer.info, SANDBOX_INFO)}
    has = metadata_of(pod).annotations or {}
    if told[ACCELERATOR_ANNOTATION] and not told.items() <= has.items():
        await means.reporter.annotate(pod, told)


async def handler_of(pod: v1.Pod, means: Means) -> str:
    """The handler of the pod's RuntimeClass, empty for the default one."""
    name = spec_of(pod).runtimeClassName
    if not name:
        return ""
    handler = await means.objects.runtime_handler(name)
    if handler is None:
        raise NotFound(f'failed to get RuntimeClass: RuntimeClass "{name}" not found')
    return handler


async def mount_volumes(pod: v1.Pod, means: Means) -> Mounted:
    try:
        return await means.volumes.mount(pod)
    except VolumeFailed as error:
        await means.tell(pod, "Warning", "FailedMount", str(error))
        raise


async def get_images(
    pod: v1.Pod, container: v1.Container, handler: str, means: Means
) -> api.ImageSpec:
    """The container's image; those that it mounts as volumes are there afterwards, too."""
    try:
        for volume in _image_volumes(pod, container):
            wanted = v1.Container(
                name=container.name, image=volume.reference, imagePullPolicy=volume.pullPolicy
            )
            await means.puller.ensure(pod, wanted, handler)
        return await means.puller.ensure(pod, container, handler)
    except RemoteError as error:
        text = f'Failed to inspect image "{container.image}": {error}'
        await means.tell(pod, "Warning", "InspectFailed", text, container.name)
        raise StartFailed("ImageInspectError", text) from error


def _image_volumes(pod: v1.Pod, container: v1.Container) -> list[v1.ImageVolumeSource]:
    mounted = {mount.name for mount in container.volumeMounts or ()}
    volumes = spec_of(pod).volumes or ()
    return [volume.image for volume in volumes if volume.image and volume.name in mounted]


async def start_container(
    pod: v1.Pod,
    container: v1.Container,
    image: api.ImageSpec,
    mounted: Mounted,
    restart_count: int,
    sandbox: SandboxSeen,
    means: Means,
) -> str:
    """The id of a container that runs."""
    try:
        request = api.CreateContainerRequest(
            pod_sandbox_id=sandbox.id,
            config=await _config(pod, container, image, mounted, restart_count, sandbox, means),
            sandbox_config=sandbox_config(pod, means.facts, sandbox.attempt),
        )
    except (ConfigError, VolumeFailed) as error:
        raise await _failed(pod, container, "CreateContainerConfigError", error, means) from error
    try:
        created = await means.call("CreateContainer", request)
    except RemoteError as error:
        raise await _failed(pod, container, "CreateContainerError", error, means) from error
    await means.tell(pod, "Normal", "Created", "Container created", container.name)
    id_ = str(created.container_id)
    try:
        await means.call("StartContainer", api.StartContainerRequest(container_id=id_))
    except RemoteError as error:
        raise await _failed(pod, container, "RunContainerError", error, means) from error
    await means.tell(pod, "Normal", "Started", "Container started", container.name)
    return id_


async def _config(
    pod: v1.Pod,
    container: v1.Container,
    image: api.ImageSpec,
    mounted: Mounted,
    restart_count: int,
    sandbox: SandboxSeen,
    means: Means,
) -> api.ContainerConfig:
    env = await resolve(pod, container, means.objects, means.facts, sandbox.ips)
    mounts = mounted.for_container(container, env, sandbox.handler)
    taken = {mount.container_path.lower() for mount in mounts}
    _, message = mounted.termination_log(container, restart_count)
    hosts = mounted.hosts_file(pod, sandbox.ips, means.facts)
    mounts += [one for one in (message, hosts) if one.container_path.lower() not in taken]
    return container_config(
        pod,
        container,
        facts=means.facts,
        image=image,
        env=env,
        mounts=mounts,
        restart_count=restart_count,
    )


async def _failed(
    pod: v1.Pod, container: v1.Container, reason: str, error: WinpodError, means: Means
) -> StartFailed:
    await means.tell(pod, "Warning", "Failed", f"Error: {error}", container.name)
    return StartFailed(reason, str(error))


async def after_start(
    pod: v1.Pod, container: v1.Container, id_: str, ip: str, means: Means
) -> None:
    """The container's postStart hook, if it has one."""
    hook = container.lifecycle.postStart if container.lifecycle else None
    if hook is None:
        return
    try:
        await run_hook(hook, container, id_, ip, means.checks)
    except WinpodError as error:
        text = "PostStartHook failed"
        await means.tell(pod, "Warning", "FailedPostStartHook", text, container.name)
        raise StartFailed("PostStartHookError", str(error)) from error
