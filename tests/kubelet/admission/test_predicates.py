from pathlib import Path
from typing import Any

import pytest

from tests.support.known_objects import node_config_in, read
from tests.support.runtime_pods import pod_of
from winpod.k8s.models import core_v1 as v1
from winpod.k8s.pods import with_fields
from winpod.kubelet.admission.predicates import (
    admission_failure,
    allocate_resize,
    allocated_by,
    with_allocated_resources,
)
from winpod.placement.model import Taint

FACTS = node_config_in(Path("/nowhere"), max_pods=3)


def sized(**requests: str) -> v1.Pod:
    return pod_of({"name": "app", "resources": {"requests": requests}})


def labelled(**labels: str) -> v1.Pod:
    pod = pod_of()
    return with_fields(pod, metadata=with_fields(pod.metadata, labels=labels))


CASES: list[tuple[v1.Pod, list[v1.Pod], str]] = [
    (pod_of(), [], ""),
    (pod_of(os={"name": "windows"}), [], ""),
    (pod_of(os={"name": "linux"}), [], "PodOSNotSupported"),
    (labelled(**{"kubernetes.io/os": "linux"}), [], "PodOSSelectorNodeLabelDoesNotMatch"),
    (sized(cpu="4"), [], ""),
    (sized(cpu="4001m"), [], "OutOfcpu"),
    (sized(cpu="1"), [sized(cpu="3500m")], "OutOfcpu"),
    (sized(memory="8Gi"), [], "OutOfmemory"),
    (sized(memory="7Gi"), [], ""),
    (sized(**{"ephemeral-storage": "101Gi"}), [], "OutOfephemeral-storage"),
    (sized(**{"example.com/card": "1"}), [], ""),
    (pod_of(), [pod_of()] * 3, "OutOfpods"),
    (pod_of(nodeSelector={"kubernetes.io/os": "windows"}), [], ""),
    (pod_of(nodeSelector={"disk": "fast"}), [], "NodeAffinity"),
    (pod_of(nodeName="other"), [], "NodeName"),
    (
        pod_of({"name": "app", "ports": [{"containerPort": 80, "hostPort": 80}]}),
        [pod_of({"name": "app", "ports": [{"containerPort": 81, "hostPort": 80}]})],
        "NodePorts",
    ),
    (sized(cpu="many"), [], "UnexpectedAdmissionError"),
]


@pytest.mark.parametrize(("pod", "others", "reason"), CASES)
def test_admission_result_matches_kubelet(pod: v1.Pod, others: list[v1.Pod], reason: str) -> None:
    why = admission_failure(pod, [allocated_by(other) for other in others], FACTS, None)
    assert (why.reason if why else "") == reason


def test_rejection_amounts_are_integers() -> None:
    why = admission_failure(sized(cpu="1.5"), [allocated_by(sized(cpu="3"))], FACTS, None)
    assert why is not None
    assert why.message == (
        "Node didn't have enough resource: cpu, requested: 1500, used: 3000, capacity: 4000"
    )


def test_labels_and_taints_of_node_object_are_considered() -> None:
    node = {
        "metadata": {"name": "win-1", "labels": {"disk": "fast"}},
        "spec": {"taints": [{"key": "down", "effect": "NoExecute"}]},
    }
    runtime_pod = read(v1.Node, node)
    selecting: dict[str, Any] = {"nodeSelector": {"disk": "fast"}}
    why = admission_failure(pod_of(**selecting), [], FACTS, runtime_pod)
    assert why is not None
    assert why.reason == "TaintToleration"
    tolerant = pod_of(**selecting, tolerations=[{"key": "down", "operator": "Exists"}])
    assert admission_failure(tolerant, [], FACTS, runtime_pod) is None


def test_no_schedule_taint_does_not_reject_bound_pod() -> None:
    node_config = node_config_in(Path("/nowhere"), taints=(Taint("os", "windows"),))
    assert admission_failure(pod_of(), [], node_config, None) is None


def test_pressure_rejects_pods_without_toleration() -> None:
    memory, disk = frozenset({"MemoryPressure"}), frozenset({"DiskPressure"})
    why = admission_failure(pod_of(), [], FACTS, None, memory)
    assert why is not None
    assert (why.reason, why.message) == (
        "Evicted",
        "The node had condition: [MemoryPressure]. ",
    )
    assert admission_failure(sized(memory="1Gi"), [], FACTS, None, memory) is None
    assert admission_failure(sized(memory="1Gi"), [], FACTS, None, disk) is not None
    tolerant = pod_of(tolerations=[{"operator": "Exists"}])
    assert admission_failure(tolerant, [], FACTS, None, disk | memory) is None


@pytest.mark.parametrize(
    ("asked", "taken", "reason"),
    [("2", "1", ""), ("40", "1", "Infeasible"), ("3", "2", "Deferred"), ("1", "3", "")],
)
def test_resize_is_allocated_if_node_has_capacity(asked: str, taken: str, reason: str) -> None:
    given = sized(cpu="1")
    allocation = allocate_resize(sized(cpu=asked), given, [allocated_by(sized(cpu=taken))], FACTS)
    assert (allocation.pending.reason if allocation.pending else "") == reason
    has = allocation.pod.spec.containers[0].resources.requests  # type: ignore[union-attr]
    assert has == {"cpu": "1" if reason else asked}


def test_allocated_resources_are_restored_from_status() -> None:
    status = {
        "containerStatuses": [
            {
                "name": "app",
                "image": "",
                "imageID": "",
                "ready": True,
                "restartCount": 0,
                "resources": {"requests": {"cpu": "1"}},
            }
        ]
    }
    pod = with_fields(sized(cpu="40"), status=read(v1.PodStatus, status))
    assert with_allocated_resources(pod).spec.containers[0].resources.requests == {"cpu": "1"}  # type: ignore[union-attr]
