"""Ownership of a Node, and which pods are evicted."""

from typing import Any

import msgspec
import pytest

from winpod.instances.cluster.nodes import (
    EvictedPod,
    observe_node,
    select_evictions,
    subnet_of,
)
from winpod.k8s.objects import NodeObject, PodObject


def node(os: str = "windows", ready: str = "True", address: str = "10.0.0.5") -> NodeObject:
    return msgspec.convert(
        {
            "metadata": {"name": "win", "labels": {"kubernetes.io/os": os}},
            "spec": {"unschedulable": True},
            "status": {
                "conditions": [{"type": "Ready", "status": ready}],
                "addresses": [{"address": address}] if address else [],
                "nodeInfo": {"containerRuntimeVersion": "docker://20.10"},
            },
        },
        NodeObject,
    )


def test_node_is_observed() -> None:
    now = observe_node(node(), ["10.0.0.5"], is_own=False)
    assert (now.name, now.is_ready, now.is_cordoned) == ("win", True, True)
    assert (now.runtime, now.mismatch) == ("docker://20.10", "")
    assert not observe_node(node(ready="Unknown"), ["10.0.0.5"], is_own=False).is_ready
    assert not observe_node(node(), ["10.0.0.5"], is_own=False, is_stale=True).is_ready


@pytest.mark.parametrize(
    ("found", "is_own", "mismatch"),
    [
        (node(os="linux"), False, "not a Windows node"),
        (node(os="linux"), True, "not a Windows node"),
        (node(address="10.0.0.9"), False, "another machine, at 10.0.0.9"),
        (node(address="10.0.0.9"), True, ""),
        (node(address=""), False, ""),
    ],
)
def test_node_of_the_same_name_at_another_address_is_foreign(
    found: NodeObject, is_own: bool, mismatch: str
) -> None:
    actual = observe_node(found, ["10.0.0.5"], is_own=is_own).mismatch
    assert mismatch in actual
    assert bool(actual) == bool(mismatch)


def test_subnet_is_the_pod_cidr_or_that_of_the_hybrid_overlay() -> None:
    bare = msgspec.convert({"metadata": {}, "spec": {"podCIDR": "10.244.1.0/24"}}, NodeObject)
    overlay = {"k8s.ovn.org/hybrid-overlay-node-subnet": "10.132.0.0/24"}
    both = msgspec.convert(
        {"metadata": {"annotations": overlay}, "spec": {"podCIDR": "10.244.1.0/24"}}, NodeObject
    )
    assert subnet_of(None) == ""
    assert subnet_of(node()) == ""
    assert subnet_of(bare) == "10.244.1.0/24"
    assert subnet_of(both) == "10.132.0.0/24"


def pod(name: str, phase: str = "Running", **metadata: Any) -> PodObject:
    document = {
        "metadata": {"name": name, "namespace": "shop", "uid": name, **metadata},
        "status": {"phase": phase},
    }
    return msgspec.convert(document, PodObject)


def test_daemonset_static_and_terminated_pods_are_not_evicted() -> None:
    pods = [
        pod("plain"),
        pod("going", deletionTimestamp="2026-11-16T00:00:00Z"),
        pod("of-a-set", ownerReferences=[{"kind": "ReplicaSet"}]),
        pod("daemon", ownerReferences=[{"kind": "DaemonSet"}]),
        pod("mirror", annotations={"kubernetes.io/config.mirror": "x"}),
        pod("done", phase="Succeeded"),
        pod("failed", phase="Failed"),
    ]
    found = select_evictions(pods, is_ready=True)
    assert [one.name for one in found] == ["plain", "going", "of-a-set"]
    assert found[1] == EvictedPod("shop", "going", "going", True)
    assert [one.name for one in select_evictions(pods, is_ready=False)] == ["plain", "of-a-set"]


@pytest.mark.parametrize(
    ("tolerations", "is_evicted"),
    [
        ([], True),
        ([{"key": "os", "operator": "Exists"}], True),
        ([{"operator": "Exists"}], False),
        ([{"operator": "Exists", "effect": "NoExecute"}], True),
        ([{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}], False),
    ],
)
def test_pods_that_tolerate_the_cordon_are_not_evicted_again(
    tolerations: list[dict[str, str]], is_evicted: bool
) -> None:
    early, since, late = (f"2026-11-16T00:00:0{second}Z" for second in (1, 2, 3))
    spec = {"tolerations": tolerations}
    document = {"metadata": {"name": "a", "creationTimestamp": early}, "spec": spec}
    before = msgspec.convert(document, PodObject)
    document = {"metadata": {"name": "b", "creationTimestamp": late}, "spec": spec}
    after = msgspec.convert(document, PodObject)
    names = [one.name for one in select_evictions([before, after], is_ready=True, since=since)]
    assert names == (["a", "b"] if is_evicted else ["a"])
