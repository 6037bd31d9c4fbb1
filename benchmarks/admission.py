"""Cost of admission for a pod: through an API server, with the image cached, and many at once.

Each pod is created twice, alternating between a namespace with the webhook and an exempt one, so
that both have the same load. The difference is the cost of admission.

`python -m benchmarks.admission [PODS] [NODES]`
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from tests.e2e.controlplane import ControlPlane
from tests.support.e2e.objects import BUILD_2019, BUILD_2022, linux_node, windows_node
from tests.support.e2e.operator_process import NAMESPACE, OperatorProcess, ask_about_pods
from tests.support.registries import docker_registry

from winpod.cli.main import app
from winpod.k8s.client import ApiClient
from winpod.k8s.kubeconfig import read_kubeconfig

PODS, NODES = 1000, 4
AT_ONCE = 200
_TIMEOUT = 120.0
_WITH_WEBHOOK, _EXEMPT = "apps", "kube-system"


def pod(name: str, image: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "automountServiceAccountToken": False,
            "containers": [{"name": "app", "image": image}],
        },
    }


async def add_node(api: ApiClient, name: str, build: str) -> None:
    """Add a node and make it ready: the API server taints every new node."""
    node = windows_node(name, build, room={"pods": "100000"})
    await api.request("POST", "/api/v1/nodes", node)
    for part, below in (("status", "/status"), ("spec", "")):
        path, content = f"/api/v1/nodes/{name}{below}", "application/merge-patch+json"
        await api.request("PATCH", path, {part: node[part]}, content=content)


async def created(api: ApiClient, namespace: str, body: dict[str, Any]) -> tuple[float, str]:
    """Create a pod; return the duration and the pod's RuntimeClass."""
    began = time.perf_counter()
    answer = await api.request("POST", f"/api/v1/namespaces/{namespace}/pods", body)
    seconds = time.perf_counter() - began
    return seconds, json.loads(answer)["spec"].get("runtimeClassName", "")


async def in_turn(api: ApiClient, image: str, pods: int) -> None:
    times: dict[str, list[float]] = {_WITH_WEBHOOK: [], _EXEMPT: []}
    for number in range(pods):
        for namespace, taken in times.items():
            seconds, _ = await created(api, namespace, pod(f"turn-{number}", image))
            taken.append(seconds * 1000)
    rows = {"with": times[_WITH_WEBHOOK], "without": times[_EXEMPT]}
    for name, taken in rows.items():
        print(f"{name:8} webhook  p50 {_p(taken, 50):6.2f} ms  p99 {_p(taken, 99):6.2f} ms")
    for rank, percent in (("median", 50), ("p99", 99)):
        more = _p(times[_WITH_WEBHOOK], percent) - _p(times[_EXEMPT], percent)
        print(f"added to the {rank:6} {more:8.2f} ms")


async def at_once(api: ApiClient, image: str) -> None:
    began = time.perf_counter()
    made = await asyncio.gather(
        *(created(api, _WITH_WEBHOOK, pod(f"crowd-{number}", image)) for number in range(AT_ONCE))
    )
    took = time.perf_counter() - began
    classed = sum(bool(name) for _, name in made)
    print(f"{AT_ONCE} pods at once: {classed} with their class after {took:.2f} s")


def _p(values: Sequence[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def print_own_times(operator: OperatorProcess) -> None:
    """Print the upper bound of the histogram bucket with the webhook's own p99."""
    for family in text_string_to_metric_families(operator.answer("/metrics")[1]):
        if family.name != "winpod_admission_review_duration_seconds":
            continue
        for webhook in ("mutate", "validate"):
            buckets = [
                (float(sample.labels["le"]), sample.value)
                for sample in family.samples
                if sample.name.endswith("_bucket") and sample.labels["webhook"] == webhook
            ]
            total = buckets[-1][1]
            limit = next(le for le, count in buckets if count >= 0.99 * total)
            print(f"the webhook's own p99, {webhook}: within {limit:g} s ({total:.0f} reviews)")


async def add_nodes(plane: ControlPlane, nodes: int) -> None:
    api = ApiClient(read_kubeconfig(plane.kubeconfig))
    try:
        for number in range(nodes):
            await add_node(api, f"win-{number}", BUILD_2022 if number % 2 else BUILD_2019)
    finally:
        await api.close()


async def measure(plane: ControlPlane, operator: OperatorProcess, image: str, pods: int) -> None:
    api = ApiClient(read_kubeconfig(plane.kubeconfig))
    try:
        ask_about_pods(plane, operator.webhook_port)
        deadline = time.monotonic() + _TIMEOUT
        number = 0
        while not (await created(api, _WITH_WEBHOOK, pod(f"first-{number}", image)))[1]:
            number += 1
            if time.monotonic() > deadline:
                sys.exit(f"no pod got a class; see {operator.log}")
            await asyncio.sleep(1)
        await in_turn(api, image, pods)
        print_own_times(operator)
        await at_once(api, image)
    finally:
        await api.close()


def main(pods: int = PODS, nodes: int = NODES) -> None:
    with tempfile.TemporaryDirectory() as place, docker_registry(Path(place) / "r") as registry:
        folder = Path(place)
        (folder / "content").mkdir()
        (folder / "content/app.txt").write_text("app")
        image = f"{registry}/app:1"
        pack = ["image", "pack", str(folder / "content"), "-t", image]
        app([*pack, "--os-version", "2019", "--os-version", "2022"], standalone_mode=False)
        quiet = ControlPlane(folder / "plane", scheduler=False, controller_manager=False)
        with quiet as plane:
            for namespace in (_WITH_WEBHOOK, _EXEMPT, NAMESPACE):
                plane.create_namespace(namespace)
            plane.apply(linux_node("linux"))
            asyncio.run(add_nodes(plane, nodes))
            print(f"{nodes} Windows nodes, {pods} pods", flush=True)
            with OperatorProcess(plane, folder / "operator", "one") as operator:
                asyncio.run(measure(plane, operator, image, pods))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
