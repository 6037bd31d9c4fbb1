"""Tests of planning an upgrade: moves of workloads and order of steps."""

from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import pytest

from tests.support.upgrade_clusters import (
    B2019,
    B2022,
    B2025,
    BOTH,
    BUILD,
    GUEST_2019,
    OF_WINDOWS,
    OLD_ONLY,
    PROCESS,
    UPGRADE,
    WIN_2019,
    WIN_2022,
    labels,
    node,
    workload,
)
from winpod.errors import InvalidInput
from winpod.operator.upgrade.moves import (
    MoveOutcome,
    TemplateChange,
    UpgradeWorkload,
    WorkloadMove,
    WorkloadPod,
)
from winpod.operator.upgrade.plan import ClusterSnapshot, UpgradePlan, UpgradeStepKind, plan_upgrade
from winpod.operator.upgrade.spec import (
    OldNodePolicy,
    UpgradeSpec,
    UpgradeStrategy,
    read_spec,
    write_spec,
)
from winpod.placement.model import Node, Taint
from winpod.windows.builds import parse_build

OSVERSION = "beta.kubernetes.io/osversion"


def runtime_class(name: str, build: str, handler: str = PROCESS, **more: Any) -> dict[str, Any]:
    return {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": name, **more.pop("metadata", {})},
        "handler": handler,
        "scheduling": {"nodeSelector": labels(build)},
        **more,
    }


WIN_2022_HYPERV = node("new", B2022, GUEST_2019)
CLASS_2019, CLASS_2022 = runtime_class("windows-2019", B2019), runtime_class("windows-2022", B2022)
OVERHEAD = {"podFixed": {"memory": "200Mi"}}
CLASS_HYPERV = runtime_class("windows-2019-hyperv", B2022, GUEST_2019, overhead=OVERHEAD)
AS_IT_IS = TemplateChange()
SAME = replace(UPGRADE, strategy=UpgradeStrategy.SAME_CLASS)
RESELECT = replace(UPGRADE, strategy=UpgradeStrategy.NODE_SELECTOR)


OF_CLASS: dict[str, Any] = {"runtimeClassName": "windows-2019"}
OF_BUILD: dict[str, Any] = {"nodeSelector": {BUILD: B2019}}


@dataclass(frozen=True)
class Case:
    says: str
    workload: UpgradeWorkload
    fate: MoveOutcome
    change: TemplateChange = AS_IT_IS
    spec: UpgradeSpec = UPGRADE
    new: Node = WIN_2022
    stays: bool = False
    reason: str = ""


