"""What is kept when an agent, or every container of a pod, begins anew."""

import asyncio
from functools import partial
from typing import Any

import pytest
from google.protobuf.message import Message
from lightkube.models import core_v1 as v1

from tests.node.small_node import SmallNode, pod_of
from tests.node.test_engine import UID, container, is_ready
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import Client
from winpod.node.pods import condition, with_fields


@pytest.mark.parametrize("is_told", [True, False], ids=["status told", "status lost"])
async def test_a_new_agent_keeps_how_a_container_ended_and_how_often(
    node: SmallNode, client: Client, image: str, is_told: bool
) -> None:
    pod = pod_of(image)
    async with node.engine(client) as engine:
        engine.set(pod)
        for restarts in range(3):
            await node.until(partial(is_up, node, restarts))
            if restarts < 2:
                found = engine.find_container("shop", "web", "app")
                assert found
                request = api.StopContainerRequest(container_id=found.id, timeout=0)
                await client.call("StopContainer", request)
    before = container(node.said.last(UID))
    assert before.lastState.terminated.containerID != before.containerID
    node.said.statuses.clear()
    async with node.engine(client) as engine:
        status = v1.PodStatus(containerStatuses=[before]) if is_told else None
        await engine.replace([with_fields(pod, status=status)])
        await node.until(lambda: is_ready(node.said.last(UID)))
    assert [container(status) for status in node.said.statuses[UID]] == [before]


async def test_a_new_agent_keeps_what_probes_found_until_they_find_otherwise(
    node: SmallNode, client: Client, image: str
) -> None:
    pod = pod_of(image, "web", "serve", "serve", with_each=[answering("0"), answering("1")])
    async with node.engine(client) as engine:
        engine.set(pod)
        await node.until(lambda: container(node.said.last(UID), "app").ready)
        await node.until(lambda: container(node.said.last(UID), "app-1").started)
    before = node.said.last(UID)
    node.said.statuses.clear()
    async with node.engine(client) as engine:
        await engine.replace([with_fields(pod, status=before)])
        await node.until(lambda: UID in node.said.statuses)
        first = node.said.statuses[UID][0]
    assert container(first, "app").ready
    assert container(first, "app-1").started
    assert not container(first, "app-1").ready


class Slow(Client):
    """A client of a runtime that says only later what it has."""

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.may_tell = asyncio.Event()

    async def call(self, name: str, request: Message) -> Any:
        if name == "ListPodSandbox":
            await self.may_tell.wait()
        return await super().call(name, request)


async def test_files_of_a_pod_stay_until_a_new_agent_has_ended_it(
    node: SmallNode, client: Client, image: str
) -> None:
    pod = pod_of(image, terminationGracePeriodSeconds=1)
    async with node.engine(client) as engine:
        engine.set(pod)
        await node.until(lambda: is_ready(node.said.last(UID)))
    folder = node.facts.root / "pods" / UID
    slow = Slow(f"unix:{node.runtime.root}/cri.sock")
    async with node.engine(slow) as engine:
        await engine.replace([])
        await asyncio.sleep(0.2)
        assert folder.exists()
        slow.may_tell.set()
        await node.until(lambda: UID in node.said.away)
    assert not folder.exists()
    await slow.close()


async def test_a_container_may_ask_by_its_end_that_all_begin_anew(
    node: SmallNode, client: Client, image: str
) -> None:
    rule = {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [0]}}
    asking = {"restartPolicy": "Never", "restartPolicyRules": [rule]}
    first = {"name": "first", "command": ["simulate", "0", "0"]}
    spec = {"initContainers": [first], "restartPolicy": "Never", "with_each": [asking]}
    names = ("first", "app", "app-1")
    async with node.engine(client) as engine:
        engine.set(pod_of(image, "web", "serve", "serve", **spec))
        await node.until(lambda: is_ready(node.said.last(UID)))
        before = node.said.last(UID)
        asker = engine.find_container("shop", "web", "app")
        assert asker
        stop = api.StopContainerRequest(container_id=asker.id, timeout=5)
        await client.call("StopContainer", stop)
        await node.until(lambda: is_up(node, 1))
        after = node.said.last(UID)
    for name in names:
        assert container(after, name).restartCount == 1
        assert container(after, name).containerID != container(before, name).containerID
        assert container(after, name).lastState.terminated.reason == "RestartingAllContainers"
    told = [restarting(status) for status in node.said.statuses[UID]]
    assert list(dict.fromkeys(told)) == ["False", "True"]
    assert told[-1] == "False"
    assert not {"Failed", "Succeeded"} & {status.phase for status in node.said.statuses[UID]}
    assert len((await client.call("ListPodSandbox", api.ListPodSandboxRequest())).items) == 1


def restarting(status: v1.PodStatus) -> str:
    found = condition(status, "AllContainersRestarting")
    return found.status if found else ""


def answering(code: str) -> dict[str, Any]:
    return {
        "startupProbe": {"exec": {"command": ["simulate", "0"]}, "periodSeconds": 1},
        "readinessProbe": {"exec": {"command": ["simulate", code]}, "periodSeconds": 1},
    }


def is_up(node: SmallNode, restarts: int) -> bool:
    status = node.said.last(UID)
    return is_ready(status) and container(status).restartCount == restarts
