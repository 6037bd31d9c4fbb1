"""Static pods on a node: one of a name at a time, and one that comes back is looked after again."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from lightkube.models import core_v1 as v1

from tests.node.small_node import SmallNode
from winpod.cri.rpc import Client
from winpod.node.pods import uid_of
from winpod.node.static_pods import read_static_pod

NOW = datetime(2024, 5, 1, 12, tzinfo=UTC)


def static_pod(image: str, *, version: str = "1", **container: Any) -> v1.Pod:
    """Of one file; another version is another pod, which wants the same port of the node."""
    app = {
        "name": "app",
        "image": image,
        "command": ["serve"],
        "env": [{"name": "VERSION", "value": version}],
        "ports": [{"containerPort": 80, "hostPort": 8080}],
        **container,
    }
    document = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web"},
        "spec": {"containers": [app]},
    }
    return read_static_pod(json.dumps(document), "web.yaml", "win-1", NOW)


def is_running(node: SmallNode, pod: v1.Pod) -> bool:
    return bool(node.said.last(uid_of(pod)).phase == "Running")


async def test_a_pod_that_comes_back_while_it_ends_runs_again(
    node: SmallNode, client: Client, image: str
) -> None:
    pod = static_pod(image)
    uid = uid_of(pod)
    async with node.engine(client) as engine:
        engine.set(pod)
        await node.until(lambda: is_running(node, pod))
        engine.remove(uid)
        engine.set(pod)
        await engine.replace([pod])
        await node.until(lambda: node.said.away == [uid])
        told = len(node.said.statuses[uid])
        await node.until(lambda: node.said.reasons(uid).count("Started") == 2)
        await node.until(lambda: is_running(node, pod) and len(node.said.statuses[uid]) > told)
        engine.remove(uid)
        await node.until(lambda: node.said.away == [uid, uid])
        assert engine.pods() == []


async def test_a_static_pod_that_was_edited_waits_for_the_end_of_the_one_before(
    node: SmallNode, client: Client, image: str
) -> None:
    hook = {"preStop": {"exec": {"command": ["simulate", "0", "0.5"]}}}
    old, new = static_pod(image, lifecycle=hook), static_pod(image, version="2")
    async with node.engine(client) as engine:
        engine.set(old)
        await node.until(lambda: is_running(node, old))
        engine.remove(uid_of(old))
        engine.set(new)
        await node.until(lambda: node.said.away == [uid_of(old)])
        assert node.said.reasons(uid_of(new)) == []
        await node.until(lambda: is_running(node, new))


@pytest.mark.parametrize("is_relisted", [False, True])
async def test_of_edits_in_a_row_only_the_last_one_runs(
    node: SmallNode, client: Client, image: str, is_relisted: bool
) -> None:
    first, second, third = (static_pod(image, version=version) for version in "123")
    async with node.engine(client) as engine:
        engine.set(first)
        await node.until(lambda: is_running(node, first))
        engine.remove(uid_of(first))
        engine.set(second)
        if is_relisted:
            await engine.replace([third])
        else:
            engine.remove(uid_of(second))
            engine.set(third)
        await node.until(lambda: is_running(node, third))
        assert uid_of(second) not in node.said.statuses
        assert node.said.away == [uid_of(first)]
