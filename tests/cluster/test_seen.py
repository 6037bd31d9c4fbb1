"""What is kept of nodes, classes and pods, read from the API's own words."""

import json
from typing import Any

import msgspec
import pytest

from winpod.cluster.seen import (
    ClassObject,
    NodeObject,
    PodObject,
    SeenPod,
    Templates,
    see_class,
    see_node,
)
from winpod.windows.objects import Node, Pod, RuntimeClass


def read(kind: type[Any], obj: dict[str, Any]) -> Any:
    return msgspec.json.decode(json.dumps(obj), type=kind)


def pod(name: str = "web-1", node: str = "", **more: Any) -> dict[str, Any]:
    resources = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "2Gi"}}
    spec: dict[str, Any] = {
        "containers": [
            {"name": "web", "image": "web:1", "resources": resources, "env": [{"name": name}]}
        ],
        "initContainers": [{"name": "init", "image": "init:1", "restartPolicy": "Always"}],
        "nodeSelector": {"kubernetes.io/os": "windows"},
        "os": {"name": "windows"},
        "overhead": {"memory": "200Mi"},
        "runtimeClassName": "windows-2019",
        "tolerations": [{"key": "os", "operator": "Exists", "tolerationSeconds": 300}],
        "imagePullSecrets": [{"name": "login"}],
        "securityContext": {"windowsOptions": {"hostProcess": True}},
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
                    ]
                }
            }
        },
        **more.pop("spec", {}),
    }
    if node:
        spec["nodeName"] = node
    metadata = {"name": name, "namespace": "shop", "uid": f"uid-{name}", **more.pop("metadata", {})}
    return {"metadata": metadata, "spec": spec, "status": {"phase": "Running", "podIP": "10.0.0.1"}}


def seen(obj: dict[str, Any], templates: Templates | None = None) -> SeenPod:
    return (templates or Templates()).see_pod(read(PodObject, obj))


def test_a_pods_template_is_what_placement_reads_of_the_whole_object() -> None:
    annotations = {"winpod.dev/os-version": "2019", "kubernetes.io/arch": "amd64", "note": "x"}
    obj = pod(metadata={"annotations": annotations})
    assert seen(obj).template == Pod.from_template(obj)


def test_pods_of_one_workload_share_their_template_wherever_they_are() -> None:
    templates = Templates()
    one, other = (seen(pod(f"web-{n}", f"node-{n}"), templates) for n in (1, 2))
    assert one.template is other.template
    assert one.template.node_name == ""
    assert (one.node, other.node) == ("node-1", "node-2")


@pytest.mark.parametrize(
    "spec",
    [
        {"nodeSelector": {f"key{n}": "x" for n in range(20_000)}},
        {"tolerations": [{"operator": "Unheard"}]},
    ],
)
def test_a_pod_that_cannot_be_looked_at_uses_its_class_all_the_same(spec: dict[str, Any]) -> None:
    odd = seen(pod(spec=spec))
    assert (odd.runtime_class, odd.template.node_selector) == ("windows-2019", ())


def test_a_pod_says_whose_it_is_where_it_is_and_how_it_goes() -> None:
    owners = [{"kind": "Cat", "name": "x"}, {"kind": "ReplicaSet", "name": "r", "controller": True}]
    one = seen(pod(node="win-1", metadata={"ownerReferences": owners}))
    assert (one.namespace, one.name, one.uid, one.node) == ("shop", "web-1", "uid-web-1", "win-1")
    assert (one.phase, one.has_ended, one.is_leaving) == ("Running", False, False)
    assert one.owner == ("ReplicaSet", "r")
    assert one.runtime_class == "windows-2019"
    leaving = seen(pod(metadata={"deletionTimestamp": "2026-11-16T00:00:00Z"}))
    assert (leaving.is_leaving, leaving.owner) == (True, ("", ""))


def test_what_a_kubelet_tells_of_a_pod_every_now_and_then_is_no_change() -> None:
    templates = Templates()
    obj = pod()
    before = seen(obj, templates)
    obj["status"] |= {"podIP": "10.0.0.2", "containerStatuses": [{"restartCount": 3}]}
    obj["metadata"] |= {"resourceVersion": "7", "managedFields": [{}]}
    assert seen(obj, templates) == before


@pytest.mark.parametrize(
    "wrong",
    [
        {"metadata": {"annotations": {"winpod.dev/os-version": "soon"}}},
        {"spec": {"tolerations": [{"operator": "Perhaps"}]}},
    ],
)
def test_a_pod_that_cannot_be_read_whole_is_seen_all_the_same(wrong: dict[str, Any]) -> None:
    one = seen(pod(**wrong))
    assert "web:1" in one.template.images


def test_a_nodes_heartbeat_is_no_change() -> None:
    def at(moment: str, status: str = "True") -> dict[str, Any]:
        ready = {"type": "Ready", "status": status, "lastHeartbeatTime": moment}
        info = {"kernelVersion": "10.0.17763.1", "operatingSystem": "windows"}
        labels = {"kubernetes.io/os": "windows"}
        metadata = {"name": "win", "uid": "u", "labels": labels, "resourceVersion": moment}
        told = {"conditions": [ready], "nodeInfo": info, "images": [{"names": [moment]}]}
        return {"metadata": metadata, "status": told}

    first, second, third = (
        see_node(read(NodeObject, obj)) for obj in (at("1"), at("2"), at("3", "Unknown"))
    )
    assert first == second
    assert first.node == Node.from_object(at("1"))
    assert (first.is_ready, third.is_ready) == (True, False)


def test_labels_that_were_filled_in_are_remembered_by_the_node_itself() -> None:
    metadata = {"name": "win", "annotations": {"winpod.dev/filled-labels": "a,b"}}
    assert see_node(read(NodeObject, {"metadata": metadata})).filled == {"a", "b"}
    assert see_node(read(NodeObject, {"metadata": {"name": "win"}})).filled == frozenset()


def test_a_class_says_whose_it_is_and_whether_it_retires() -> None:
    obj = {
        "metadata": {
            "name": "windows-2019",
            "uid": "u",
            "resourceVersion": "7",
            "labels": {"app.kubernetes.io/managed-by": "winpod"},
            "annotations": {"winpod.dev/retiring": "gone by May"},
        },
        "handler": "runhcs-wcow-process",
        "scheduling": {"nodeSelector": {"kubernetes.io/os": "windows"}},
        "overhead": {"podFixed": {"memory": "200Mi"}},
    }
    one = see_class(read(ClassObject, obj))
    assert one.runtime_class == RuntimeClass.from_object(obj)
    assert (one.is_ours, one.retiring, one.uid, one.version) == (True, "gone by May", "u", "7")
    bare = see_class(read(ClassObject, {"metadata": {"name": "x"}, "handler": "h"}))
    assert (bare.is_ours, bare.retiring) == (False, "")
