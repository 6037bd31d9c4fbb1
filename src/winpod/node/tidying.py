"""What is kept of containers that have ended: the last one of each name, and its log."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from lightkube.models import core_v1 as v1

from winpod.cri.proto import api_pb2 as api
from winpod.node.means import Means
from winpod.node.requests import log_folder
from winpod.node.seen import ContainerSeen, PodSeen


def superfluous(seen: PodSeen) -> list[ContainerSeen]:
    """Containers that have ended and after which another of the same name has ended."""
    kept: set[str] = set()
    found = []
    for container in seen.containers():
        if container.is_running:
            continue
        if container.name in kept:
            found.append(container)
        kept.add(container.name)
    return found


async def tidy(seen: PodSeen, means: Means) -> None:
    going = superfluous(seen)
    for container in going:
        await means.call("RemoveContainer", api.RemoveContainerRequest(container_id=container.id))
        await asyncio.to_thread(_remove_log, container.log_path)
    gone = {container.id for container in going}
    for sandbox in seen.sandboxes[1:]:
        if not sandbox.is_ready and not {c.id for c in sandbox.containers} - gone:
            request = api.RemovePodSandboxRequest(pod_sandbox_id=sandbox.id)
            await means.call("RemovePodSandbox", request)


def _remove_log(path: str) -> None:
    """With what was rotated away from it."""
    if path:
        for file in Path(path).parent.glob(f"{Path(path).name}*"):
            file.unlink(missing_ok=True)


async def remove_logs(pod: v1.Pod, means: Means) -> None:
    folder = means.facts.log_root / log_folder(pod)
    await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
