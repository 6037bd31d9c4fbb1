"""Tests of the desired RuntimeClasses, their selectors and the planned changes."""

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
import yaml

from tests.support.placement_nodes import CONTAINERD, OS_TAINT, WINPOD, linux_node, node
from winpod.labels import ABOUT_ANNOTATION
from winpod.operator.cached_objects import CachedRuntimeClass
from winpod.operator.runtimeclasses.desired_classes import (
    ClassAction,
    DesiredClass,
    desired_classes,
    plan_classes,
    tolerations_for,
)
from winpod.operator.runtimeclasses.node_labels import change_labels, with_labels
from winpod.operator.settings import OperatorSettings, read_settings
from winpod.placement.evaluator import Cluster
from winpod.placement.model import Container, Node, Pod, RuntimeClass, Taint, Toleration
from winpod.placement.verdicts import Outcome
from winpod.windows.handlers import HYPERVISOR_HANDLER, PROCESS_HANDLER

GUEST_2019 = f"{HYPERVISOR_HANDLER.name}-17763"
HOST = frozenset((PROCESS_HANDLER.name, HYPERVISOR_HANDLER.name, GUEST_2019))
PLAIN = frozenset((PROCESS_HANDLER.name,))
DEFAULTS = OperatorSettings()
LABEL_2019 = {f"handler.winpod.dev/{GUEST_2019}": "true"}


def labelled(*nodes: Node) -> list[Node]:
    return [with_labels(one, change_labels(one)) for one in nodes]


def desired(*nodes: Node, settings: OperatorSettings = DEFAULTS) -> dict[str, RuntimeClass]:
    ready = labelled(*nodes) if settings.labels else nodes
    return {one.name: one.runtime_class for one in desired_classes(ready, settings)}


def selector(*, build: str = "", **more: str) -> dict[str, str]:
    labels = {"kubernetes.io/os": "windows", "kubernetes.io/arch": "amd64"}
    return labels | ({"node.kubernetes.io/windows-build": build} if build else {}) | more


@pytest.mark.parametrize(
    ("nodes", "names"),
    [
        ([], []),
        ([linux_node("linux")], []),
        ([node("a", "2019", handlers=PLAIN)], ["windows-2019"]),
        ([node("a", "2016", handlers=PLAIN)], []),
        ([node("a", "10.0.27000", handlers=PLAIN)], ["windows-27000"]),
        ([node("a", "2022", handlers=None)], ["windows-2022"]),
        ([node("a", "2022", handlers=frozenset(("other",)))], []),
        ([node("a", "2022", runtime="containerd", handlers=CONTAINERD)], ["windows-2022"]),
        ([node("a", "2022", runtime="containerd", handlers=HOST)], ["windows-2022"]),
        ([node("a", "2022", handlers=HOST)], ["windows-2019-hyperv", "windows-2022"]),
        ([node("a", "2019", handlers=HOST)], ["windows-2019"]),
        ([Node("a", (("kubernetes.io/os", "windows"),))], []),
        (
            [node("a", "2019", handlers=PLAIN), node("b", "2022", handlers=PLAIN), linux_node("c")],
            ["windows-2019", "windows-2022"],
        ),
        (
            [node("a", "2022", handlers=WINPOD)],
            [
                "windows-1903-hyperv",
                "windows-1909-hyperv",
                "windows-2004-hyperv",
                "windows-2019-hyperv",
                "windows-2022",
                "windows-20h2-hyperv",
                "windows-21h1-hyperv",
            ],
        ),
    ],
)
def test_desired_classes_of_nodes(nodes: list[Node], names: list[str]) -> None:
    assert list(desired(*nodes)) == names


A, B = (node(name, "2022", handlers=HOST) for name in "ab")
DULL = node("dull", "2022", runtime="containerd", handlers=CONTAINERD)
NEWER = node("newer", "2025", handlers=HOST)
NEWER_DULL = node("newer-dull", "2025", runtime="containerd", handlers=CONTAINERD)
NO_LABELS = OperatorSettings(labels=False)


@pytest.mark.parametrize(
    ("nodes", "settings", "selected"),
    [
        ([A], OperatorSettings(), selector(build="10.0.20348")),
        ([A, B], OperatorSettings(), selector(build="10.0.20348")),
        ([A, DULL], OperatorSettings(), selector(**LABEL_2019)),
        ([A, NEWER], OperatorSettings(), selector(**LABEL_2019)),
        ([A, NEWER_DULL], OperatorSettings(), selector(build="10.0.20348")),
        ([DULL, NEWER], OperatorSettings(), selector(build="10.0.26100")),
        ([A], NO_LABELS, selector(build="10.0.20348")),
        ([A, DULL], NO_LABELS, None),
        ([A, NEWER], NO_LABELS, selector(build="10.0.26100")),
        ([A, NEWER, NEWER_DULL], NO_LABELS, selector(build="10.0.20348")),
    ],
)
def test_guest_class_selects_only_nodes_that_can_host_it(
    nodes: list[Node], settings: OperatorSettings, selected: dict[str, str] | None
) -> None:
    made = desired(*nodes, settings=settings).get("windows-2019-hyperv")
    assert (dict(made.node_selector) if made else None) == selected


