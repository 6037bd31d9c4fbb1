"""Tests of advice: it is the cheapest change, and following it makes the pod run."""

from typing import Any

import pytest
from hypothesis import given, settings

from tests.support.placement_nodes import (
    CONTAINERD,
    OS_TAINT,
    amounts,
    image,
    linux_node,
    node,
    pod,
    runtime_class,
)
from tests.support.placement_strategies import classes, fleets, images, pods
from winpod.placement.advice import FitScenario, advise, cheapest_fix
from winpod.placement.evaluator import Cluster
from winpod.placement.model import Node, NodeSelectorRequirement, Pod, RuntimeClass
from winpod.placement.model import NodeSelectorTerm as Term
from winpod.placement.verdicts import Outcome, Status
from winpod.windows.platforms import Image

APP_2019 = image("10.0.17763.805")
APP_2022 = image("10.0.20348.2113", "10.0.26100.1742")
PROCESS_ONLY = frozenset({"runhcs-wcow-process"})

CASES: dict[str, tuple[Pod, list[Node], Image, list[RuntimeClass], list[str]]] = {
    "taint": (
        pod(),
        [node("a", taints=(OS_TAINT,))],
        APP_2022,
        [],
        ["tolerate os=windows:NoSchedule"],
    ),
    "older image on a newer node": (
        pod(),
        [node("win-2022-a")],
        APP_2019,
        [],
        [
            "add a RuntimeClass with handler runhcs-wcow-hypervisor-17763 for build 10.0.17763 "
            "on node win-2022-a, and set runtimeClassName to it"
        ],
    ),
    "a class for it is there": (
        pod(),
        [node("a")],
        APP_2019,
        [runtime_class("windows-2019-hyperv", "runhcs-wcow-hypervisor-17763", "2022")],
        ["set runtimeClassName: windows-2019-hyperv"],
    ),
    "older image, and containerd": (
        pod(),
        [node("a", runtime="containerd", handlers=CONTAINERD)],
        APP_2019,
        [],
        [
            "use an image for windows/amd64 10.0.20348 (Windows Server 2022): "
            "app has no build 10.0.20348; it has 10.0.17763.805"
        ],
    ),
    "older image, and containerd's guest": (
        pod(runtime_class="c"),
        [node("a", runtime="containerd", handlers=None)],
        APP_2019,
        [runtime_class("c", "runhcs-wcow-hypervisor-17763")],
        [
            "remove runtimeClassName",
            "use an image for windows/amd64 10.0.20348 (Windows Server 2022): "
            "app has no build 10.0.20348; it has 10.0.17763.805",
        ],
    ),
    "newer image": (
        pod(),
        [node("a", "2019")],
        APP_2022,
        [],
        [
            "use an image for windows/amd64 10.0.17763 (Windows Server 2019): "
            "app has no build ≤ 10.0.17763; it has 10.0.20348.2113, 10.0.26100.1742"
        ],
    ),
    "the nearer node is chosen": (
        pod(node_selector=(("pool", "x"),)),
        [node("far", "2019", taints=(OS_TAINT,)), node("near", labels={"pool": "y"})],
        APP_2022,
        [],
        ['set nodeSelector pool to "y"'],
    ),
    "selector without such a label": (
        pod(node_selector=(("pool", "x"),)),
        [node("a")],
        APP_2022,
        [],
        ["remove nodeSelector pool"],
    ),
    "class for other nodes": (
        pod(runtime_class="c"),
        [node("a", "2022")],
        APP_2022,
        [runtime_class("c", "runhcs-wcow-process", "2019")],
        ["remove runtimeClassName"],
    ),
    "class for other nodes, and needed": (
        pod(runtime_class="c"),
        [node("a", "2022")],
        APP_2019,
        [runtime_class("c", "runhcs-wcow-hypervisor-17763", "2019")],
        [
            'set node.kubernetes.io/windows-build to "10.0.20348" in the nodeSelector of '
            "RuntimeClass c"
        ],
    ),
    "class missing": (
        pod(runtime_class="nope"),
        [node("a")],
        APP_2022,
        [],
        ["create the RuntimeClass nope, or pass the file that defines it too"],
    ),
    "handler missing": (
        pod(runtime_class="c"),
        [node("a", handlers=PROCESS_ONLY)],
        APP_2019,
        [runtime_class("c", "runhcs-wcow-hypervisor-17763")],
        [
            "enable hypervisor isolation on node a: run `winpod base build --with-hypervisor` "
            "there, and provide KVM or allow emulation (WINPOD_ALLOW_EMULATION=1)"
        ],
    ),
    "handler missing, though there are guests": (
        pod(runtime_class="c"),
        [node("a", handlers=PROCESS_ONLY | {"runhcs-wcow-hypervisor"})],
        APP_2019,
        [runtime_class("c", "runhcs-wcow-hypervisor-17763")],
        ['configure handler "runhcs-wcow-hypervisor-17763" in the container runtime of node a'],
    ),
    "guest too new": (
        pod(runtime_class="c"),
        [node("a", "2019")],
        APP_2019,
        [runtime_class("c", "runhcs-wcow-hypervisor-20348")],
        ["remove runtimeClassName"],
    ),
    "affinity": (
        pod(affinity=(Term((NodeSelectorRequirement("pool", "In", ("x",)),)),)),
        [node("a")],
        APP_2022,
        [],
        ["widen the required node affinity so that it includes node a"],
    ),
    "node name": (pod(node_name="gone"), [node("a")], APP_2022, [], ["remove spec.nodeName"]),
    "cordoned": (pod(), [node("a", unschedulable=True)], APP_2022, [], ["kubectl uncordon a"]),
    "too large": (
        pod(requests=amounts(memory="9Gi", cpu="1")),
        [node("a", allocatable=amounts(memory="8Gi", cpu="4"))],
        APP_2022,
        [],
        ["lower the requests for memory to 8Gi"],
    ),
    "overhead leaves less": (
        pod(requests=amounts(memory="8Gi"), runtime_class="c"),
        [node("a", allocatable=amounts(memory="8Gi"))],
        APP_2022,
        [runtime_class("c", "runhcs-wcow-hypervisor", overhead=amounts(memory="1Gi"))],
        ["lower the requests for memory to 7Gi"],
    ),
    "full": (
        pod(),
        [node("a", allocatable=amounts(pods="1"), allocated=amounts(pods="1"))],
        APP_2022,
        [],
        ["move other pods away from node a, or add a node like it"],
    ),
    "two changes": (
        pod(node_selector=(("kubernetes.io/os", "linux"),)),
        [node("a", taints=(OS_TAINT,))],
        APP_2022,
        [],
        ["tolerate os=windows:NoSchedule", 'set nodeSelector kubernetes.io/os to "windows"'],
    ),
    "no windows node": (
        pod(os="windows"),
        [linux_node("a")],
        APP_2022,
        [],
        ["add a Windows node of build 10.0.26100 (Windows Server 2025)"],
    ),
    "may fail, one build": (
        pod(),
        [node("a", "2019"), node("b", "2022")],
        APP_2022,
        [],
        ['add nodeSelector node.kubernetes.io/windows-build: "10.0.20348"'],
    ),
    "may fail, two builds": (
        pod(),
        [node("a", "2019"), node("b", "2022"), node("c", "2025")],
        APP_2022,
        [],
        [
            "add a required node affinity node.kubernetes.io/windows-build In "
            '["10.0.20348", "10.0.26100"]'
        ],
    ),
    "may fail on linux": (
        pod(os="windows"),
        [linux_node("a"), node("b", "2022")],
        APP_2022,
        [],
        ["add nodeSelector kubernetes.io/os: windows"],
    ),
    "a daemon that fails on some nodes": (
        pod(os="windows", is_daemon=True),
        [linux_node("a"), node("b", "2022")],
        APP_2022,
        [],
        ["add nodeSelector kubernetes.io/os: windows"],
    ),
    "may fail under a guest of another build": (
        pod(runtime_class="c"),
        [node("a"), node("b", runtime="containerd")],
        APP_2019,
        [runtime_class("c", "runhcs-wcow-hypervisor-17763")],
        ['add nodeSelector kubernetes.io/hostname: "a"'],
    ),
    "may fail on another architecture": (
        pod(),
        [node("a"), node("b", labels={"kubernetes.io/arch": "arm64"})],
        APP_2022,
        [],
        ['add nodeSelector kubernetes.io/arch: "amd64"'],
    ),
    "may fail, and no label tells": (
        pod(runtime_class="c"),
        [node(f"a{i}") for i in range(9)] + [node("b", runtime="containerd")],
        APP_2019,
        [runtime_class("c", "runhcs-wcow-hypervisor-17763")],
        ["label the nodes that can run it, and add the label to nodeSelector"],
    ),
    "a system that is none": (pod(os="Windows"), [node("a")], APP_2022, [], []),
    "an overhead of its own": (
        pod(overhead=amounts(memory="1Gi")),
        [node("a")],
        APP_2022,
        [],
        ["remove spec.overhead, which only a RuntimeClass sets"],
    ),
    "a little too much memory": (
        pod(requests=amounts(memory="7750Mi")),
        [node("a", allocatable=amounts(memory="7935408Ki"))],
        APP_2022,
        [],
        ["lower the requests for memory to 7749.4Mi"],
    ),
    "no node of the label it selects": (
        pod(os="windows", node_selector=(("pool", "x"),)),
        [linux_node("a")],
        APP_2022,
        [],
        ["add a Windows node of build 10.0.26100 (Windows Server 2025)"],
    ),
    "runs": (pod(), [node("a")], APP_2022, [], []),
}


