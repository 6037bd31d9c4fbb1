"""What deciding about a pod costs, in time of the processor, with many nodes and no API server.

Both questions that an API server asks of a pod are answered: what is added, and whether it runs.

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
_LOOKED = {"app:1": ImageLookupResult(Image("app:1", "sha256:0", _MANIFESTS))}
Wrote = Callable[[int], dict[str, Any]]


def by_name(number: int) -> dict[str, Any]:
    """As a DaemonSet's pods have it."""
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [f"n{number}"]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    return {"affinity": {"nodeAffinity": required}}


KINDS: dict[str, Wrote] = {
    "a pod that says nothing": lambda _: {},
    "for one host by its label": lambda n: {"nodeSelector": {"kubernetes.io/hostname": f"n{n}"}},
    "for one node, as of a DaemonSet": by_name,
    "larger than every node": lambda n: {"resources": {"requests": {"cpu": f"{65 + n}"}}},
}


def pod(spec: dict[str, Any]) -> dict[str, Any]:
    resources = {"requests": {"cpu": "1", "memory": "1Gi"}}
    container = {"name": "app", "image": "app:1", "resources": resources}
    return {"metadata": {"name": "p"}, "spec": {"containers": [container], **spec}}


def answer(cluster: Cluster, obj: dict[str, Any]) -> float:
    """In milliseconds."""
    met = SelectionContext(cluster, OperatorSettings(), {})
    began = time.thread_time()
    mutate_pod(obj, met, _LOOKED)
    review_pod(obj, met, _LOOKED)
    return (time.thread_time() - began) * 1000


def changed(cluster: Cluster, node: Node) -> tuple[float, Cluster]:
    began = time.thread_time()
    new = cluster.with_nodes([node])
    warm_up(new)
    return (time.thread_time() - began) * 1000, new


def show(what: str, taken: list[float]) -> None:
    print(f"{what:34} median {statistics.median(taken):6.2f} ms  most {max(taken):6.2f} ms")


def main(nodes: int = NODES) -> None:
    builds = (BUILD_2019, BUILD_2022)
    objects = [windows_node(f"n{i}", builds[i % 2], room=_ROOM) for i in range(nodes)]
    known = [runtime_class(f"windows-{build}", PROCESS, build) for build in builds]
    cluster = Cluster(map(Node.from_object, objects), map(RuntimeClass.from_object, known))
    warm_up(cluster)
    print(f"{nodes} nodes")
    for what, wrote in KINDS.items():
        show(what, [answer(cluster, pod(wrote(number))) for number in range(PODS)])
    for what, change in {
        "a node whose pods have changed": {"allocated": (("cpu", Decimal(1)),)},
        "a node that has changed itself": {"unschedulable": True},
    }.items():
        taken = []
        for number in range(PODS):
            node: Any = replace(cluster.nodes[number % nodes], **change)  # type: ignore[arg-type]
            seconds, cluster = changed(cluster, node)
            taken.append(seconds)
        show(what, taken)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
