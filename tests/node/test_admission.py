from pathlib import Path
from typing import Any

import pytest
from lightkube.models import core_v1 as v1

from tests.node.known_objects import facts_in, read
from tests.node.seen_pods import pod_of
from winpod.node.admission import refusal, taken_by
from winpod.node.pods import with_fields
from winpod.node.resize import allocate, as_given
from winpod.windows.objects import Taint

FACTS = facts_in(Path("/nowhere"), max_pods=3)


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
def test_a_pod_is_taken_or_refused_in_the_kubelets_words(
    pod: v1.Pod, others: list[v1.Pod], reason: str
) -> None:
    why = refusal(pod, [taken_by(other) for other in others], FACTS, None)
    assert (why.reason if why else "") == reason


def test_the_numbers_of_a_refusal_are_whole() -> None:
    why = refusal(sized(cpu="1.5"), [taken_by(sized(cpu="3"))], FACTS, None)
    assert why is not None
    assert why.message == (
        "Node didn't have enough resource: cpu, requested: 1500, used: 3000, capacity: 4000"
    )


def test_labels_and_taints_that_others_gave_the_node_count() -> None:
    node = {
        "metadata": {"name": "win-1", "labels": {"disk": "fast"}},
        "spec": {"taints": [{"key": "down", "effect": "NoExecute"}]},
    }
    seen = read(v1.Node, node)
    selecting: dict[str, Any] = {"nodeSelector": {"disk": "fast"}}
    why = refusal(pod_of(**selecting), [], FACTS, seen)
    assert why is not None
    assert why.reason == "TaintToleration"
    tolerant = pod_of(**selecting, tolerations=[{"key": "down", "operator": "Exists"}])
    assert refusal(tolerant, [], FACTS, seen) is None


def test_a_taint_that_only_the_scheduler_minds_does_not_refuse() -> None:
    facts = facts_in(Path("/nowhere"), taints=(Taint("os", "windows"),))
    assert refusal(pod_of(), [], facts, None) is None


def test_pressure_keeps_pods_away_that_do_not_tolerate_it() -> None:
    memory, disk = frozenset({"MemoryPressure"}), frozenset({"DiskPressure"})
    why = refusal(pod_of(), [], FACTS, None, memory)
    assert why is not None
    assert (why.reason, why.message) == (
        "Evicted",
        "The node had condition: [MemoryPressure]. ",
    )
    assert refusal(sized(memory="1Gi"), [], FACTS, None, memory) is None
    assert refusal(sized(memory="1Gi"), [], FACTS, None, disk) is not None
    tolerant = pod_of(tolerations=[{"operator": "Exists"}])
    assert refusal(tolerant, [], FACTS, None, disk | memory) is None


@pytest.mark.parametrize(
    ("asked", "taken", "reason"),
    [("2", "1", ""), ("40", "1", "Infeasible"), ("3", "2", "Deferred"), ("1", "3", "")],
)
def test_new_resources_are_given_when_there_is_room(asked: str, taken: str, reason: str) -> None:
    given = sized(cpu="1")
    allocation = allocate(sized(cpu=asked), given, [taken_by(sized(cpu=taken))], FACTS)
    assert (allocation.pending.reason if allocation.pending else "") == reason
    has = allocation.pod.spec.containers[0].resources.requests  # type: ignore[union-attr]
    assert has == {"cpu": "1" if reason else asked}


def test_what_an_earlier_process_gave_is_read_from_the_status() -> None:
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
    assert as_given(pod).spec.containers[0].resources.requests == {"cpu": "1"}  # type: ignore[union-attr]