RESERVE, RESERVE_2019 = f"{HYPERVISOR_HANDLER.name}-reserve", f"{GUEST_2019}-reserve"


def test_each_configured_size_has_its_own_class() -> None:
    sized = node("sized", "2022", handlers=HOST | {RESERVE, RESERVE_2019})
    made = desired(sized, A, node("newer", "2025", handlers=PLAIN | {RESERVE}))
    by_label = {one: {f"handler.winpod.dev/{one}": "true"} for one in (RESERVE, RESERVE_2019)}
    assert {
        name: (one.handler, dict(one.node_selector))
        for name, one in made.items()
        if name.endswith("-reserve")
    } == {
        "windows-2019-hyperv-reserve": (RESERVE_2019, selector(**by_label[RESERVE_2019])),
        "windows-2022-hyperv-reserve": (
            RESERVE,
            selector(build="10.0.20348", **by_label[RESERVE]),
        ),
        "windows-2025-hyperv-reserve": (RESERVE, selector(build="10.0.26100")),
    }


def test_the_class_of_a_build_leaves_out_nodes_without_the_handler() -> None:
    other = node("other", "2022", handlers=frozenset(("other",)))
    made = desired(node("a", "2022", handlers=PLAIN), other)["windows-2022"]
    label = f"handler.winpod.dev/{PROCESS_HANDLER.name}"
    assert dict(made.node_selector) == selector(build="10.0.20348", **{label: "true"})


def test_node_without_matching_labels_gets_no_class() -> None:
    bare = Node(
        "bare",
        (("kubernetes.io/arch", "amd64"), ("kubernetes.io/os", "windows")),
        kernel_version="10.0.17763.1",
    )
    assert not desired(bare, settings=NO_LABELS)
    assert list(desired(bare)) == ["windows-2019"]


def test_another_architecture_has_classes_of_its_own() -> None:
    arm = node("arm", "2025", handlers=PLAIN, labels={"kubernetes.io/arch": "arm64"})
    made = desired(arm, node("amd", "2025", handlers=PLAIN))
    assert list(made) == ["windows-2025", "windows-2025-arm64"]
    assert dict(made["windows-2025-arm64"].node_selector)["kubernetes.io/arch"] == "arm64"


def test_only_guest_classes_have_the_configured_overhead() -> None:
    settings = read_settings("classes: {overhead: {memory: 100Mi, cpu: 50m}}")
    made = desired(A, settings=settings)
    assert made["windows-2022"].overhead == ()
    assert made["windows-2019-hyperv"].overhead == (
        ("cpu", Decimal("0.05")),
        ("memory", Decimal(100 * 1024**2)),
    )


@pytest.mark.parametrize(
    ("taint", "is_tolerated"),
    [
        (Taint("os", "windows"), True),
        (Taint("os", "Windows"), True),
        (Taint("node.kubernetes.io/os", "windows", "NoExecute"), True),
        (Taint("windows", "true"), True),
        (Taint("example.com/windows"), True),
        (Taint("os", "windows", "PreferNoSchedule"), False),
        (Taint("dedicated", "team-a"), False),
        (Taint("windows-maintenance", "now", "NoExecute"), False),
        (Taint("node.kubernetes.io/not-ready"), False),
        (Taint("node.kubernetes.io/unschedulable"), False),
    ],
)
def test_only_windows_taints_are_tolerated(taint: Taint, is_tolerated: bool) -> None:
    made = tolerations_for([node("a", taints=(taint,))], OperatorSettings())
    assert any(toleration.tolerates(taint) for toleration in made) is is_tolerated
    assert len(made) == is_tolerated


def test_tolerations_are_those_of_all_its_nodes_and_of_the_settings() -> None:
    one = node("a", "2019", handlers=PLAIN, taints=(OS_TAINT,))
    other = node("b", "2019", handlers=PLAIN, taints=(Taint("os", "Windows"), OS_TAINT))
    settings = read_settings("classes: {tolerations: [{key: dedicated, operator: Exists}]}")
    made = desired(one, other, node("c", "2019", handlers=PLAIN), settings=settings)
    assert made["windows-2019"].tolerations == (
        Toleration("os", "Equal", "Windows", "NoSchedule"),
        Toleration("os", "Equal", "windows", "NoSchedule"),
        Toleration("dedicated", "Exists"),
    )


def test_class_names_follow_the_settings() -> None:
    settings = read_settings("classes: {name: 'win-{number}', hypervisorName: 'guest-{number}'}")
    assert list(desired(A, settings=settings)) == ["guest-17763", "win-20348"]


