"""Who moves to the next Windows and how, and the steps in their order."""

from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import pytest

from winpod.cluster.upgrade.asked import Asked, OldNodes, Way, read_asked, write_asked
from winpod.cluster.upgrade.moves import Change, Fate, Move, Workload, WorkloadPod
from winpod.cluster.upgrade.plan import Do, Plan, Scene, plan_upgrade
from winpod.windows.builds import parse_build
from winpod.windows.errors import InvalidInput
from winpod.windows.objects import Node, Pod, Taint
from winpod.windows.platforms import Image, Manifest, Platform

B2019, B2022, B2025 = "10.0.17763", "10.0.20348", "10.0.26100"
PROCESS, GUEST_2019 = "runhcs-wcow-process", "runhcs-wcow-hypervisor-17763"
BUILD = "node.kubernetes.io/windows-build"
OSVERSION = "beta.kubernetes.io/osversion"


def labels(build: str) -> dict[str, str]:
    return {"kubernetes.io/os": "windows", "kubernetes.io/arch": "amd64", BUILD: build}


def node(name: str, build: str, *handlers: str, runtime: str = "winpod", **more: Any) -> Node:
    return Node(
        name,
        tuple(sorted((labels(build) | more.pop("labels", {})).items())),
        handlers=frozenset((PROCESS, *handlers)),
        runtime=runtime,
        **more,
    )


def runtime_class(name: str, build: str, handler: str = PROCESS, **more: Any) -> dict[str, Any]:
    return {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": name, **more.pop("metadata", {})},
        "handler": handler,
        "scheduling": {"nodeSelector": labels(build)},
        **more,
    }


def image(*builds: str) -> Image:
    manifests = tuple(
        Manifest(f"sha256:{b}", Platform("windows", "amd64", os_version=f"{b}.1"), 1)
        for b in builds
    )
    return Image("example.test/app:1", "sha256:0", manifests)


OLD_ONLY, BOTH, NEW_ONLY = image(B2019), image(B2019, B2022), image(B2022)
WIN_2019, WIN_2022 = node("old", B2019), node("new", B2022)
WIN_2022_HYPERV = node("new", B2022, GUEST_2019)
CLASS_2019, CLASS_2022 = runtime_class("windows-2019", B2019), runtime_class("windows-2022", B2022)
OVERHEAD = {"podFixed": {"memory": "200Mi"}}
CLASS_HYPERV = runtime_class("windows-2019-hyperv", B2022, GUEST_2019, overhead=OVERHEAD)
AS_IT_IS = Change()
UPGRADE = Asked(parse_build("2019"), parse_build("2022"), patch_workloads=True)
SAME = replace(UPGRADE, way=Way.SAME_CLASS)
RESELECT = replace(UPGRADE, way=Way.NODE_SELECTOR)


def workload(
    found: Image | None, *, kind: str = "Deployment", on: str = "old", **spec: Any
) -> Workload:
    spec["containers"] = [{"name": "main", "image": "app"}]
    return Workload(
        kind,
        "shop",
        "web",
        Pod.from_template({"spec": spec}, every_node=kind == "DaemonSet"),
        (WorkloadPod("web-1", "1", on, is_ready=True),),
        1,
        {"app": found} if found else {},
    )


OF_CLASS: dict[str, Any] = {"runtimeClassName": "windows-2019"}
OF_WINDOWS: dict[str, Any] = {"nodeSelector": {"kubernetes.io/os": "windows"}}
OF_BUILD: dict[str, Any] = {"nodeSelector": {BUILD: B2019}}


@dataclass(frozen=True)
class Case:
    says: str
    workload: Workload
    fate: Fate
    change: Change = AS_IT_IS
    asked: Asked = UPGRADE
    new: Node = WIN_2022
    stays: bool = False
    reason: str = ""


