"""Placement and the real scheduler agree about generated pods.

Hypothesis generates pods; each is placed by winpod and created. The scheduler must bind it to a
node that winpod does not report as blocked, and must find none exactly if winpod blocks all nodes.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.e2e.controlplane import ControlPlane
from tests.support.e2e.objects import (
    BUILD_2019,
    BUILD_2022,
    PROCESS,
    TAINT,
    add_nodes,
    bound_to,
    linux_node,
    pod,
    pods_path,
    runtime_class,
    scheduled_to,
    windows_node,
)

from winpod.check.live_cluster import read_live_cluster
from winpod.placement.evaluator import Cluster
from winpod.placement.model import Pod
from winpod.placement.verdicts import Outcome

NAMESPACE = "agreement"
DEVICE = "example.com/device"
LEVEL = {"key": "level", "value": "2", "effect": "NoExecute"}
RARELY = {"key": "rarely", "effect": "PreferNoSchedule"}
NODES = [
    windows_node("roomy", BUILD_2019, labels={"zone": "a", "rank": "1"}),
    windows_node("open", BUILD_2019, labels={"zone": "b"}, taints=(), room={"pods": "1"}),
    windows_node(
        "small", BUILD_2022, labels={"rank": "x"}, room={"cpu": "500m", "memory": "1G", "pods": "5"}
    ),
    windows_node("tenanted", BUILD_2022, labels={"zone": "a", "rank": "4"}),
    windows_node("cordoned", BUILD_2022, labels={"zone": "b", "rank": "3"}, unschedulable=True),
    windows_node("tainted", BUILD_2019, labels={"zone": "a", "rank": "2"}, taints=(TAINT, LEVEL)),
    windows_node(
        "device",
        BUILD_2022,
        taints=(RARELY,),
        room={"cpu": "2", "memory": "4Gi", "pods": "9", DEVICE: "2", "ephemeral-storage": "1Gi"},
    ),
    linux_node("linux"),
]
NAMES = [node["metadata"]["name"] for node in NODES]
OVERHEAD = {"podFixed": {"cpu": "250m", "memory": "700Mi"}}
CLASSES = [
    runtime_class("windows-2019", PROCESS, BUILD_2019),
    runtime_class("windows-2022", PROCESS, BUILD_2022),
    runtime_class("windows-2022-heavy", PROCESS, BUILD_2022, overhead=OVERHEAD),
]
LARGE = {"requests": {"cpu": "3", "memory": "6Gi"}}
TENANT = {
    "nodeName": "tenanted",
    "containers": [{"name": "main", "image": "example.test/app:1", "resources": LARGE}],
}


def sparse(**members: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Mappings with any subset of these members."""
    return st.fixed_dictionaries({}, optional=members)


