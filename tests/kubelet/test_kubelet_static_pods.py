"""Static pods on a node: one per name at a time, and pods that are added again."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.support.small_node import SmallNode
from winpod.cri.rpc import CriClient
from winpod.k8s.models import core_v1 as v1
from winpod.k8s.pods import uid_of
from winpod.kubelet.static_pods import read_static_pod

NOW = datetime(2024, 5, 1, 12, tzinfo=UTC)


def static_pod(image: str, *, version: str = "1", **container: Any) -> v1.Pod:
    """Return the pod of one file; each version is another pod with the same host port."""
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
    return bool(node.reporter.last(uid_of(pod)).phase == "Running")


async def test_pod_readded_while_terminating_runs_again(
    node: SmallNode, client: CriClient, image: str
) -> None:
    pod = static_pod(image)
    uid = uid_of(pod)
    async with node.kubelet(client) as kubelet:
        kubelet.update_pod(pod)
        await node.until(lambda: is_running(node, pod))
        kubelet.remove_pod(uid)
        kubelet.update_pod(pod)
        await kubelet.replace_pods([pod])
        await node.until(lambda: node.reporter.deleted == [uid])
        told = len(node.reporter.statuses[uid])
        await node.until(lambda: node.reporter.reasons(uid).count("Started") == 2)
        await node.until(lambda: is_running(node, pod) and len(node.reporter.statuses[uid]) > told)
        kubelet.remove_pod(uid)
        await node.until(lambda: node.reporter.deleted == [uid, uid])
        assert kubelet.pods() == []


async def test_edited_static_pod_waits_for_predecessor(
    node: SmallNode, client: CriClient, image: str
) -> None:
    hook = {"preStop": {"exec": {"command": ["simulate", "0", "0.5"]}}}
    old, new = static_pod(image, lifecycle=hook), static_pod(image, version="2")
    async with node.kubelet(client) as kubelet:
        kubelet.update_pod(old)
        await node.until(lambda: is_running(node, old))
        kubelet.remove_pod(uid_of(old))
        kubelet.update_pod(new)
        await node.until(lambda: node.reporter.deleted == [uid_of(old)])
        assert node.reporter.reasons(uid_of(new)) == []
        await node.until(lambda: is_running(node, new))


@pytest.mark.parametrize("is_relisted", [False, True])
async def test_only_last_of_several_edits_runs(
    node: SmallNode, client: CriClient, image: str, is_relisted: bool
) -> None:
    first, second, third = (static_pod(image, version=version) for version in "123")
    async with node.kubelet(client) as kubelet:
        kubelet.update_pod(first)
        await node.until(lambda: is_running(node, first))
        kubelet.remove_pod(uid_of(first))
        kubelet.update_pod(second)
        if is_relisted:
            await kubelet.replace_pods([third])
        else:
            kubelet.remove_pod(uid_of(second))
            kubelet.update_pod(third)
        await node.until(lambda: is_running(node, third))
        assert uid_of(second) not in node.reporter.statuses
        assert node.reporter.deleted == [uid_of(first)]