TO_2022, TO_HYPERV = Change("windows-2022"), Change("windows-2019-hyperv")
TO_BUILD = Change(node_selector=((BUILD, B2022),))
CASES = [
    Case(
        "both builds, old class: the new class", workload(BOTH, **OF_CLASS), Fate.NEW_IMAGE, TO_2022
    ),
    Case("both builds, no class: as it is", workload(BOTH, **OF_WINDOWS), Fate.NEW_IMAGE),
    Case(
        "both builds, old selector: the new one",
        workload(BOTH, **OF_BUILD),
        Fate.NEW_IMAGE,
        TO_BUILD,
    ),
    Case(
        "both builds, old class and old selector: both change",
        workload(BOTH, **OF_CLASS, **OF_BUILD),
        Fate.NEW_IMAGE,
        Change("windows-2022", ((BUILD, B2022),)),
    ),
    Case(
        "old build only, new nodes have no guest: it stays",
        workload(OLD_ONLY, **OF_CLASS),
        Fate.CANNOT,
        stays=True,
        reason="or hypervisor isolation: nodes that have the handler runhcs-wcow-hypervisor-17763",
    ),
    Case(
        "old build only: the reason names what the image has",
        workload(OLD_ONLY, **OF_CLASS),
        Fate.CANNOT,
        stays=True,
        reason=f"app has no build {B2022}; it has {B2019}.1",
    ),
    Case(
        "old build only, new nodes have a guest for it",
        workload(OLD_ONLY, **OF_CLASS),
        Fate.HYPERVISOR,
        TO_HYPERV,
        new=WIN_2022_HYPERV,
    ),
    Case(
        "old build only, no class, a guest for it",
        workload(OLD_ONLY, **OF_WINDOWS),
        Fate.HYPERVISOR,
        TO_HYPERV,
        new=WIN_2022_HYPERV,
    ),
    Case(
        "both builds and a guest: process isolation is enough",
        workload(BOTH, **OF_CLASS),
        Fate.NEW_IMAGE,
        TO_2022,
        new=WIN_2022_HYPERV,
    ),
    Case(
        "containerd lists the handler, and cannot",
        workload(OLD_ONLY, **OF_CLASS),
        Fate.CANNOT,
        new=replace(WIN_2022_HYPERV, runtime="containerd"),
        stays=True,
    ),
    Case(
        "an image that nobody knows",
        workload(None, **OF_CLASS),
        Fate.CANNOT,
        stays=True,
        reason="what app is could not be found out",
    ),
    Case(
        "an image that nobody could look up, and why",
        replace(workload(None, **OF_CLASS), problems=("the registry says nothing",)),
        Fate.CANNOT,
        stays=True,
        reason="the registry says nothing",
    ),
    Case(
        "a change that nobody asked for",
        workload(BOTH, **OF_CLASS),
        Fate.NEW_IMAGE,
        TO_2022,
        asked=replace(UPGRADE, patch_workloads=False),
        stays=True,
        reason="it must be changed first: runtimeClassName: windows-2022",
    ),
    Case(
        "a Job of the old class",
        workload(BOTH, kind="Job", **OF_CLASS),
        Fate.NEW_IMAGE,
        TO_2022,
        stays=True,
        reason="a Job's template cannot be changed: it must end first, or be deleted",
    ),
    Case("a Job that names no class", workload(BOTH, kind="Job", **OF_WINDOWS), Fate.NEW_IMAGE),
    Case(
        "a bare pod",
        workload(BOTH, kind="Pod", **OF_WINDOWS),
        Fate.CANNOT,
        stays=True,
        reason="it is a bare pod: nobody makes it again once it is evicted",
    ),
    Case(
        "a DaemonSet that cannot: its pods end with their nodes",
        workload(OLD_ONLY, kind="DaemonSet", **OF_CLASS),
        Fate.CANNOT,
    ),
    Case(
        "a DaemonSet that can",
        workload(BOTH, kind="DaemonSet", **OF_CLASS),
        Fate.NEW_IMAGE,
        TO_2022,
    ),
    Case(
        "pinned to a node by name",
        workload(BOTH, nodeName="old", **OF_WINDOWS),
        Fate.CANNOT,
        stays=True,
        reason="spec.nodeName is old",
    ),
    Case(
        "a taint of the new nodes that it does not tolerate",
        workload(BOTH, **OF_WINDOWS),
        Fate.CANNOT,
        new=replace(WIN_2022, taints=(Taint("os", "windows"),)),
        stays=True,
        reason="taint os=windows:NoSchedule is not tolerated",
    ),
    Case(
        "it tolerates everything, cordons too",
        workload(BOTH, tolerations=[{"operator": "Exists"}], **OF_WINDOWS),
        Fate.CANNOT,
        stays=True,
        reason="it tolerates cordoned nodes, and would come back to old",
    ),
    Case(
        "it tolerates everything, and its class keeps it away",
        workload(BOTH, tolerations=[{"operator": "Exists"}], **OF_CLASS),
        Fate.NEW_IMAGE,
        TO_2022,
    ),
    Case(
        "new nodes are cordoned",
        workload(BOTH, **OF_CLASS),
        Fate.CANNOT,
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
        Fate.CANNOT,
        new=replace(WIN_2022, allocatable=(("memory", Decimal(2**20)),)),
        stays=True,
        reason="memory: asks for 1Gi; 1Mi of 1Mi is free",
    ),
    Case(
        "same class: the old kernel in a guest",
        workload(BOTH, **OF_CLASS),
        Fate.HYPERVISOR,
        asked=SAME,
        new=WIN_2022_HYPERV,
    ),
    Case(
        "same class, old build only",
        workload(OLD_ONLY, **OF_CLASS),
        Fate.HYPERVISOR,
        asked=SAME,
        new=WIN_2022_HYPERV,
    ),
    Case(
        "same class, old build only, no class yet: it names it",
        workload(OLD_ONLY, **OF_WINDOWS),
        Fate.HYPERVISOR,
        Change("windows-2019"),
        asked=SAME,
        new=WIN_2022_HYPERV,
    ),
    Case(
        "same class, and no guest on the new nodes",
        workload(BOTH, **OF_CLASS),
        Fate.CANNOT,
        asked=SAME,
        stays=True,
        reason=f'the node\'s runtime has no handler "{GUEST_2019}" (handlers: {PROCESS})',
    ),
    Case(
        "only the selector of the class", workload(BOTH, **OF_CLASS), Fate.NEW_IMAGE, asked=RESELECT
    ),
    Case(
        "only the selector, old build only",
        workload(OLD_ONLY, **OF_CLASS),
        Fate.CANNOT,
        asked=RESELECT,
        stays=True,
    ),
    Case(
        "a selector of its own in another way",
        workload(BOTH, **OF_BUILD),
        Fate.NEW_IMAGE,
        TO_BUILD,
        asked=RESELECT,
    ),
]


