"""CPU time of the admission reviews of a pod, with many nodes and without an API server.

Both reviews of a pod are run: mutating and validating.

`python -m benchmarks.deciding [NODES]`
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any

from tests.support.e2e.objects import BUILD_2019, BUILD_2022, PROCESS, runtime_class, windows_node

from winpod.images.lookup import ImageLookupResult
from winpod.operator.admission.class_selection import SelectionContext, warm_up
from winpod.operator.admission.review import mutate_pod, review_pod
from winpod.operator.settings import OperatorSettings
from winpod.placement.evaluator import Cluster
from winpod.placement.model import Node, RuntimeClass
from winpod.windows.platforms import Image, Manifest, Platform

NODES, PODS = 2000, 50
_ROOM = {"cpu": "64", "memory": "256Gi", "pods": "250"}
_MANIFESTS = tuple(
    Manifest(f"sha256:{build}", Platform("windows", "amd64", os_version=f"{build}.1"), 0)
    for build in (BUILD_2019, BUILD_2022)
)
_LOOKUPS = {"app:1": ImageLookupResult(Image("app:1", "sha256:0", _MANIFESTS))}
Wrote = Callable[[int], dict[str, Any]]


def by_name(number: int) -> dict[str, Any]:
    """Select a node by name, like the pods of a DaemonSet."""
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [f"n{number}"]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    return {"affinity": {"nodeAffinity": required}}


KINDS: dict[str, Wrote] = {
    "a pod without constraints": lambda _: {},
    "a pod for one host, by its label": lambda n: {
        "nodeSelector": {"kubernetes.io/hostname": f"n{n}"}
    },
    "a pod for one node, as of a DaemonSet": by_name,
    "a pod larger than every node": lambda n: {"resources": {"requests": {"cpu": f"{65 + n}"}}},
}


def pod(spec: dict[str, Any]) -> dict[str, Any]:
    resources = {"requests": {"cpu": "1", "memory": "1Gi"}}
    container = {"name": "app", "image": "app:1", "resources": resources}
    return {"metadata": {"name": "p"}, "spec": {"containers": [container], **spec}}


def review_time(cluster: Cluster, obj: dict[str, Any]) -> float:
    """Run both reviews; return the CPU time in milliseconds."""
    context = SelectionContext(cluster, OperatorSettings(), {})
    began = time.thread_time()
    mutate_pod(obj, context, _LOOKUPS)
    review_pod(obj, context, _LOOKUPS)
    return (time.thread_time() - began) * 1000


def changed(cluster: Cluster, node: Node) -> tuple[float, Cluster]:
    began = time.thread_time()
    new = cluster.with_nodes([node])
    warm_up(new)
    return (time.thread_time() - began) * 1000, new


def show(title: str, taken: list[float]) -> None:
    print(f"{title:38} median {statistics.median(taken):6.2f} ms  max {max(taken):6.2f} ms")


def main(nodes: int = NODES) -> None:
    builds = (BUILD_2019, BUILD_2022)
    objects = [windows_node(f"n{i}", builds[i % 2], room=_ROOM) for i in range(nodes)]
    known = [runtime_class(f"windows-{build}", PROCESS, build) for build in builds]
    cluster = Cluster(map(Node.from_object, objects), map(RuntimeClass.from_object, known))
    warm_up(cluster)
    print(f"{nodes} nodes")
    for title, spec in KINDS.items():
        show(title, [review_time(cluster, pod(spec(number))) for number in range(PODS)])
    for title, change in {
        "cost of a pod change": {"allocated": (("cpu", Decimal(1)),)},
        "cost of a node change": {"unschedulable": True},
    }.items():
        taken = []
        for number in range(PODS):
            node: Any = replace(cluster.nodes[number % nodes], **change)  # type: ignore[arg-type]
            seconds, cluster = changed(cluster, node)
            taken.append(seconds)
        show(title, taken)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
