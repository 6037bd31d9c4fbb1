"""What is kept when the agent, or all containers of a pod, restart."""

import asyncio
from functools import partial
from typing import Any

import pytest
from google.protobuf.message import Message

from tests.support.kubelet_pods import UID, container, is_ready
from tests.support.small_node import SmallNode, pod_of
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import CriClient
from winpod.k8s.models import core_v1 as v1
from winpod.k8s.pods import condition, with_fields


@pytest.mark.parametrize("is_reported", [True, False], ids=["status reported", "status lost"])
async def test_restarted_agent_keeps_exit_state_and_restart_count(
    node: SmallNode, client: CriClient, image: str, is_reported: bool
) -> None:
    pod = pod_of(image)
    async with node.kubelet(client) as kubelet:
        kubelet.update_pod(pod)
        for restarts in range(3):
            await node.until(partial(is_up, node, restarts))
            if restarts < 2:
                found = kubelet.find_container("shop", "web", "app")
                assert found
                request = api.StopContainerRequest(container_id=found.id, timeout=0)
                await client.call("StopContainer", request)
    before = container(node.reporter.last(UID))
    assert before.lastState.terminated.containerID != before.containerID
    node.reporter.statuses.clear()
    async with node.kubelet(client) as kubelet:
        status = v1.PodStatus(containerStatuses=[before]) if is_reported else None
        await kubelet.replace_pods([with_fields(pod, status=status)])
        await node.until(lambda: is_ready(node.reporter.last(UID)))
    assert [container(status) for status in node.reporter.statuses[UID]] == [before]


async def test_restarted_agent_keeps_probe_results(
    node: SmallNode, client: CriClient, image: str
) -> None:
    pod = pod_of(image, "web", "serve", "serve", with_each=[answering("0"), answering("1")])
    async with node.kubelet(client) as kubelet:
        kubelet.update_pod(pod)
        await node.until(lambda: container(node.reporter.last(UID), "app").ready)
        await node.until(lambda: container(node.reporter.last(UID), "app-1").started)
    before = node.reporter.last(UID)
    node.reporter.statuses.clear()
    async with node.kubelet(client) as kubelet:
        await kubelet.replace_pods([with_fields(pod, status=before)])
        await node.until(lambda: UID in node.reporter.statuses)
        first = node.reporter.statuses[UID][0]
    assert container(first, "app").ready
    assert container(first, "app-1").started
    assert not container(first, "app-1").ready


class Slow(CriClient):
    """A client of a runtime whose listing is delayed."""

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.may_tell = asyncio.Event()

    async def call(self, name: str, request: Message) -> Any:
        if name == "ListPodSandbox":
            await self.may_tell.wait()
        return await super().call(name, request)


async def test_volumes_stay_until_restarted_agent_killed_pod(
    node: SmallNode, client: CriClient, image: str
) -> None:
    pod = pod_of(image, terminationGracePeriodSeconds=1)
    async with node.kubelet(client) as kubelet:
        kubelet.update_pod(pod)
        await node.until(lambda: is_ready(node.reporter.last(UID)))
    folder = node.node_config.root / "pods" / UID
    slow = Slow(f"unix:{node.runtime.root}/cri.sock")
    async with node.kubelet(slow) as kubelet:
        await kubelet.replace_pods([])
        await asyncio.sleep(0.2)
        assert folder.exists()
        slow.may_tell.set()
        await node.until(lambda: UID in node.reporter.deleted)
    assert not folder.exists()
    await slow.close()


async def test_container_exit_restarts_all_containers_by_rule(
    node: SmallNode, client: CriClient, image: str
) -> None:
    rule = {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [0]}}
    asking = {"restartPolicy": "Never", "restartPolicyRules": [rule]}
    first = {"name": "first", "command": ["simulate", "0", "0"]}
    spec = {"initContainers": [first], "restartPolicy": "Never", "with_each": [asking]}
    names = ("first", "app", "app-1")
    async with node.kubelet(client) as kubelet:
        kubelet.update_pod(pod_of(image, "web", "serve", "serve", **spec))
        await node.until(lambda: is_ready(node.reporter.last(UID)))
        before = node.reporter.last(UID)
        asker = kubelet.find_container("shop", "web", "app")
        assert asker
        stop = api.StopContainerRequest(container_id=asker.id, timeout=5)
        await client.call("StopContainer", stop)
        await node.until(lambda: is_up(node, 1))
        after = node.reporter.last(UID)
    for name in names:
        assert container(after, name).restartCount == 1
        assert container(after, name).containerID != container(before, name).containerID
        assert container(after, name).lastState.terminated.reason == "RestartingAllContainers"
    restarting_statuses = [restarting(status) for status in node.reporter.statuses[UID]]
    assert list(dict.fromkeys(restarting_statuses)) == ["False", "True"]
    assert restarting_statuses[-1] == "False"
    assert not {"Failed", "Succeeded"} & {status.phase for status in node.reporter.statuses[UID]}
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
    status = node.reporter.last(UID)
    return is_ready(status) and container(status).restartCount == restarts
