"""Records as the CRI tells them."""

from __future__ import annotations

import ctypes

from winpod.cri.proto import api_pb2 as api
from winpod.cri.state import Container, Phase, Sandbox

_STATES = {
    Phase.CREATED: api.CONTAINER_CREATED,
    Phase.STARTING: api.CONTAINER_CREATED,
    Phase.RUNNING: api.CONTAINER_RUNNING,
    Phase.EXITED: api.CONTAINER_EXITED,
    Phase.REMOVING: api.CONTAINER_EXITED,
}


def sandbox_state(sandbox: Sandbox) -> api.PodSandboxState:
    return api.SANDBOX_READY if sandbox.phase is Phase.RUNNING else api.SANDBOX_NOTREADY


def container_state(container: Container) -> api.ContainerState:
    return _STATES.get(container.phase, api.CONTAINER_UNKNOWN)


def sandbox_item(sandbox: Sandbox) -> api.PodSandbox:
    known = sandbox.known
    return api.PodSandbox(
        id=sandbox.id,
        metadata=known.metadata,
        state=sandbox_state(sandbox),
        created_at=sandbox.created_at,
        labels=known.labels,
        annotations=known.annotations,
        runtime_handler=sandbox.handler,
    )


def sandbox_status(sandbox: Sandbox) -> api.PodSandboxStatus:
    known = sandbox.known
    addresses = sandbox.ips.split() if sandbox.phase is Phase.RUNNING else []
    network = api.PodSandboxNetworkStatus(
        ip=addresses[0] if addresses else "",
        additional_ips=[api.PodIP(ip=address) for address in addresses[1:]],
    )
    # The kubelet compares the namespaces with the pod's on Windows too, and makes a new sandbox
    # where they differ.
    options = known.linux.security_context.namespace_options
    return api.PodSandboxStatus(
        id=sandbox.id,
        metadata=known.metadata,
        state=sandbox_state(sandbox),
        created_at=sandbox.created_at,
        network=network,
        linux=api.LinuxPodSandboxStatus(namespaces=api.Namespace(options=options)),
        labels=known.labels,
        annotations=known.annotations,
        runtime_handler=sandbox.handler,
    )


def container_item(container: Container, handler: str) -> api.Container:
    known = container.known
    return api.Container(
        id=container.id,
        pod_sandbox_id=container.sandbox,
        metadata=known.metadata,
        image=_spec(container, handler),
        image_ref=container.image_id,
        state=container_state(container),
        created_at=container.created_at,
        labels=known.labels,
        annotations=known.annotations,
        image_id=container.image_id,
    )


def container_status(container: Container, handler: str) -> api.ContainerStatus:
    known = container.known
    ended = container.phase in (Phase.EXITED, Phase.REMOVING)
    return api.ContainerStatus(
        id=container.id,
        metadata=known.metadata,
        state=container_state(container),
        created_at=container.created_at,
        started_at=container.started_at,
        finished_at=container.finished_at if ended else 0,
        exit_code=signed(container.exit_code) if ended else 0,
        image=_spec(container, handler),
        image_ref=container.image_ref,
        reason=container.reason,
        message=container.message,
        labels=known.labels,
        annotations=known.annotations,
        mounts=known.mounts,
        log_path=container.log_path,
        resources=api.ContainerResources(windows=known.windows.resources),
        image_id=container.image_id,
        stop_signal=known.stop_signal,
    )


def _spec(container: Container, handler: str) -> api.ImageSpec:
    spec = api.ImageSpec()
    spec.CopyFrom(container.known.image)
    spec.runtime_handler = handler
    return spec


def signed(code: int) -> int:
    """An exit code as the CRI carries it: 0xC0000005 is -1073741819."""
    return ctypes.c_int32(code & 0xFFFFFFFF).value
