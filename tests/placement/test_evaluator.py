"""Tests of placement: one case for every reason."""

from dataclasses import replace
from typing import Any

import pytest

from tests.support.placement_nodes import (
    CONTAINERD,
    NAMED_B,
    OS_TAINT,
    amounts,
    image,
    linux_image,
    linux_node,
    node,
    pod,
    runtime_class,
    tolerate_os,
)
from winpod.field_reader import Field
from winpod.placement.evaluator import Cluster, default_nodes, intended_os
from winpod.placement.model import Node, NodeSelectorRequirement, Pod, RuntimeClass, Taint
from winpod.placement.model import NodeSelectorTerm as Term
from winpod.placement.predicates import with_allocated
from winpod.placement.verdicts import Cause, Outcome, Placement, Stage, Status
from winpod.windows.builds import Build, parse_build
from winpod.windows.handlers import BUILTIN_HANDLERS
from winpod.windows.isolation import Isolation
from winpod.windows.platforms import Image, Manifest, Platform

APP_2019 = image("10.0.17763.805")
APP_2022 = image("10.0.20348.2113", "10.0.26100.1742")
EVERY = image("10.0.17763.805", "10.0.20348.2113", "10.0.26100.1742")


def place(
    tested_pod: Pod, *nodes: Node, images: dict[str, Image] | Image = EVERY, classes: Any = ()
) -> Placement:
    known = images if isinstance(images, dict) else {"app": images}
    return Cluster(nodes, classes).place(tested_pod, known)


def causes(placement: Placement) -> list[Cause]:
    return [r.cause for v in placement.verdicts for r in v.reasons]


def test_an_image_of_the_nodes_build_runs_under_process_isolation() -> None:
    placement = place(pod(), node("a", "2019"), images=APP_2019)
    (verdict,) = placement.verdicts
    assert placement.status is Status.RUNS
    assert placement.node == "a"
    assert (verdict.handler, verdict.isolation) == ("runhcs-wcow-process", Isolation.PROCESS)
    assert verdict.kernel == Build(10, 0, 17763)
    assert verdict.manifests[0][1].platform.os_version == "10.0.17763.805"


def test_node_of_the_images_exact_build_is_preferred() -> None:
    nodes = (node("new", "2025"), node("own", "2022"))
    assert place(pod(), *nodes, images=image("10.0.20348.1")).node == "own"
    assert place(pod(), nodes[0], images=image("10.0.20348.1")).node == "new"


def test_configured_handler_uses_its_guest_build() -> None:
    table = {"legacy": {"isolation": "hypervisor", "guest_build": "1809", "aliases": ["old"]}}
    classes = (runtime_class("hv", "old"),)
    nodes = (node("a", "2022", handlers=frozenset(("legacy",))),)
    tested_pod, images = pod(runtime_class="hv"), {"app": APP_2019}
    known = Cluster(nodes, classes, BUILTIN_HANDLERS.with_configuration(Field(table))).place(
        tested_pod, images
    )
    assert known.verdicts[0].handler == "legacy"
    assert (known.status, known.verdicts[0].kernel) == (Status.RUNS, Build(10, 0, 17763))
    assert Cluster(nodes, classes).place(tested_pod, images).status is Status.CANNOT_RUN


HYPERV_2019 = runtime_class("hv", "runhcs-wcow-hypervisor-17763")
HYPERV_OWN = runtime_class("own", "runhcs-wcow-hypervisor")