TO_2022, TO_HYPERV = TemplateChange("windows-2022"), TemplateChange("windows-2019-hyperv")
TO_BUILD = TemplateChange(node_selector=((BUILD, B2022),))
CASES = [
    Case(
        "both builds, old class: the new class",
        workload(BOTH, **OF_CLASS),
        MoveOutcome.NEW_IMAGE,
        TO_2022,
    ),
    Case("both builds, no class: as it is", workload(BOTH, **OF_WINDOWS), MoveOutcome.NEW_IMAGE),
    Case(
        "both builds, old selector: the new one",
        workload(BOTH, **OF_BUILD),
        MoveOutcome.NEW_IMAGE,
        TO_BUILD,
    ),
    Case(
        "both builds, old class and old selector: both change",
        workload(BOTH, **OF_CLASS, **OF_BUILD),
        MoveOutcome.NEW_IMAGE,
        TemplateChange("windows-2022", ((BUILD, B2022),)),
    ),
    Case(
        "old build only, new nodes have no guest: it stays",
        workload(OLD_ONLY, **OF_CLASS),
        MoveOutcome.CANNOT,
        stays=True,
        reason="or hypervisor isolation: nodes with the handler runhcs-wcow-hypervisor-17763",
    ),
    Case(
        "old build only: the reason names what the image has",
        workload(OLD_ONLY, **OF_CLASS),
        MoveOutcome.CANNOT,
        stays=True,
        reason=f"app has no build {B2022}; it has {B2019}.1",
    ),
    Case(
        "old build only, new nodes have a guest for it",
        workload(OLD_ONLY, **OF_CLASS),
        MoveOutcome.HYPERVISOR,
        TO_HYPERV,
        new=WIN_2022_HYPERV,
    ),
    Case(
        "old build only, no class, a guest for it",
        workload(OLD_ONLY, **OF_WINDOWS),
        MoveOutcome.HYPERVISOR,
        TO_HYPERV,
        new=WIN_2022_HYPERV,
    ),
    Case(
        "both builds and a guest: process isolation is enough",
        workload(BOTH, **OF_CLASS),
        MoveOutcome.NEW_IMAGE,
        TO_2022,
        new=WIN_2022_HYPERV,
    ),
    Case(
        "containerd lists the handler, and cannot",
        workload(OLD_ONLY, **OF_CLASS),
        MoveOutcome.CANNOT,
        new=replace(WIN_2022_HYPERV, runtime="containerd"),
        stays=True,
    ),
    Case(
        "an image that nobody knows",
        workload(None, **OF_CLASS),
        MoveOutcome.CANNOT,
        stays=True,
        reason="image app could not be resolved",
    ),
    Case(
        "an image that nobody could look up, and why",
        replace(workload(None, **OF_CLASS), problems=("the registry says nothing",)),
        MoveOutcome.CANNOT,
        stays=True,
        reason="the registry says nothing",
    ),
    Case(
        "a change that nobody asked for",
        workload(BOTH, **OF_CLASS),
        MoveOutcome.NEW_IMAGE,
        TO_2022,
        spec=replace(UPGRADE, patch_workloads=False),
        stays=True,
        reason="it must be changed first: runtimeClassName: windows-2022",
    ),
    Case(
        "a Job of the old class",
        workload(BOTH, kind="Job", **OF_CLASS),
        MoveOutcome.NEW_IMAGE,
        TO_2022,
        stays=True,
        reason="the template of a Job is immutable: wait for it to finish, or delete it",
    ),
    Case(
        "a Job that names no class", workload(BOTH, kind="Job", **OF_WINDOWS), MoveOutcome.NEW_IMAGE
    ),
    Case(
        "a bare pod",
        workload(BOTH, kind="Pod", **OF_WINDOWS),
        MoveOutcome.CANNOT,
        stays=True,
        reason="it is a bare pod: no controller recreates it after eviction",
    ),
    Case(
        "a DaemonSet that cannot: its pods end with their nodes",
        workload(OLD_ONLY, kind="DaemonSet", **OF_CLASS),
        MoveOutcome.CANNOT,
    ),
    Case(
        "a DaemonSet that can",
        workload(BOTH, kind="DaemonSet", **OF_CLASS),
        MoveOutcome.NEW_IMAGE,
        TO_2022,
    ),
    Case(
        "pinned to a node by name",
        workload(BOTH, nodeName="old", **OF_WINDOWS),
        MoveOutcome.CANNOT,
        stays=True,
        reason="spec.nodeName is old",
    ),
    Case(
        "a taint of the new nodes that it does not tolerate",
        workload(BOTH, **OF_WINDOWS),
        MoveOutcome.CANNOT,
        new=replace(WIN_2022, taints=(Taint("os", "windows"),)),
        stays=True,
        reason="taint os=windows:NoSchedule is not tolerated",
    ),
    Case(
        "it tolerates everything, cordons too",
        workload(BOTH, tolerations=[{"operator": "Exists"}], **OF_WINDOWS),
        MoveOutcome.CANNOT,
        stays=True,
        reason="it tolerates cordoned nodes and would return to old",
    ),
    Case(
        "it tolerates everything, and its class keeps it away",
        workload(BOTH, tolerations=[{"operator": "Exists"}], **OF_CLASS),
        MoveOutcome.NEW_IMAGE,
        TO_2022,
    ),
    Case(
        "new nodes are cordoned",
        workload(BOTH, **OF_CLASS),
        MoveOutcome.CANNOT,
        new=replace(WIN_2022, unschedulable=True),
        stays=True,
        reason="the node is cordoned",
    ),
    Case(
        "new nodes are full",
        replace(
            workload(BOTH, **OF_CLASS),
            pod=replace(workload(BOTH, **OF_CLASS).pod, requests=(("memory", Decimal(2**30)),)),
        ),
        MoveOutcome.CANNOT,
        new=replace(WIN_2022, allocatable=(("memory", Decimal(2**20)),)),
        stays=True,
        reason="memory: requests 1Gi; 1Mi of 1Mi is free",
    ),
    Case(
        "same class: the old kernel in a guest",
        workload(BOTH, **OF_CLASS),
        MoveOutcome.HYPERVISOR,
        spec=SAME,
        new=WIN_2022_HYPERV,
    ),
    Case(
        "same class, old build only",
        workload(OLD_ONLY, **OF_CLASS),
        MoveOutcome.HYPERVISOR,
        spec=SAME,
        new=WIN_2022_HYPERV,
    ),
    Case(
        "same class, old build only, no class yet: it names it",
        workload(OLD_ONLY, **OF_WINDOWS),
        MoveOutcome.HYPERVISOR,
        TemplateChange("windows-2019"),
        spec=SAME,
        new=WIN_2022_HYPERV,
    ),
    Case(
        "same class, and no guest on the new nodes",
        workload(BOTH, **OF_CLASS),
        MoveOutcome.CANNOT,
        spec=SAME,
        stays=True,
        reason=f'the node\'s runtime has no handler "{GUEST_2019}" (handlers: {PROCESS})',
    ),
    Case(
        "only the selector of the class",
        workload(BOTH, **OF_CLASS),
        MoveOutcome.NEW_IMAGE,
        spec=RESELECT,
    ),
    Case(
        "only the selector, old build only",
        workload(OLD_ONLY, **OF_CLASS),
        MoveOutcome.CANNOT,
        spec=RESELECT,
        stays=True,
    ),
    Case(
        "a selector of its own in another way",
        workload(BOTH, **OF_BUILD),
        MoveOutcome.NEW_IMAGE,
        TO_BUILD,
        spec=RESELECT,
    ),
]