def planned(case: Case) -> Plan:
    wanted = (
        (CLASS_2022, CLASS_HYPERV)
        if case.new.handlers == WIN_2022_HYPERV.handlers
        else (CLASS_2022,)
    )
    scene = Scene((WIN_2019, case.new), (CLASS_2019,), (case.workload,), (CLASS_2019, *wanted))
    return plan_upgrade(case.asked, scene)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.says)
def test_a_workload_moves_as_its_images_and_the_new_nodes_allow(case: Case) -> None:
    (move,) = planned(case).moves
    assert (move.fate, move.stays) == (case.fate, case.stays), move.reasons
    if case.fate is not Fate.CANNOT:
        assert move.change == case.change
    assert not case.reason or any(case.reason in reason for reason in move.reasons), move.reasons


def only(move: Asked, *workloads: Workload, **scene: Any) -> Plan:
    nodes = scene.pop("nodes", (WIN_2019, WIN_2022))
    classes = scene.pop("classes", (CLASS_2019,))
    return plan_upgrade(move, Scene(nodes, classes, workloads, (CLASS_2022,)))


def in_order(plan: Plan) -> list[tuple[str, str]]:
    return [(str(step.do), step.target) for step in plan.steps]


def test_a_new_class_is_there_before_the_old_one_is_closed_and_nodes_go_last() -> None:
    asked = replace(UPGRADE, old_nodes=OldNodes.REMOVE)
    assert in_order(only(asked, workload(BOTH, **OF_CLASS))) == [
        ("add-class", "windows-2022"),
        ("retire-class", "windows-2019"),
        ("patch-workload", "Deployment shop/web"),
        ("cordon", "old"),
        ("drain", "old"),
        ("verify", ""),
        ("remove-node", "old"),
    ]


def test_a_class_that_is_there_is_not_added_again() -> None:
    plan = only(UPGRADE, workload(BOTH, **OF_WINDOWS), classes=(CLASS_2019, CLASS_2022))
    assert Do.ADD_CLASS not in {step.do for step in plan.steps}


def test_every_node_is_cordoned_before_one_is_drained_and_the_one_with_a_rest_is_last() -> None:
    stuck = replace(workload(OLD_ONLY, on="a", **OF_CLASS), name="stuck")
    nodes = (node("a", B2019), node("b", B2019), WIN_2022)
    plan = only(UPGRADE, stuck, workload(BOTH, on="b", **OF_WINDOWS), nodes=nodes)
    tail = [pair for pair in in_order(plan) if pair[0] in ("cordon", "drain")]
    assert tail == [("cordon", "a"), ("cordon", "b"), ("drain", "b"), ("drain", "a")]


def test_the_same_class_is_made_anew_with_a_guest_and_is_no_longer_the_operators_own() -> None:
    ours = runtime_class(
        "windows-2019",
        B2019,
        metadata={"uid": "7", "labels": {"app.kubernetes.io/managed-by": "winpod", "a": "b"}},
    )
    scene = Scene(
        (WIN_2019, WIN_2022_HYPERV), (ours,), (workload(OLD_ONLY, **OF_CLASS),), (CLASS_HYPERV,)
    )
    (step,) = (s for s in plan_upgrade(SAME, scene).steps if s.do is Do.CHANGE_CLASS)
    assert step.after["handler"] == GUEST_2019
    assert step.after["scheduling"]["nodeSelector"] == labels(B2022)
    assert step.after["overhead"] == OVERHEAD
    assert step.after["metadata"] == {"name": "windows-2019", "labels": {"a": "b"}}


