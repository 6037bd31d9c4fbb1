"""Container garbage collection: keeps the last terminated container of each name and its log."""

from __future__ import annotations

import asyncio
from pathlib import Path

from winpod.cri.proto import api_pb2 as api
from winpod.files import remove_tree
from winpod.k8s.models import core_v1 as v1
from winpod.kubelet.context import KubeletContext
from winpod.kubelet.cri_convert import log_directory
from winpod.kubelet.runtime_status import RuntimeContainer, RuntimePod


def containers_to_remove(runtime_pod: RuntimePod) -> list[RuntimeContainer]:
    """Return the terminated containers that are not the newest terminated one of their name."""
    kept: set[str] = set()
    excess = []
    for container in runtime_pod.containers():
        if container.is_running:
            continue
        if container.name in kept:
            excess.append(container)
        kept.add(container.name)
    return excess


async def remove_dead_containers(runtime_pod: RuntimePod, context: KubeletContext) -> None:
    excess = containers_to_remove(runtime_pod)
    for container in excess:
        await context.runtime.call(
            "RemoveContainer", api.RemoveContainerRequest(container_id=container.id)
        )
        await asyncio.to_thread(_remove_log, container.log_path)
    removed = {container.id for container in excess}
    for sandbox in runtime_pod.sandboxes[1:]:
        if not sandbox.is_ready and not {c.id for c in sandbox.containers} - removed:
            request = api.RemovePodSandboxRequest(pod_sandbox_id=sandbox.id)
            await context.runtime.call("RemovePodSandbox", request)


def _remove_log(path: str) -> None:
    """Remove a container log and its rotated files."""
    if path:
        for file in Path(path).parent.glob(f"{Path(path).name}*"):
            file.unlink(missing_ok=True)


async def remove_logs(pod: v1.Pod, context: KubeletContext) -> None:
    folder = context.node_config.log_root / log_directory(pod)
    await asyncio.to_thread(remove_tree, folder, ignore_errors=True)