def planned(case: Case) -> UpgradePlan:
    wanted = (
        (CLASS_2022, CLASS_HYPERV)
        if case.new.handlers == WIN_2022_HYPERV.handlers
        else (CLASS_2022,)
    )
    snapshot = ClusterSnapshot(
        (WIN_2019, case.new), (CLASS_2019,), (case.workload,), (CLASS_2019, *wanted)
    )
    return plan_upgrade(case.spec, snapshot)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.says)
def test_a_workload_moves_as_its_images_and_the_new_nodes_allow(case: Case) -> None:
    (move,) = planned(case).moves
    assert (move.outcome, move.stays) == (case.fate, case.stays), move.reasons
    if case.fate is not MoveOutcome.CANNOT:
        assert move.change == case.change
    assert not case.reason or any(case.reason in reason for reason in move.reasons), move.reasons


def only(move: UpgradeSpec, *workloads: UpgradeWorkload, **snapshot: Any) -> UpgradePlan:
    nodes = snapshot.pop("nodes", (WIN_2019, WIN_2022))
    classes = snapshot.pop("classes", (CLASS_2019,))
    return plan_upgrade(move, ClusterSnapshot(nodes, classes, workloads, (CLASS_2022,)))


def in_order(plan: UpgradePlan) -> list[tuple[str, str]]:
    return [(str(step.kind), step.target) for step in plan.steps]


def test_new_class_is_created_before_the_old_is_retired_and_nodes_are_last() -> None:
    spec = replace(UPGRADE, old_nodes=OldNodePolicy.REMOVE)
    assert in_order(only(spec, workload(BOTH, **OF_CLASS))) == [
        ("add-class", "windows-2022"),
        ("retire-class", "windows-2019"),
        ("patch-workload", "Deployment shop/web"),
        ("cordon", "old"),
        ("drain", "old"),
        ("verify", ""),
        ("remove-node", "old"),
    ]


def test_existing_class_is_not_added() -> None:
    plan = only(UPGRADE, workload(BOTH, **OF_WINDOWS), classes=(CLASS_2019, CLASS_2022))
    assert UpgradeStepKind.ADD_CLASS not in {step.kind for step in plan.steps}


def test_all_nodes_are_cordoned_first_and_nodes_with_staying_pods_drained_last() -> None:
    stuck = replace(workload(OLD_ONLY, on="a", **OF_CLASS), name="stuck")
    nodes = (node("a", B2019), node("b", B2019), WIN_2022)
    plan = only(UPGRADE, stuck, workload(BOTH, on="b", **OF_WINDOWS), nodes=nodes)
    tail = [pair for pair in in_order(plan) if pair[0] in ("cordon", "drain")]
    assert tail == [("cordon", "a"), ("cordon", "b"), ("drain", "b"), ("drain", "a")]


def test_same_class_is_recreated_with_a_guest_and_unmanaged() -> None:
    ours = runtime_class(
        "windows-2019",
        B2019,
        metadata={"uid": "7", "labels": {"app.kubernetes.io/managed-by": "winpod", "a": "b"}},
    )
    snapshot = ClusterSnapshot(
        (WIN_2019, WIN_2022_HYPERV), (ours,), (workload(OLD_ONLY, **OF_CLASS),), (CLASS_HYPERV,)
    )
    (step,) = (
        s for s in plan_upgrade(SAME, snapshot).steps if s.kind is UpgradeStepKind.CHANGE_CLASS
    )
    assert step.after["handler"] == GUEST_2019
    assert step.after["scheduling"]["nodeSelector"] == labels(B2022)
    assert step.after["overhead"] == OVERHEAD
    assert step.after["metadata"] == {"name": "windows-2019", "labels": {"a": "b"}}


