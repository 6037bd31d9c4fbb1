"""`kubectl top`, through a real metrics-server, of a Windows pod that uses what it is given."""

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.controlplane import IN_TIME
from tests.e2e.metrics_server import metrics_server, program
from tests.support.e2e import windows_programs
from tests.support.e2e.api_node import PATIENCE, ApiNode, node, programs
from tests.support.pushed_images import push
from tests.support.registries import home, registry

__all__ = ["home", "node", "programs", "registry"]

HELD = 64


@pytest.fixture(scope="module")
def built() -> tuple[Path, Path]:
    """The server and the pod's program, found before a test has a home of its own."""
    return program(), windows_programs.go_program(name="load")


async def test_top_shows_what_windows_pods_use_and_an_autoscaler_acts_on_it(
    built: tuple[Path, Path], node: ApiNode, home: Path, registry: str, tmp_path: Path
) -> None:
    server, load = built
    made = [deployment(node.name, await packed(load, home, registry)), autoscaler()]
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": made}).encode()
    await node.kubectl("apply", "-f", "-", stdin=listed)
    await node.until_said("deployment/busy", "holding")
    first = await node.kubectl("get", "pods", "-o", "jsonpath={.items[*].metadata.name}")
    with metrics_server(node.plane, tmp_path, server):
        row = (await shown(node, "pod", first, "--containers"))[0]
        assert row[0] == first
        assert row[1] == "app"
        assert 0 < millicores(row[2]) < 400
        assert HELD <= mebibytes(row[3]) < 512
        assert mebibytes((await shown(node, "pod", first))[0][2]) >= HELD
        (of_node,) = await shown(node, "node", node.name)
        assert of_node[0] == node.name
        assert millicores(of_node[1]) > 0
        assert mebibytes(of_node[3]) >= HELD
        await node.kubectl(
            *("wait", "deployment/busy", "--for=jsonpath={.status.replicas}=2", IN_TIME)
        )
        await node.kubectl("wait", "hpa/busy", "--for=condition=ScalingActive", IN_TIME)
    await node.kubectl("delete", "hpa/busy", "deployment/busy", "--cascade=foreground", IN_TIME)


def deployment(node: str, image: str) -> dict[str, Any]:
    """One pod, which begins with a container that is gone when others are counted."""
    limits = {"limits": {"cpu": "300m", "memory": "512Mi"}, "requests": {"cpu": "20m"}}
    loaded = {"name": "app", "image": image, "command": ["C:\\load.exe", str(HELD)]}
    begins = {"name": "begins", "image": image, "command": ["cmd", "/c", "echo begun"]}
    spec = {
        "nodeSelector": {"kubernetes.io/hostname": node},
        "terminationGracePeriodSeconds": 1,
        "initContainers": [begins | {"resources": limits}],
        "containers": [loaded | {"resources": limits}],
    }
    labels = {"app": "busy"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "busy"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }


def autoscaler() -> dict[str, Any]:
    """It wants half of what a pod requests to be used, which is far less than one uses."""
    target = {"type": "Utilization", "averageUtilization": 50}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "busy"},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "busy"},
            "minReplicas": 1,
            "maxReplicas": 2,
            "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": target}}],
        },
    }


async def packed(program: Path, home: Path, registry: str) -> str:
    shutil.copy(program, home / "content/load.exe")
    return await push(home, f"{registry}/load:1", "10.0.20348.2113")


async def shown(node: ApiNode, *what: str) -> list[list[str]]:
    """The rows of `kubectl top`, as soon as it has any; it needs to have looked twice."""
    async with asyncio.timeout(PATIENCE):
        while True:
            ran = await node.run("top", *what, "--no-headers")
            rows = [line.split() for line in ran.out.splitlines()]
            if ran.code == 0 and rows and "<unknown>" not in ran.out:
                return rows
            await asyncio.sleep(1)


def millicores(text: str) -> int:
    return int(text.removesuffix("m"))


def mebibytes(text: str) -> int:
    return int(text.removesuffix("Mi"))
