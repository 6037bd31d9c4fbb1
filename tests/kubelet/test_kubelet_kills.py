"""An agent killed at every step of a pod's lifecycle: its successor continues."""

import asyncio
from itertools import count
from typing import Any

import pytest
from google.protobuf.message import Message

from tests.support.kubelet_pods import deleted, is_ready, listed
from tests.support.small_node import SmallNode, pod_of
from winpod.cri.rpc import CriClient
from winpod.k8s.models import core_v1 as v1
from winpod.k8s.pods import metadata_of, uid_of, with_fields

_CHANGES = ("Run", "Create", "Start", "Stop", "Remove")


class Dying(CriClient):
    """A client that hangs before or after its `last` mutating call, as if it was killed."""

    def __init__(self, target: str, *, last: int, is_done: bool) -> None:
        super().__init__(target)
        self._left = last
        self._is_done = is_done
        self.is_dead = asyncio.Event()

    async def call(self, name: str, request: Message) -> Any:
        if self.is_dead.is_set():
            await asyncio.Event().wait()
        if name.startswith(_CHANGES):
            self._left -= 1
        if self._left > 0:
            return await super().call(name, request)
        if self._is_done:
            await super().call(name, request)
        self.is_dead.set()
        await asyncio.Event().wait()
        return None


@pytest.mark.parametrize("is_done", [False, True], ids=["before", "after"])
async def test_pod_lifecycle_survives_agent_crash_at_every_step(
    node: SmallNode, client: CriClient, image: str, is_done: bool
) -> None:
    for last in count(1):
        init = {"name": "first", "command": ["simulate", "0", "0"]}
        pod = pod_of(image, f"p{last}", initContainers=[init], terminationGracePeriodSeconds=1)
        dying = Dying(f"unix:{node.runtime.root}/cri.sock", last=last, is_done=is_done)
        await live(node, pod, dying)
        await dying.close()
        if not dying.is_dead.is_set():
            break
        await go_on(node, pod, client)
        assert await listed(client) == (0, 0)
        assert not list((node.node_config.root / "pods").iterdir())
    assert last > 7


async def live(node: SmallNode, pod: v1.Pod, dying: Dying) -> None:
    """Run a pod to its deletion, or until the agent dies."""
    uid = uid_of(pod)
    dead = asyncio.ensure_future(dying.is_dead.wait())
    async with node.kubelet(dying) as kubelet:
        kubelet.update_pod(pod)
        up = asyncio.ensure_future(node.until(lambda: is_ready(node.reporter.last(uid))))
        await asyncio.wait({up, dead}, return_when=asyncio.FIRST_COMPLETED)
        kubelet.update_pod(deleted(pod, grace=1))
        gone = asyncio.ensure_future(node.until(lambda: uid in node.reporter.deleted))
        await asyncio.wait({gone, dead}, return_when=asyncio.FIRST_COMPLETED)
    for task in (up, gone, dead):
        task.cancel()


async def go_on(node: SmallNode, pod: v1.Pod, client: CriClient) -> None:
    uid = uid_of(pod)
    async with node.kubelet(client) as kubelet:
        restored = with_fields(pod, status=node.reporter.last(uid))
        await kubelet.replace_pods([restored])
        await node.until(
            lambda: is_ready(node.reporter.last(uid)) or has_ended(node.reporter.last(uid))
        )
        assert (await listed(client))[0] <= 2
        name = metadata_of(pod).name or ""
        container = kubelet.find_container("shop", name, "app")
        assert container is None or container.restart_count <= 1
        kubelet.update_pod(deleted(restored, grace=1))
        await node.until(lambda: uid in node.reporter.deleted)


def has_ended(status: v1.PodStatus) -> bool:
    return status.phase in ("Succeeded", "Failed")