def test_only_the_node_selector_changes_and_a_guest_class_keeps_its_guest() -> None:
    nodes = (node("old", B2022, GUEST_2019), node("new", B2025, GUEST_2019))
    asked = Asked(parse_build("2022"), parse_build("2025"), Way.NODE_SELECTOR)
    running = workload(OLD_ONLY, runtimeClassName="windows-2019-hyperv")
    plan = plan_upgrade(asked, Scene(nodes, (CLASS_HYPERV,), (running,)))
    (step,) = (s for s in plan.steps if s.do is Do.CHANGE_CLASS)
    assert step.after == {**CLASS_HYPERV, "scheduling": {"nodeSelector": labels(B2025)}}
    assert [m.fate for m in plan.moves] == [Fate.HYPERVISOR]


def test_the_older_label_is_understood_and_changed_too() -> None:
    old = node("old", B2019, labels={OSVERSION: "Windows1809"})
    new = node("new", B2022, labels={OSVERSION: "Windows2022"})
    pod = workload(BOTH, nodeSelector={OSVERSION: "Windows1809"})
    (move,) = plan_upgrade(UPGRADE, Scene((old, new), (), (pod,))).moves
    assert move.change == Change(node_selector=((OSVERSION, "Windows2022"),))


def test_a_workload_that_is_elsewhere_and_may_go_elsewhere_is_no_concern() -> None:
    assert only(UPGRADE, workload(BOTH, on="new", **OF_WINDOWS)).moves == ()


def test_a_workload_of_the_old_class_is_listed_even_without_a_pod() -> None:
    idle = replace(workload(BOTH, **OF_CLASS), pods=())
    assert [move.change for move in only(UPGRADE, idle).moves] == [TO_2022]


def test_a_class_of_another_purpose_is_not_taken_from_a_workload() -> None:
    special = runtime_class("special", B2019, "example-gpu")
    special["scheduling"] = {"nodeSelector": {"kubernetes.io/os": "windows"}}
    pod = workload(BOTH, runtimeClassName="special")
    (move,) = only(UPGRADE, pod, classes=(CLASS_2019, special)).moves
    assert (move.fate, move.change) == (Fate.CANNOT, Change())
    assert 'no handler "example-gpu"' in move.reasons[0]


def test_nobody_is_moved_to_a_size_of_a_guest_unasked() -> None:
    sized = runtime_class("windows-2019-hyperv-reserve", B2022, f"{GUEST_2019}-reserve")
    new = node("new", B2022, sized["handler"])
    pod, classes = workload(OLD_ONLY, **OF_CLASS), (CLASS_2019, sized)
    (move,) = only(UPGRADE, pod, nodes=(WIN_2019, new), classes=classes).moves
    assert move.fate is Fate.CANNOT


def test_nothing_begins_where_there_is_nowhere_to_go() -> None:
    alone = only(UPGRADE, workload(BOTH, **OF_CLASS), nodes=(WIN_2019,))
    assert alone.blockers == ("there is no node of 10.0.20348 (Windows Server 2022) to move to",)
    cordoned = only(UPGRADE, nodes=(WIN_2019, replace(WIN_2022, unschedulable=True)))
    assert "that is not cordoned" in cordoned.blockers[0]


def test_too_little_room_on_all_new_nodes_together_is_said_beforehand() -> None:
    pod = workload(BOTH, **OF_CLASS)
    pod = replace(
        pod,
        pod=replace(pod.pod, requests=(("memory", Decimal(2**30)),)),
        pods=tuple(WorkloadPod(f"web-{n}", str(n), "old") for n in range(3)),
    )
    new = replace(WIN_2022, allocatable=(("memory", Decimal(2 * 2**30)),))
    assert only(UPGRADE, pod, nodes=(WIN_2019, new)).notes == (
        "the pods to move ask for 3Gi of memory, and the new nodes have 2Gi free: add nodes first",
    )


def test_an_upgrade_goes_upwards_and_is_read_as_it_was_written() -> None:
    asked = Asked(*(UPGRADE.old, UPGRADE.new, Way.SAME_CLASS, True, True, OldNodes.MARK, 60))
    assert read_asked(write_asked(asked)) == asked
    assert read_asked({"from": "2019", "to": "2022"}) == Asked(UPGRADE.old, UPGRADE.new)
    with pytest.raises(InvalidInput, match="not newer"):
        read_asked({"from": "2022", "to": "ltsc2019"})
    with pytest.raises(InvalidInput, match="not a Windows build"):
        read_asked({"from": "", "to": "2022"})


def test_staying_workloads_are_told_together() -> None:
    plan = only(UPGRADE, workload(OLD_ONLY, **OF_CLASS))
    assert [type(move) for move in plan.staying] == [Move]
    assert plan.move_of("Deployment shop/web") == plan.moves[0]
