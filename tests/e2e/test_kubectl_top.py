"""`kubectl top` and an autoscaler with a real metrics-server and a busy Windows pod."""

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
    """Build metrics-server and the pod's program before a test changes its home."""
    return program(), windows_programs.go_program(name="load")


async def test_top_reports_usage_of_windows_pods_and_autoscaler_scales_on_it(
    built: tuple[Path, Path], node: ApiNode, home: Path, registry: str, tmp_path: Path
) -> None:
    server, load = built
    items = [deployment(node.name, await push_image(load, home, registry)), autoscaler()]
    manifest = json.dumps({"apiVersion": "v1", "kind": "List", "items": items}).encode()
    await node.kubectl("apply", "-f", "-", stdin=manifest)
    await node.until_said("deployment/busy", "holding")
    first = await node.kubectl("get", "pods", "-o", "jsonpath={.items[*].metadata.name}")
    with metrics_server(node.plane, tmp_path, server):
        row = (await top(node, "pod", first, "--containers"))[0]
        assert row[0] == first
        assert row[1] == "app"
        assert 0 < millicores(row[2]) < 400
        assert HELD <= mebibytes(row[3]) < 512
        assert mebibytes((await top(node, "pod", first))[0][2]) >= HELD
        (node_row,) = await top(node, "node", node.name)
        assert node_row[0] == node.name
        assert millicores(node_row[1]) > 0
        assert mebibytes(node_row[3]) >= HELD
        await node.kubectl(
            *("wait", "deployment/busy", "--for=jsonpath={.status.replicas}=2", IN_TIME)
        )
        await node.kubectl("wait", "hpa/busy", "--for=condition=ScalingActive", IN_TIME)
    await node.kubectl("delete", "hpa/busy", "deployment/busy", "--cascade=foreground", IN_TIME)


def deployment(node: str, image: str) -> dict[str, Any]:
    """One pod with an init container, which has exited when usage is measured."""
    limits = {"limits": {"cpu": "300m", "memory": "512Mi"}, "requests": {"cpu": "20m"}}
    app = {"name": "app", "image": image, "command": ["C:\\load.exe", str(HELD)]}
    init = {"name": "begins", "image": image, "command": ["cmd", "/c", "echo begun"]}
    spec = {
        "nodeSelector": {"kubernetes.io/hostname": node},
        "terminationGracePeriodSeconds": 1,
        "initContainers": [init | {"resources": limits}],
        "containers": [app | {"resources": limits}],
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
    """Target half of the CPU request, far less than the pod uses."""
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


async def push_image(program: Path, home: Path, registry: str) -> str:
    shutil.copy(program, home / "content/load.exe")
    return await push(home, f"{registry}/load:1", "10.0.20348.2113")


async def top(node: ApiNode, *arguments: str) -> list[list[str]]:
    """Return the rows of `kubectl top` once there are any; rates need two scrapes."""
    async with asyncio.timeout(PATIENCE):
        while True:
            result = await node.run("top", *arguments, "--no-headers")
            rows = [line.split() for line in result.out.splitlines()]
            if result.code == 0 and rows and "<unknown>" not in result.out:
                return rows
            await asyncio.sleep(1)


def millicores(text: str) -> int:
    return int(text.removesuffix("m"))


def mebibytes(text: str) -> int:
    return int(text.removesuffix("Mi"))