@pytest.mark.parametrize("case", CASES)
def test_the_advice_is_the_smallest_change(case: str) -> None:
    tested_pod, fleet, found, known, advice = CASES[case]
    cluster = Cluster(fleet, known)
    placement = cluster.place(tested_pod, {"app": found})
    assert list(advise(tested_pod, placement, cluster, {"app": found})) == advice


@settings(max_examples=300, deadline=None)
@given(pods(), fleets, classes(), images())
def test_following_the_advice_makes_the_pod_run(
    tested_pod: Pod, fleet: list[Node], known: list[RuntimeClass], found: dict[str, Any]
) -> None:
    for where in fleet:
        before = FitScenario(tested_pod, where, {c.name: c for c in known}, found)
        if changes := cheapest_fix(before):
            assert before.verdict().outcome is not Outcome.RUNS
            assert changes[-1].after.verdict().outcome is Outcome.RUNS


@settings(max_examples=300, deadline=None)
@given(pods(), fleets, classes(), images())
def test_advice_is_given_exactly_where_something_is_wrong(
    tested_pod: Pod, fleet: list[Node], known: list[RuntimeClass], found: dict[str, Any]
) -> None:
    cluster = Cluster(fleet, known)
    placement = cluster.place(tested_pod, found)
    advice = advise(tested_pod, placement, cluster, found)
    if placement.status in (Status.RUNS, Status.UNKNOWN):
        assert advice == ()
    if placement.status is Status.MAY_FAIL:
        assert advice
