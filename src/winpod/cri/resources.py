"""What requests ask of CPU, memory and disk, in Windows' terms, and the same for answers."""

from __future__ import annotations

from winpod.compute.resources import FULL, PERIOD_US, Asked
from winpod.cri.proto import api_pb2 as api
from winpod.windows.errors import InvalidInput

_LINUX_ONLY = (
    "cpu_shares",
    "cpuset_cpus",
    "cpuset_mems",
    "oom_score_adj",
    "hugepage_limits",
    "unified",
    "memory_swap_limit_in_bytes",
)


def asked_resources(resources: api.WindowsContainerResources) -> Asked:
    return Asked(
        cpu_count=resources.cpu_count,
        cpu_maximum=resources.cpu_maximum,
        cpu_weight=resources.cpu_shares,
        memory_bytes=resources.memory_limit_in_bytes,
        rootfs_bytes=resources.rootfs_size_in_bytes,
    )


def asked_change(request: api.UpdateContainerResourcesRequest, host_cpus: int) -> Asked:
    """What an update asks for. A client on Linux, as crictl may be, has Linux' words only."""
    if request.HasField("windows") or not request.HasField("linux"):
        return asked_resources(request.windows)
    linux = request.linux
    for name in _LINUX_ONLY:
        if getattr(linux, name):
            raise InvalidInput(
                f"{name} cannot be changed: a Windows container has no such thing.",
                "Change memory_limit_in_bytes, or cpu_quota with cpu_period.",
            )
    if linux.cpu_quota < 0:
        raise InvalidInput("a CPU limit of a Windows container can be changed, and not removed.")
    maximum = FULL * linux.cpu_quota // ((linux.cpu_period or PERIOD_US) * host_cpus)
    return Asked(
        cpu_maximum=min(max(maximum, 1), FULL) if linux.cpu_quota else 0,
        memory_bytes=linux.memory_limit_in_bytes,
    )


def write_resources(resources: api.WindowsContainerResources, asked: Asked) -> None:
    resources.cpu_count = asked.cpu_count
    resources.cpu_maximum = asked.cpu_maximum
    resources.cpu_shares = asked.cpu_weight
    resources.memory_limit_in_bytes = asked.memory_bytes
    resources.rootfs_size_in_bytes = asked.rootfs_bytes