amounts = sparse(
    cpu=st.sampled_from(["100m", "0.5", "1500m", "3"]),
    memory=st.sampled_from(["100Mi", "1G", "1536Mi", "3e9", "7Gi"]),
)
devices = sparse(
    **{DEVICE: st.sampled_from(["1", "2", "3"]), "ephemeral-storage": st.just("600Mi")}
)
resources = st.builds(
    lambda requests, limits, device: (
        {"requests": requests | device, "limits": device}
        if requests
        else {"limits": limits | device}
    ),
    amounts,
    amounts,
    st.one_of(st.just({}), st.just({}), devices),
)
selectors = sparse(
    zone=st.sampled_from("ab"),
    rank=st.just("2"),
    **{
        "kubernetes.io/os": st.sampled_from(["windows", "linux"]),
        "node.kubernetes.io/windows-build": st.sampled_from([BUILD_2019, BUILD_2022]),
    },
)
one_node = st.sampled_from([{"kubernetes.io/hostname": name} for name in NAMES])
tolerations = st.one_of(
    st.just(TAINT | {"operator": "Equal"}),
    st.just({"key": "os", "operator": "Exists", "effect": "NoExecute"}),
    st.just({"operator": "Exists"}),
    st.just({"key": "level", "operator": "Exists"}),
    st.just({"key": "level", "value": "3"}),
    st.just({"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}),
)
labels = st.sampled_from(["zone", "rank", "kubernetes.io/os", "absent"])
expressions = st.one_of(
    st.builds(
        lambda key, operator, values: {"key": key, "operator": operator, "values": values},
        labels,
        st.sampled_from(["In", "NotIn"]),
        st.lists(st.sampled_from(["a", "b", "2", "windows"]), min_size=1, unique=True),
    ),
    st.builds(
        lambda key, operator: {"key": key, "operator": operator},
        labels,
        st.sampled_from(["Exists", "DoesNotExist"]),
    ),
    st.builds(
        lambda operator, value: {"key": "rank", "operator": operator, "values": [value]},
        st.sampled_from(["Gt", "Lt"]),
        st.sampled_from(["1", "2", "3"]),
    ),
)
fields = st.builds(
    lambda operator, name: {"key": "metadata.name", "operator": operator, "values": [name]},
    st.sampled_from(["In", "NotIn"]),
    st.sampled_from(NAMES),
)
terms = sparse(
    matchExpressions=st.lists(expressions, max_size=2), matchFields=st.lists(fields, max_size=1)
)
affinities = st.builds(
    lambda found: {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": found}
        }
    },
    st.lists(terms, min_size=1, max_size=2),
)


def containers(prefix: str, smallest: int) -> st.SearchStrategy[list[dict[str, Any]]]:
    return st.lists(resources, min_size=smallest, max_size=2).map(
        lambda found: [
            {"name": f"{prefix}{i}", "image": "example.test/app:1", "resources": needs}
            for i, needs in enumerate(found)
        ]
    )


def with_restart_policy(found: list[dict[str, Any]], always: bool) -> list[dict[str, Any]]:
    return [container | ({"restartPolicy": "Always"} if always else {}) for container in found]


specs = st.fixed_dictionaries(
    {"containers": containers("main", 1)},
    optional={
        "initContainers": st.builds(with_restart_policy, containers("first", 1), st.booleans()),
        "nodeSelector": st.one_of(one_node, one_node, selectors),
        "tolerations": st.lists(tolerations, max_size=3),
        "affinity": affinities,
        "runtimeClassName": st.sampled_from([c["metadata"]["name"] for c in CLASSES]),
    },
)


@dataclass(frozen=True)
class Clusters:
    """The real cluster and winpod's snapshot of it."""

    real: ControlPlane
    snapshot: Cluster


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    directory = tmp_path_factory.mktemp("agreement")
    with ControlPlane(directory, controller_manager=False) as real:
        real.create_namespace(NAMESPACE)
        real.apply(*CLASSES)
        add_nodes(real, *NODES)
        tenant = real.request("POST", pods_path(NAMESPACE), pod("tenant", NAMESPACE, TENANT))
        assert tenant.status == 201, tenant.message
        live = asyncio.run(read_live_cluster(real.kubeconfig))
        yield Clusters(real, Cluster(live.nodes, live.classes))


TOO_LARGE_WITH_OVERHEAD = {
    "runtimeClassName": "windows-2022-heavy",
    "nodeSelector": {"kubernetes.io/hostname": "small"},
    "containers": [
        {
            "name": "main",
            "image": "example.test/app:1",
            "resources": {"requests": {"cpu": "0.5"}},
        }
    ],
}
numbers = count()


@settings(
    max_examples=300,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
@example(spec=TOO_LARGE_WITH_OVERHEAD)
@given(spec=specs)
def test_scheduler_binds_only_where_placement_allows(
    clusters: Clusters, spec: dict[str, Any]
) -> None:
    manifest = pod(f"pod-{next(numbers)}", NAMESPACE, spec)
    placement = clusters.snapshot.place(Pod.from_template(manifest), {})
    allowed = {
        name
        for verdict in placement.verdicts
        if verdict.outcome is not Outcome.BLOCKED
        for name in verdict.nodes
    }

    created = clusters.real.request("POST", pods_path(NAMESPACE), manifest)
    if placement.refusals:
        assert created.status == 403
        # The API server reports only one of several conflicts.
        assert any(refusal.symptom in created.message for refusal in placement.refusals)
        return
    assert created.status == 201, created.message
    name = manifest["metadata"]["name"]
    try:
        bound = (bound_to if allowed else scheduled_to)(clusters.real, NAMESPACE, name)
    finally:
        clusters.real.request("DELETE", f"{pods_path(NAMESPACE)}/{name}?gracePeriodSeconds=0")

    assert bound in allowed if allowed else not bound
