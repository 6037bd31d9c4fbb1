"""Upgrade of 1,000 old nodes, with a real API server: its duration and the size of its status.

Nodes and workloads are objects only: nothing runs, so every node is empty when it is drained, and
only the upgrade itself is measured. Images are known in advance; no registry is used.

`python -m benchmarks.upgrade [NODES WORKLOADS]`
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
from tests.e2e.controlplane import ControlPlane
from tests.support.e2e.objects import BUILD_2019, BUILD_2022, runtime_class, windows_node

from benchmarks.nodes import at_once
from winpod.images.lookup import ImageLookupResult
from winpod.k8s.client import MERGE_PATCH, ApiClient
from winpod.k8s.event_recorder import Event
from winpod.k8s.kubeconfig import read_kubeconfig
from winpod.k8s.objects import ObjectMeta
from winpod.operator.settings import OperatorSettings
from winpod.operator.upgrade.controller import UpgradeController
from winpod.operator.upgrade.progress import expected_size, planned_status
from winpod.operator.upgrade.resource import CRD, UPGRADES, WindowsUpgrade
from winpod.operator.upgrade.snapshot import SnapshotReader
from winpod.operator.upgrade.spec import read_spec
from winpod.windows.platforms import Image, Manifest, Platform

NODES, WORKLOADS, NEW_NODES = 1000, 50, 20
NAMESPACE, NAME = "apps", "2019-to-2022"
SPEC = {"from": "2019", "to": "2022", "patchWorkloads": True, "oldNodes": "mark"}
BOTH = Image(
    "app",
    "sha256:0",
    tuple(
        Manifest(f"sha256:{build}", Platform("windows", "amd64", os_version=build), 1)
        for build in (BUILD_2019, BUILD_2022)
    ),
)


class CountingServer(ApiClient):
    """Client that counts requests, and those that write the status of an upgrade."""

    requests = statuses = 0

    async def request(self, method: str, path: str, body: object = None, **more: Any) -> bytes:
        self.requests += 1
        self.statuses += path.endswith("/status")
        return await super().request(method, path, body, **more)


async def known(text: str, secrets: object) -> ImageLookupResult:
    del text, secrets
    return ImageLookupResult(BOTH)


def deployment(number: int) -> dict[str, Any]:
    labels = {"app": f"app-{number}"}
    container = {"name": "app", "image": f"registry.example/team/app-{number}:1"}
    spec = {"runtimeClassName": "windows-2019", "containers": [container]}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": f"app-{number}", "namespace": NAMESPACE},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }


async def fill(api: ApiClient, nodes: int, workloads: int) -> None:
    """Create nodes and workloads; only new nodes are untainted, so pods can move to these only."""
    old = [windows_node(f"windows-2019-{n:05}", BUILD_2019) for n in range(nodes)]
    new = [windows_node(f"windows-2022-{n:05}", BUILD_2022) for n in range(NEW_NODES)]
    path = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
    await at_once(api.request("POST", "/api/v1/nodes", obj) for obj in (*old, *new))
    for obj in new:
        taints = {"spec": {"taints": obj["spec"]["taints"]}}
        node = f"/api/v1/nodes/{obj['metadata']['name']}"
        await api.request("PATCH", node, taints, content=MERGE_PATCH)
    await at_once(api.request("POST", path, deployment(n)) for n in range(workloads))


async def wait_for_event(api: ApiClient, survey: SnapshotReader, reason: str) -> float:
    """Return the seconds that the upgrade controller takes until it records the event."""
    recorded = asyncio.Event()

    def record(event: Event) -> None:
        if event.reason in (reason, "StepFailed", "UpgradeBlocked"):
            print(f"{event.reason}: {event.message}")
            recorded.set()

    began = time.perf_counter()
    controller = asyncio.create_task(UpgradeController(api, survey, record).run())
    try:
        await recorded.wait()
        return time.perf_counter() - began
    finally:
        controller.cancel()
        await asyncio.gather(controller, return_exceptions=True)


async def measure(plane: ControlPlane, nodes: int, workloads: int) -> None:
    api = CountingServer(read_kubeconfig(plane.kubeconfig))
    survey = SnapshotReader(api, OperatorSettings, known)
    await fill(api, nodes, workloads)
    spec = read_spec(SPEC)
    began = time.perf_counter()
    plan = await survey.plan(spec, await survey.snapshot(spec))
    print(f"planned, with {len(plan.steps)} steps: {time.perf_counter() - began:.1f} s")
    print(f"expected final status size: {expected_size(planned_status(plan)) >> 10} KiB")
    await api.create(UPGRADES, WindowsUpgrade(ObjectMeta(NAME), SPEC))
    for reason in ("UpgradeDone", "UpgradeUndone"):
        api.requests = api.statuses = 0
        seconds = await wait_for_event(api, survey, reason)
        print(f"{reason}: {seconds:.0f} s, {api.requests} requests, {api.statuses} status updates")
        found = await api.get(WindowsUpgrade, f"{UPGRADES}/{NAME}")
        print(f"status size: {len(msgspec.json.encode(found.status if found else None)) >> 10} KiB")
        await api.request(
            "PATCH", f"{UPGRADES}/{NAME}", {"spec": {"undo": True}}, content=MERGE_PATCH
        )
    await api.close()


def main() -> None:
    nodes, workloads = map(int, sys.argv[1:3]) if len(sys.argv) > 2 else (NODES, WORKLOADS)
    with (
        tempfile.TemporaryDirectory() as folder,
        ControlPlane(Path(folder), scheduler=False, controller_manager=False) as plane,
    ):
        plane.create_namespace(NAMESPACE)
        plane.apply(CRD, runtime_class("windows-2019", "runhcs-wcow-process", BUILD_2019))
        plane.kubectl("wait", "--for=condition=Established", f"crd/{CRD['metadata']['name']}")
        asyncio.run(measure(plane, nodes, workloads))


if __name__ == "__main__":
    main()
