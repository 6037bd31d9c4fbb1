"""An agent that is killed at any step of a pod's life: the next one goes on where it was."""

import asyncio
from itertools import count
from typing import Any

import pytest
from google.protobuf.message import Message
from lightkube.models import core_v1 as v1

from tests.node.small_node import SmallNode, pod_of
from tests.node.test_engine import deleted, is_ready, listed
from winpod.cri.rpc import Client
from winpod.node.pods import uid_of, with_fields
from winpod.node.requests import metadata_of

_CHANGES = ("Run", "Create", "Start", "Stop", "Remove")


class Dying(Client):
    """A client whose process is killed before or after one of the calls that change something."""

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
async def test_a_pod_comes_up_and_goes_though_its_agent_dies_at_every_step(
    node: SmallNode, client: Client, image: str, is_done: bool
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
        assert not list((node.facts.root / "pods").iterdir())
    assert last > 7


async def live(node: SmallNode, pod: v1.Pod, dying: Dying) -> None:
    """From the start of a pod to its end, or to the end of the agent."""
    uid = uid_of(pod)
    dead = asyncio.ensure_future(dying.is_dead.wait())
    async with node.engine(dying) as engine:
        engine.set(pod)
        up = asyncio.ensure_future(node.until(lambda: is_ready(node.said.last(uid))))
        await asyncio.wait({up, dead}, return_when=asyncio.FIRST_COMPLETED)
        engine.set(deleted(pod, grace=1))
        gone = asyncio.ensure_future(node.until(lambda: uid in node.said.away))
        await asyncio.wait({gone, dead}, return_when=asyncio.FIRST_COMPLETED)
    for task in (up, gone, dead):
        task.cancel()


async def go_on(node: SmallNode, pod: v1.Pod, client: Client) -> None:
    uid = uid_of(pod)
    async with node.engine(client) as engine:
        known = with_fields(pod, status=node.said.last(uid))
        await engine.replace([known])
        await node.until(lambda: is_ready(node.said.last(uid)) or has_ended(node.said.last(uid)))
        assert (await listed(client))[0] <= 2
        name = metadata_of(pod).name or ""
        found = engine.find_container("shop", name, "app")
        assert found is None or found.restart_count <= 1
        engine.set(deleted(known, grace=1))
        await node.until(lambda: uid in node.said.away)


def has_ended(status: v1.PodStatus) -> bool:
    return status.phase in ("Succeeded", "Failed")