def test_no_classes_if_disabled() -> None:
    assert not desired(A, settings=OperatorSettings(classes=False))


def test_objects_round_trip() -> None:
    settings = read_settings("classes: {overhead: {memory: 123456789, cpu: 50m}}")
    for one in desired_classes(labelled(A, NEWER, DULL), settings):
        obj = yaml.safe_load(yaml.safe_dump(one.to_object()))
        assert RuntimeClass.from_object(obj) == one.runtime_class


@pytest.mark.parametrize("labels", [True, False])
def test_a_pod_of_a_class_never_fails_on_a_node_for_its_handler(labels: bool) -> None:
    """For any set of nodes, a class selects only those that can serve its handler."""
    settings = OperatorSettings(labels=labels)
    kinds = [A, DULL, NEWER, NEWER_DULL, node("old", "2019", runtime="docker", handlers=None)]
    for chosen in range(1, 2 ** len(kinds)):
        nodes = [kind for place, kind in enumerate(kinds) if chosen >> place & 1]
        nodes = labelled(*nodes) if labels else nodes
        made = desired_classes(nodes, settings)
        cluster = Cluster(nodes, (one.runtime_class for one in made))
        for one in made:
            pod = Pod((Container("c", "app", ()),), os="windows", runtime_class=one.name)
            verdicts = cluster.place(pod, {}).verdicts
            assert not [v for v in verdicts if v.outcome is Outcome.FAILS], (one, nodes)
            assert any(v.outcome is Outcome.UNKNOWN for v in verdicts), "some node takes it"


ONE = desired_classes(labelled(node("a", "2019", handlers=PLAIN)), OperatorSettings())[0]


def cached(desired: DesiredClass = ONE, *, ours: bool = True, **more: Any) -> CachedRuntimeClass:
    runtime_class = replace(desired.runtime_class, **more)
    return CachedRuntimeClass(runtime_class, ours, annotations=((ABOUT_ANNOTATION, desired.about),))


@pytest.mark.parametrize(
    ("wants", "there", "used", "deed", "words"),
    [
        (True, None, False, ClassAction.CREATE, "the cluster has nodes for it"),
        (True, None, True, ClassAction.CREATE, "the cluster has nodes for it"),
        (True, cached(), False, ClassAction.KEEP, ""),
        (True, cached(), True, ClassAction.KEEP, ""),
        (True, cached(ours=False), False, ClassAction.KEEP, "not managed by winpod"),
        (True, cached(ours=False, handler="x"), True, ClassAction.KEEP, "not managed by winpod"),
        (
            True,
            cached(tolerations=(Toleration("x"),)),
            True,
            ClassAction.UPDATE,
            "settings changed",
        ),
        (True, cached(node_selector=()), False, ClassAction.UPDATE, "settings changed"),
        (
            True,
            cached(overhead=(("memory", Decimal(1)),)),
            True,
            ClassAction.UPDATE,
            "settings changed",
        ),
        (True, replace(cached(), annotations=()), True, ClassAction.UPDATE, "settings changed"),
        (
            True,
            cached(handler="x"),
            False,
            ClassAction.REPLACE,
            f"from x to {PROCESS_HANDLER.name}",
        ),
        (True, cached(handler="x"), True, ClassAction.KEEP, "is kept until no pod uses it"),
        (False, cached(), False, ClassAction.REMOVE, "no pod uses it"),
        (False, cached(), True, ClassAction.KEEP, "is kept while pods use it"),
        (False, cached(ours=False), False, None, ""),
        (False, None, True, None, ""),
    ],
)
def test_planned_action_for_a_class(
    wants: bool, there: CachedRuntimeClass | None, used: bool, deed: ClassAction | None, words: str
) -> None:
    existing = {there.name: there} if there else {}
    steps = plan_classes([ONE] if wants else [], existing, {ONE.name} if used else ())
    assert [step.action for step in steps] == ([deed] if deed else [])
    for step in steps:
        assert words in step.reason
        assert bool(words) == bool(step.reason)


def test_creations_are_planned_before_removals() -> None:
    """A change of names must not leave a gap without a class."""
    new = desired_classes(labelled(node("a", "2022", handlers=PLAIN)), OperatorSettings())
    old = {name: cached(replace(ONE, runtime_class=RuntimeClass(name, "x"))) for name in ("a", "b")}
    deeds = [step.action for step in plan_classes(new, old, ())]
    assert deeds == [ClassAction.CREATE, ClassAction.REMOVE, ClassAction.REMOVE]


def test_plan_is_idempotent() -> None:
    made = desired_classes(labelled(A, DULL, NEWER), OperatorSettings())
    existing = {one.name: cached(one) for one in made}
    assert {step.action for step in plan_classes(made, existing, ())} == {ClassAction.KEEP}
