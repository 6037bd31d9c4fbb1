"""Pods of a kubelet under test, and the statuses it reports."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

from tests.support.known_objects import read
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import CriClient
from winpod.k8s.models import core_v1 as v1

UID = "uid-web"
NOTHING: Any = v1.ContainerStatus(
    name="", image="", imageID="", ready=False, restartCount=0, state=v1.ContainerState()
)


def changed(pod: v1.Pod, *, metadata: dict[str, Any] | None = None, **spec: Any) -> v1.Pod:
    """Return the pod with other fields, as a watch delivers it."""
    data = pod.to_dict()
    data["metadata"] |= metadata or {}
    data["spec"] |= spec
    return read(v1.Pod, data)


def deleted(pod: v1.Pod, grace: int = 30) -> v1.Pod:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    stamps = {"deletionTimestamp": now, "deletionGracePeriodSeconds": grace}
    return changed(pod, metadata=stamps)


def container(status: v1.PodStatus, name: str = "app") -> Any:
    listed = (*(status.initContainerStatuses or ()), *(status.containerStatuses or ()))
    return next((one for one in listed if one.name == name), NOTHING)


def is_ready(status: v1.PodStatus) -> bool:
    return any(c.type == "Ready" and c.status == "True" for c in status.conditions or ())


async def listed(client: CriClient) -> tuple[int, int]:
    sandboxes = await client.call("ListPodSandbox", api.ListPodSandboxRequest())
    containers = await client.call("ListContainers", api.ListContainersRequest())
    return len(sandboxes.items), len(containers.containers)


async def until_true(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(120):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
