"""Tests of the cached form of nodes, RuntimeClasses and pods."""

import json
from typing import Any

import msgspec
import pytest

from winpod.k8s.objects import NodeObject, RuntimeClassObject
from winpod.operator.cached_objects import (
    CachedPod,
    PackedPod,
    TemplateCache,
    to_cached_class,
    to_cached_node,
)
from winpod.placement.model import Node, Pod, RuntimeClass


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


def cached(obj: dict[str, Any], templates: TemplateCache | None = None) -> CachedPod:
    return (templates or TemplateCache()).to_cached_pod(read(PackedPod, obj))


def test_cached_template_equals_the_decoded_pod() -> None:
    annotations = {"winpod.dev/os-version": "2019", "kubernetes.io/arch": "amd64", "note": "x"}
    obj = pod(metadata={"annotations": annotations})
    assert cached(obj).template == Pod.from_template(obj)


def test_pods_of_one_workload_share_a_template() -> None:
    templates = TemplateCache()
    one, other = (cached(pod(f"web-{n}", f"node-{n}"), templates) for n in (1, 2))
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
def test_oversized_pod_still_uses_its_class(spec: dict[str, Any]) -> None:
    odd = cached(pod(spec=spec))
    assert (odd.runtime_class, odd.template.node_selector) == ("windows-2019", ())


def test_cached_pod_has_owner_node_and_phase() -> None:
    owners = [{"kind": "Cat", "name": "x"}, {"kind": "ReplicaSet", "name": "r", "controller": True}]
    one = cached(pod(node="win-1", metadata={"ownerReferences": owners}))
    assert (one.namespace, one.name, one.uid, one.node) == ("shop", "web-1", "uid-web-1", "win-1")
    assert (one.phase, one.is_terminal, one.is_deleting) == ("Running", False, False)
    assert one.owner == ("ReplicaSet", "r")
    assert one.runtime_class == "windows-2019"
    leaving = cached(pod(metadata={"deletionTimestamp": "2026-11-16T00:00:00Z"}))
    assert (leaving.is_deleting, leaving.owner) == (True, ("", ""))


def test_pod_status_updates_are_not_changes() -> None:
    templates = TemplateCache()
    obj = pod()
    before = cached(obj, templates)
    obj["status"] |= {"podIP": "10.0.0.2", "containerStatuses": [{"restartCount": 3}]}
    obj["metadata"] |= {"resourceVersion": "7", "managedFields": [{}]}
    assert cached(obj, templates) == before


@pytest.mark.parametrize(
    "wrong",
    [
        {"metadata": {"annotations": {"winpod.dev/os-version": "soon"}}},
        {"spec": {"tolerations": [{"operator": "Perhaps"}]}},
    ],
)
def test_partially_invalid_pod_is_cached(wrong: dict[str, Any]) -> None:
    one = cached(pod(**wrong))
    assert "web:1" in one.template.images


def test_node_heartbeat_is_not_a_change() -> None:
    def at(moment: str, status: str = "True") -> dict[str, Any]:
        ready = {"type": "Ready", "status": status, "lastHeartbeatTime": moment}
        info = {"kernelVersion": "10.0.17763.1", "operatingSystem": "windows"}
        labels = {"kubernetes.io/os": "windows"}
        metadata = {"name": "win", "uid": "u", "labels": labels, "resourceVersion": moment}
        told = {"conditions": [ready], "nodeInfo": info, "images": [{"names": [moment]}]}
        return {"metadata": metadata, "status": told}

    first, second, third = (
        to_cached_node(read(NodeObject, obj)) for obj in (at("1"), at("2"), at("3", "Unknown"))
    )
    assert first == second
    assert first.node == Node.from_object(at("1"))
    assert (first.is_ready, third.is_ready) == (True, False)


def test_filled_in_labels_are_read_from_the_annotation() -> None:
    metadata = {"name": "win", "annotations": {"winpod.dev/filled-labels": "a,b"}}
    assert to_cached_node(read(NodeObject, {"metadata": metadata})).filled_in == {"a", "b"}
    assert to_cached_node(read(NodeObject, {"metadata": {"name": "win"}})).filled_in == frozenset()


def test_cached_class_has_manager_and_retirement() -> None:
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
    one = to_cached_class(read(RuntimeClassObject, obj))
    assert one.runtime_class == RuntimeClass.from_object(obj)
    assert (one.is_managed, one.retiring, one.uid, one.version) == (True, "gone by May", "u", "7")
    bare = to_cached_class(read(RuntimeClassObject, {"metadata": {"name": "x"}, "handler": "h"}))
    assert (bare.is_managed, bare.retiring) == (False, "")