CASES: dict[str, tuple[Pod, Node, dict[str, Any], Outcome, Cause, str]] = {
    "newer image": (
        pod(),
        node("a", "2019"),
        {"images": APP_2022},
        Outcome.FAILS,
        Cause.BUILD,
        "app has no build ≤ 10.0.17763; it has 10.0.20348.2113, 10.0.26100.1742",
    ),
    "older image": (
        pod(),
        node("a", "2022"),
        {"images": APP_2019},
        Outcome.FAILS,
        Cause.BUILD,
        "app has no build 10.0.20348; it has 10.0.17763.805",
    ),
    "older image, range": (
        pod(),
        node("a", "2025"),
        {"images": APP_2019},
        Outcome.FAILS,
        Cause.BUILD,
        "app has no build 10.0.20348 to 10.0.26100; it has 10.0.17763.805",
    ),
    "linux image": (
        pod(),
        node("a"),
        {"images": linux_image()},
        Outcome.FAILS,
        Cause.OS,
        "app has no windows image; it has linux/amd64",
    ),
    "windows pod on linux": (
        pod(os="windows"),
        linux_node("a"),
        {},
        Outcome.FAILS,
        Cause.OS,
        "the pod is for windows and the node runs linux",
    ),
    "windows image on linux": (
        pod(),
        linux_node("a"),
        {},
        Outcome.FAILS,
        Cause.OS,
        "app has no linux image; it has windows/amd64",
    ),
    "architecture": (
        pod(),
        node("a"),
        {"images": image("10.0.20348.1", arch="arm64")},
        Outcome.FAILS,
        Cause.ARCHITECTURE,
        "app has no windows/amd64 image; it has windows/arm64",
    ),
    "narrowed version": (
        pod(platform_constraint=replace(pod().platform_constraint, os_version="10.0.20348.9")),
        node("a"),
        {},
        Outcome.FAILS,
        Cause.BUILD,
        "app has no build 10.0.20348 within 10.0.20348.9, which the pod requires",
    ),
    "narrowed os": (
        pod(platform_constraint=replace(pod().platform_constraint, os="linux")),
        node("a"),
        {},
        Outcome.FAILS,
        Cause.OS,
        "the pod's annotations require linux images",
    ),
    "narrowed architecture": (
        pod(platform_constraint=replace(pod().platform_constraint, architecture="arm64")),
        node("a"),
        {},
        Outcome.FAILS,
        Cause.ARCHITECTURE,
        "the pod's annotations require arm64 images",
    ),
    "handler missing": (
        pod(runtime_class="hv"),
        node("a", handlers=frozenset({"runhcs-wcow-process"})),
        {"classes": [HYPERV_2019]},
        Outcome.FAILS,
        Cause.HANDLER,
        'the node\'s runtime has no handler "runhcs-wcow-hypervisor-17763"',
    ),
    "alias on containerd": (
        pod(runtime_class="c"),
        node("a", runtime="containerd", handlers=CONTAINERD),
        {"classes": [runtime_class("c", "docker")]},
        Outcome.FAILS,
        Cause.HANDLER,
        'the node\'s runtime has no handler "docker"',
    ),
    "guest newer than host": (
        pod(runtime_class="hv"),
        node("a", "2019"),
        {"classes": [runtime_class("hv", "runhcs-wcow-hypervisor-20348")]},
        Outcome.FAILS,
        Cause.ISOLATION,
        "a guest of build 10.0.20348 cannot run on the older 10.0.17763 (Windows Server 2019)",
    ),
    "containerd has no other guest": (
        pod(runtime_class="hv"),
        node("a", runtime="containerd", handlers=None),
        {"classes": [HYPERV_2019]},
        Outcome.FAILS,
        Cause.ISOLATION,
        "containerd selects images for the node's build 10.0.20348, so it finds none",
    ),
    "docker has no hypervisor": (
        pod(runtime_class="own"),
        node("a", runtime="docker", handlers=None),
        {"classes": [HYPERV_OWN]},
        Outcome.FAILS,
        Cause.ISOLATION,
        "Docker as the node's runtime supports process isolation only",
    ),
    "host process under winpod": (
        pod(host_process=True),
        node("a"),
        {},
        Outcome.FAILS,
        Cause.ISOLATION,
        "HostProcess containers need a Windows host",
    ),
    "host process in a guest": (
        pod(host_process=True, runtime_class="own"),
        node("a", runtime="containerd", handlers=CONTAINERD),
        {"classes": [HYPERV_OWN]},
        Outcome.FAILS,
        Cause.ISOLATION,
        "HostProcess containers run on the host, but runhcs-wcow-hypervisor runs them in a guest",
    ),
    "node too old for pods": (
        pod(),
        node("a", "1803"),
        {"images": image("10.0.17134.1")},
        Outcome.FAILS,
        Cause.BUILD,
        "10.0.17134 (Windows Server 1803) is too old for pods, which need 10.0.17763",
    ),
    "build unknown": (
        pod(),
        Node("a", (("kubernetes.io/os", "windows"),)),
        {},
        Outcome.UNKNOWN,
        Cause.BUILD,
        "the node does not report its Windows build",
    ),
    "handlers unknown": (
        pod(runtime_class="c"),
        node("a", handlers=None),
        {"classes": [runtime_class("c", "special")]},
        Outcome.UNKNOWN,
        Cause.HANDLER,
        'the node does not report its handlers, and "special" is not a built-in one',
    ),
    "image unknown": (
        pod("other"),
        node("a"),
        {},
        Outcome.UNKNOWN,
        Cause.IMAGE,
        "image other could not be resolved",
    ),
    "taint": (
        pod(),
        node("a", taints=(OS_TAINT,)),
        {},
        Outcome.BLOCKED,
        Cause.TAINT,
        "taint os=windows:NoSchedule is not tolerated",
    ),
    "cordoned": (
        pod(),
        node("a", unschedulable=True, taints=(Taint("node.kubernetes.io/unschedulable"),)),
        {},
        Outcome.BLOCKED,
        Cause.CORDONED,
        "the node is cordoned",
    ),
    "node selector": (
        pod(node_selector=(("kubernetes.io/os", "linux"),)),
        node("a"),
        {},
        Outcome.BLOCKED,
        Cause.SELECTOR,
        "nodeSelector requires kubernetes.io/os=linux",
    ),
    "node selector, no label": (
        pod(node_selector=(("pool", "x"),)),
        node("a"),
        {},
        Outcome.BLOCKED,
        Cause.SELECTOR,
        "nodeSelector requires pool=x",
    ),
    "class selector": (
        pod(runtime_class="c"),
        node("a"),
        {"classes": [runtime_class("c", "runhcs-wcow-process", "2019")]},
        Outcome.BLOCKED,
        Cause.SELECTOR,
        "RuntimeClass c requires node.kubernetes.io/windows-build=10.0.17763",
    ),
    "affinity": (
        pod(affinity=(Term((NodeSelectorRequirement("pool", "In", ("x", "y")),)),)),
        node("a"),
        {},
        Outcome.BLOCKED,
        Cause.AFFINITY,
        "required node affinity is pool In [x, y]",
    ),
    "affinity by name": (
        pod(affinity=(NAMED_B,)),
        node("a"),
        {},
        Outcome.BLOCKED,
        Cause.AFFINITY,
        "required node affinity is metadata.name In [b]",
    ),
    "affinity, empty term": (
        pod(affinity=(Term(),)),
        node("a"),
        {},
        Outcome.BLOCKED,
        Cause.AFFINITY,
        "required node affinity is nothing",
    ),
    "node name": (
        pod(node_name="b"),
        node("a"),
        {},
        Outcome.BLOCKED,
        Cause.NODE_NAME,
        "spec.nodeName is b",
    ),
    "too large": (
        pod(requests=amounts(memory="9Gi")),
        node("a", allocatable=amounts(memory="8Gi")),
        {},
        Outcome.BLOCKED,
        Cause.RESOURCES,
        "memory: requests 9Gi; 8Gi of 8Gi is free",
    ),
    "full": (
        pod(requests=amounts(memory="2Gi")),
        node("a", allocatable=amounts(memory="8Gi"), allocated=amounts(memory="7Gi")),
        {},
        Outcome.BLOCKED,
        Cause.RESOURCES,
        "memory: requests 2Gi; 1Gi of 8Gi is free",
    ),
    "overhead": (
        pod(requests=amounts(memory="1Gi"), runtime_class="c"),
        node("a", allocatable=amounts(memory="1.1Gi")),
        {"classes": [runtime_class("c", "", overhead=amounts(memory="200Mi"))]},
        Outcome.BLOCKED,
        Cause.RESOURCES,
        "memory: requests 1224Mi; 1.1Gi of 1.1Gi is free",
    ),
    "pods": (
        pod(),
        node("a", allocatable=amounts(pods="10"), allocated=amounts(pods="10")),
        {},
        Outcome.BLOCKED,
        Cause.RESOURCES,
        "pods: requests 1; 0 of 10 is free",
    ),
    "extended resource": (
        pod(requests=amounts(gpu="1")),
        node("a", allocatable=amounts(cpu="4")),
        {},
        Outcome.BLOCKED,
        Cause.RESOURCES,
        "gpu: requests 1; 0 of 0 is free",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_every_reason_is_reported(case: str) -> None:
    tested_pod, where, more, outcome, cause, sentence = CASES[case]
    (verdict,) = place(tested_pod, where, **more).verdicts
    assert verdict.outcome is outcome
    assert [r.cause for r in verdict.reasons] == [cause]
    assert sentence in verdict.reasons[0].message


def test_every_cause_has_a_case() -> None:
    shown = {case[4] for case in CASES.values()} | {Cause.RUNTIME_CLASS}
    assert shown == set(Cause)


@pytest.mark.parametrize(
    ("tested_pod", "classes", "symptom"),
    [
        (pod(runtime_class="nope"), [], 'pod rejected: RuntimeClass "nope" not found'),
        (
            pod(
                runtime_class="c",
                node_selector=(("node.kubernetes.io/windows-build", "10.0.20348"),),
            ),
            [runtime_class("c", "runhcs-wcow-process", "2019")],
            "conflict: runtimeClass.scheduling.nodeSelector[node.kubernetes.io/windows-build] = "
            "10.0.17763; pod.spec.nodeSelector[node.kubernetes.io/windows-build] = 10.0.20348",
        ),
        (
            pod(runtime_class="c", overhead=amounts(memory="1Mi")),
            [runtime_class("c", "", overhead=amounts(memory="200Mi"))],
            "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead",
        ),
        (
            pod(runtime_class="c", overhead=amounts(memory="1Mi")),
            [runtime_class("c", "")],
            "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead",
        ),
        (
            pod(overhead=amounts(memory="1Mi")),
            [],
            "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead",
        ),
    ],
)
def test_api_server_rejections_have_its_message(
    tested_pod: Pod, classes: list[RuntimeClass], symptom: str
) -> None:
    placement = place(tested_pod, node("a"), classes=classes)
    assert placement.status is Status.CANNOT_RUN
    assert placement.node == ""
    assert [(r.stage, r.symptom) for r in placement.refusals] == [(Stage.ADMIT, symptom)]


RUNS: dict[str, tuple[Pod, Node, dict[str, Any]]] = {
    "toleration": (pod(tolerations=tolerate_os()), node("a", taints=(OS_TAINT,)), {}),
    "class tolerates": (
        pod(runtime_class="c"),
        node("a", taints=(OS_TAINT,)),
        {"classes": [RuntimeClass("c", "", (), tolerate_os())]},
    ),
    "soft taint": (pod(), node("a", taints=(Taint("x", "", "PreferNoSchedule"),)), {}),
    "hypervisor, older image": (
        pod(runtime_class="hv"),
        node("a", "2025"),
        {"images": APP_2019, "classes": [HYPERV_2019]},
    ),
    "hypervisor, alias": (
        pod(runtime_class="hv"),
        node("a", "1903"),
        {"images": APP_2019, "classes": [runtime_class("hv", "containerd-hyperv-17763")]},
    ),
    "containerd, own guest": (
        pod(runtime_class="own"),
        node("a", runtime="containerd", handlers=CONTAINERD),
        {"classes": [HYPERV_OWN]},
    ),
    "handlers not told": (
        pod(runtime_class="hv"),
        node("a", handlers=None),
        {"images": APP_2019, "classes": [HYPERV_2019]},
    ),
    "custom handler": (
        pod(runtime_class="c"),
        node("a", runtime="containerd", handlers=CONTAINERD | {"mine"}),
        {"classes": [runtime_class("c", "mine")]},
    ),
    "host process, single manifest of another build": (
        pod(host_process=True),
        node("a", "2025", runtime="containerd", handlers=CONTAINERD),
        {"images": image("10.0.17763.1", index=False)},
    ),
    "node name, past the taint": (pod(node_name="a"), node("a", taints=(OS_TAINT,)), {}),
    "node name, past the cordon": (pod(node_name="a"), node("a", unschedulable=True), {}),
    "daemon on a cordoned node": (
        Pod.from_template({"spec": {"containers": [{"image": "app"}]}}, every_node=True),
        node("a", unschedulable=True),
        {},
    ),
    "affinity, one of two terms": (
        pod(affinity=(Term((NodeSelectorRequirement("pool", "Exists"),)), NAMED_B)),
        node("b"),
        {},
    ),
    "room": (
        pod(requests=amounts(memory="1Gi", cpu="1")),
        node("a", allocatable=amounts(memory="1Gi", cpu="1", pods="1")),
        {},
    ),
    "size unknown": (pod(requests=amounts(memory="900Gi")), node("a"), {}),
}


@pytest.mark.parametrize("case", RUNS)
def test_pods_that_fit_run(case: str) -> None:
    tested_pod, where, more = RUNS[case]
    placement = place(tested_pod, where, **more)
    assert placement.status is Status.RUNS, placement.verdicts
    assert placement.node == where.name


def test_no_manifest_is_chosen_without_a_node_build() -> None:
    nameless = Node("a", (("kubernetes.io/os", "windows"),))
    (verdict,) = place(pod(), nameless, images=APP_2022).verdicts
    assert (verdict.outcome, verdict.manifests) == (Outcome.UNKNOWN, ())


def test_missing_os_feature_is_named() -> None:
    platform = Platform("windows", "amd64", os_version="10.0.20348.1", os_features=("gpu",))
    found = Image("app", "", (Manifest("sha256:a", platform, 1),))
    (verdict,) = place(pod(), node("a"), images=found).verdicts
    assert [reason.message for reason in verdict.reasons] == [
        "app has no windows/amd64 image; it has windows/amd64 with gpu"
    ]


def test_all_containers_must_fit_the_one_kernel() -> None:
    images = {"old": APP_2019, "new": APP_2022}
    placement = place(pod("old", "new"), node("a", "2022"), node("b", "2019"), images=images)
    assert placement.status is Status.CANNOT_RUN
    assert causes(placement) == [Cause.BUILD, Cause.BUILD]


def test_pod_that_may_be_scheduled_where_it_cannot_start_may_fail() -> None:
    placement = place(pod(), node("good", "2022"), node("bad", "2019"), images=APP_2022)
    assert placement.status is Status.MAY_FAIL
    assert placement.node == "good"


def test_daemon_must_start_on_every_eligible_node() -> None:
    daemon = pod(is_daemon=True)
    assert place(daemon, node("a", "2019"), images=APP_2022).status is Status.CANNOT_RUN
    both = place(daemon, node("a", "2019"), node("b", "2022"), images=APP_2022)
    assert both.status is Status.CANNOT_RUN


def test_pod_blocked_temporarily_waits() -> None:
    full = node("a", allocatable=amounts(memory="8Gi"), allocated=amounts(memory="8Gi"))
    tested_pod = pod(requests=amounts(memory="1Gi"))
    assert place(tested_pod, full).status is Status.WAITS
    assert place(tested_pod, node("a", unschedulable=True)).status is Status.WAITS
    assert place(tested_pod, replace(full, allocatable=())).status is Status.CANNOT_RUN
    wrong = node("b", "2019")
    assert place(tested_pod, full, wrong, images=APP_2022).status is Status.CANNOT_RUN


def test_shortfall_is_never_rounded_away() -> None:
    small = node("a", allocatable=amounts(memory="7935408Ki", cpu="3999.5m"))
    placement = place(pod(requests=amounts(memory="7750Mi", cpu="4")), small)
    assert [reason.message for reason in placement.verdicts[0].reasons] == [
        "cpu: requests 4; 3999m of 3999m is free",
        "memory: requests 7750Mi; 7749.4Mi of 7749.4Mi is free",
    ]


def test_request_above_every_node_is_reported() -> None:
    small = node("a", allocatable=amounts(memory="8Gi"))
    (verdict,) = place(pod(requests=amounts(memory="9" * 99)), small).verdicts
    assert "memory: requests 8192Pi; 8Gi of 8Gi is free" in verdict.reasons[0].message


def test_bound_pods_are_counted_with_their_overhead() -> None:
    bound = pod(node_name="a", requests=amounts(memory="1Gi"), overhead=amounts(memory="200Mi"))
    (counted, other) = with_allocated([node("a"), node("b")], [bound, bound])
    assert counted.allocated == amounts(memory="2448Mi", pods="2")
    assert other.allocated == ()


ON_LINUX = Term((NodeSelectorRequirement("kubernetes.io/os", "In", ("linux",)),))


@pytest.mark.parametrize(
    ("tested_pod", "images", "os"),
    [
        (pod(os="windows"), {}, "windows"),
        (pod(node_selector=(("kubernetes.io/os", "linux"),)), {}, "linux"),
        (pod(runtime_class="hv"), {}, "windows"),
        (pod(affinity=(ON_LINUX,)), {}, "linux"),
        (pod(affinity=(ON_LINUX, ON_LINUX)), {}, "linux"),
        (pod(affinity=(ON_LINUX, Term((NodeSelectorRequirement("pool", "In", ("a",)),)))), {}, ""),
        (pod(), {"app": EVERY}, "windows"),
        (pod(), {"app": linux_image()}, "linux"),
        (pod(), {}, ""),
        (pod("a", "b"), {"a": EVERY, "b": linux_image()}, ""),
    ],
)
def test_intended_os_is_stated_or_derived_from_images(
    tested_pod: Pod, images: dict[str, Image], os: str
) -> None:
    assert intended_os(tested_pod, {"hv": HYPERV_2019}, images) == os


def test_default_nodes_are_containerd_nodes() -> None:
    (only,) = default_nodes([parse_build("2019")])
    assert (only.name, only.build) == ("windows-2019", Build(10, 0, 17763))
    assert only.handlers == CONTAINERD