def test_only_the_node_selector_changes_and_a_guest_class_keeps_its_guest() -> None:
    nodes = (node("old", B2022, GUEST_2019), node("new", B2025, GUEST_2019))
    spec = UpgradeSpec(parse_build("2022"), parse_build("2025"), UpgradeStrategy.NODE_SELECTOR)
    running = workload(OLD_ONLY, runtimeClassName="windows-2019-hyperv")
    plan = plan_upgrade(spec, ClusterSnapshot(nodes, (CLASS_HYPERV,), (running,)))
    (step,) = (s for s in plan.steps if s.kind is UpgradeStepKind.CHANGE_CLASS)
    assert step.after == {**CLASS_HYPERV, "scheduling": {"nodeSelector": labels(B2025)}}
    assert [m.outcome for m in plan.moves] == [MoveOutcome.HYPERVISOR]


def test_legacy_build_label_is_translated() -> None:
    old = node("old", B2019, labels={OSVERSION: "Windows1809"})
    new = node("new", B2022, labels={OSVERSION: "Windows2022"})
    pod = workload(BOTH, nodeSelector={OSVERSION: "Windows1809"})
    (move,) = plan_upgrade(UPGRADE, ClusterSnapshot((old, new), (), (pod,))).moves
    assert move.change == TemplateChange(node_selector=((OSVERSION, "Windows2022"),))


def test_workload_not_bound_to_old_nodes_is_ignored() -> None:
    assert only(UPGRADE, workload(BOTH, on="new", **OF_WINDOWS)).moves == ()


def test_a_workload_of_the_old_class_is_listed_even_without_a_pod() -> None:
    idle = replace(workload(BOTH, **OF_CLASS), pods=())
    assert [move.change for move in only(UPGRADE, idle).moves] == [TO_2022]


def test_unrelated_class_of_a_workload_is_kept() -> None:
    special = runtime_class("special", B2019, "example-gpu")
    special["scheduling"] = {"nodeSelector": {"kubernetes.io/os": "windows"}}
    pod = workload(BOTH, runtimeClassName="special")
    (move,) = only(UPGRADE, pod, classes=(CLASS_2019, special)).moves
    assert (move.outcome, move.change) == (MoveOutcome.CANNOT, TemplateChange())
    assert 'no handler "example-gpu"' in move.reasons[0]


def test_workloads_are_not_moved_to_sized_guest_classes() -> None:
    sized = runtime_class("windows-2019-hyperv-reserve", B2022, f"{GUEST_2019}-reserve")
    new = node("new", B2022, sized["handler"])
    pod, classes = workload(OLD_ONLY, **OF_CLASS), (CLASS_2019, sized)
    (move,) = only(UPGRADE, pod, nodes=(WIN_2019, new), classes=classes).moves
    assert move.outcome is MoveOutcome.CANNOT


def test_upgrade_without_new_nodes_is_blocked() -> None:
    alone = only(UPGRADE, workload(BOTH, **OF_CLASS), nodes=(WIN_2019,))
    assert alone.blockers == ("there is no node of 10.0.20348 (Windows Server 2022) to move to",)
    cordoned = only(UPGRADE, nodes=(WIN_2019, replace(WIN_2022, unschedulable=True)))
    assert "that is not cordoned" in cordoned.blockers[0]


def test_insufficient_total_capacity_is_noted() -> None:
    pod = workload(BOTH, **OF_CLASS)
    pod = replace(
        pod,
        pod=replace(pod.pod, requests=(("memory", Decimal(2**30)),)),
        pods=tuple(WorkloadPod(f"web-{n}", str(n), "old") for n in range(3)),
    )
    new = replace(WIN_2022, allocatable=(("memory", Decimal(2 * 2**30)),))
    assert only(UPGRADE, pod, nodes=(WIN_2019, new)).notes == (
        "the pods to move request 3Gi of memory, but the new nodes have 2Gi free: add nodes first",
    )


def test_spec_round_trips_and_must_upgrade() -> None:
    spec = UpgradeSpec(
        *(UPGRADE.old, UPGRADE.new, UpgradeStrategy.SAME_CLASS, True, True, OldNodePolicy.MARK, 60)
    )
    assert read_spec(write_spec(spec)) == spec
    assert read_spec({"from": "2019", "to": "2022"}) == UpgradeSpec(UPGRADE.old, UPGRADE.new)
    with pytest.raises(InvalidInput, match="not newer"):
        read_spec({"from": "2022", "to": "ltsc2019"})
    with pytest.raises(InvalidInput, match="not a Windows build"):
        read_spec({"from": "", "to": "2022"})


def test_staying_workloads_are_reported_together() -> None:
    plan = only(UPGRADE, workload(OLD_ONLY, **OF_CLASS))
    assert [type(move) for move in plan.moves_left_behind] == [WorkloadMove]
    assert plan.move_of("Deployment shop/web") == plan.moves[0]
