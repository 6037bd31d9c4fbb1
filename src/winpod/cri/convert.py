"""Conversion between runtime records and CRI messages, including resource limits."""

from __future__ import annotations

import ctypes

from winpod.compute.resources import CPU_PERIOD_US, FULL_CPU, ResourceRequest
from winpod.cri.proto import api_pb2 as api
from winpod.cri.state import ContainerRecord, Phase, SandboxRecord
from winpod.errors import InvalidInput

_STATES = {
    Phase.CREATED: api.CONTAINER_CREATED,
    Phase.STARTING: api.CONTAINER_CREATED,
    Phase.RUNNING: api.CONTAINER_RUNNING,
    Phase.EXITED: api.CONTAINER_EXITED,
    Phase.REMOVING: api.CONTAINER_EXITED,
}


def to_sandbox_state(sandbox: SandboxRecord) -> api.PodSandboxState:
    return api.SANDBOX_READY if sandbox.phase is Phase.RUNNING else api.SANDBOX_NOTREADY


def to_container_state(container: ContainerRecord) -> api.ContainerState:
    return _STATES.get(container.phase, api.CONTAINER_UNKNOWN)


def to_sandbox_item(sandbox: SandboxRecord) -> api.PodSandbox:
    config = sandbox.parsed_config
    return api.PodSandbox(
        id=sandbox.id,
        metadata=config.metadata,
        state=to_sandbox_state(sandbox),
        created_at=sandbox.created_at,
        labels=config.labels,
        annotations=config.annotations,
        runtime_handler=sandbox.handler,
    )


def to_sandbox_status(sandbox: SandboxRecord) -> api.PodSandboxStatus:
    config = sandbox.parsed_config
    addresses = sandbox.ips.split() if sandbox.phase is Phase.RUNNING else []
    network = api.PodSandboxNetworkStatus(
        ip=addresses[0] if addresses else "",
        additional_ips=[api.PodIP(ip=address) for address in addresses[1:]],
    )
    # The kubelet compares the namespaces with the pod's on Windows too, and recreates the sandbox
    # if they differ.
    options = config.linux.security_context.namespace_options
    return api.PodSandboxStatus(
        id=sandbox.id,
        metadata=config.metadata,
        state=to_sandbox_state(sandbox),
        created_at=sandbox.created_at,
        network=network,
        linux=api.LinuxPodSandboxStatus(namespaces=api.Namespace(options=options)),
        labels=config.labels,
        annotations=config.annotations,
        runtime_handler=sandbox.handler,
    )


def to_container_item(container: ContainerRecord, handler: str) -> api.Container:
    config = container.parsed_config
    return api.Container(
        id=container.id,
        pod_sandbox_id=container.sandbox,
        metadata=config.metadata,
        image=_spec(container, handler),
        image_ref=container.image_id,
        state=to_container_state(container),
        created_at=container.created_at,
        labels=config.labels,
        annotations=config.annotations,
        image_id=container.image_id,
    )


def to_container_status(container: ContainerRecord, handler: str) -> api.ContainerStatus:
    config = container.parsed_config
    ended = container.phase in (Phase.EXITED, Phase.REMOVING)
    return api.ContainerStatus(
        id=container.id,
        metadata=config.metadata,
        state=to_container_state(container),
        created_at=container.created_at,
        started_at=container.started_at,
        finished_at=container.finished_at if ended else 0,
        exit_code=signed_exit_code(container.exit_code) if ended else 0,
        image=_spec(container, handler),
        image_ref=container.image_ref,
        reason=container.reason,
        message=container.message,
        labels=config.labels,
        annotations=config.annotations,
        mounts=config.mounts,
        log_path=container.log_path,
        resources=api.ContainerResources(windows=config.windows.resources),
        image_id=container.image_id,
        stop_signal=config.stop_signal,
    )


def _spec(container: ContainerRecord, handler: str) -> api.ImageSpec:
    spec = api.ImageSpec()
    spec.CopyFrom(container.parsed_config.image)
    spec.runtime_handler = handler
    return spec


def signed_exit_code(code: int) -> int:
    """Convert an exit code to the int32 of the CRI: 0xC0000005 is -1073741819."""
    return ctypes.c_int32(code & 0xFFFFFFFF).value


_LINUX_ONLY = (
    "cpu_shares",
    "cpuset_cpus",
    "cpuset_mems",
    "oom_score_adj",
    "hugepage_limits",
    "unified",
    "memory_swap_limit_in_bytes",
)


def read_resource_request(resources: api.WindowsContainerResources) -> ResourceRequest:
    return ResourceRequest(
        cpu_count=resources.cpu_count,
        cpu_maximum=resources.cpu_maximum,
        cpu_weight=resources.cpu_shares,
        memory_bytes=resources.memory_limit_in_bytes,
        rootfs_bytes=resources.rootfs_size_in_bytes,
    )


def read_resource_update(
    request: api.UpdateContainerResourcesRequest, host_cpus: int
) -> ResourceRequest:
    """Read an update request. A client built for Linux, such as crictl, sends Linux fields only."""
    if request.HasField("windows") or not request.HasField("linux"):
        return read_resource_request(request.windows)
    linux = request.linux
    for name in _LINUX_ONLY:
        if getattr(linux, name):
            raise InvalidInput(
                f"{name} cannot be changed: Windows containers do not support it.",
                "Change memory_limit_in_bytes, or cpu_quota with cpu_period.",
            )
    if linux.cpu_quota < 0:
        raise InvalidInput("the CPU limit of a Windows container can be changed, but not removed.")
    maximum = FULL_CPU * linux.cpu_quota // ((linux.cpu_period or CPU_PERIOD_US) * host_cpus)
    return ResourceRequest(
        cpu_maximum=min(max(maximum, 1), FULL_CPU) if linux.cpu_quota else 0,
        memory_bytes=linux.memory_limit_in_bytes,
    )


def write_resources(resources: api.WindowsContainerResources, request: ResourceRequest) -> None:
    resources.cpu_count = request.cpu_count
    resources.cpu_maximum = request.cpu_maximum
    resources.cpu_shares = request.cpu_weight
    resources.memory_limit_in_bytes = request.memory_bytes
    resources.rootfs_size_in_bytes = request.rootfs_bytes
