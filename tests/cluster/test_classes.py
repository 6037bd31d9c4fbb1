"""Which classes nodes give reason for, whom they select, and what is done about those there are."""

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
import yaml

from tests.windows.fleet import CONTAINERD, OS_TAINT, WINPOD, linux_node, node
from winpod.cluster.classes import (
    ABOUT,
    Deed,
    WantedClass,
    desired_classes,
    plan_classes,
    tolerations_for,
)
from winpod.cluster.node_labels import change_labels, with_labels
from winpod.cluster.seen import SeenClass
from winpod.cluster.settings import Settings, read_settings
from winpod.windows.handlers import HYPERVISOR, PROCESS
from winpod.windows.objects import Container, Node, Pod, RuntimeClass, Taint, Toleration
from winpod.windows.placement import Cluster
from winpod.windows.verdicts import Outcome

GUEST_2019 = f"{HYPERVISOR.name}-17763"
HOST = frozenset((PROCESS.name, HYPERVISOR.name, GUEST_2019))
PLAIN = frozenset((PROCESS.name,))
DEFAULTS = Settings()
LABEL_2019 = {f"handler.winpod.dev/{GUEST_2019}": "true"}


def labelled(*nodes: Node) -> list[Node]:
    return [with_labels(one, change_labels(one)) for one in nodes]


def wanted(*nodes: Node, settings: Settings = DEFAULTS) -> dict[str, RuntimeClass]:
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
def test_nodes_give_reason_for_these_classes(nodes: list[Node], names: list[str]) -> None:
    assert list(wanted(*nodes)) == names


A, B = (node(name, "2022", handlers=HOST) for name in "ab")
DULL = node("dull", "2022", runtime="containerd", handlers=CONTAINERD)
NEWER = node("newer", "2025", handlers=HOST)
NEWER_DULL = node("newer-dull", "2025", runtime="containerd", handlers=CONTAINERD)
NO_LABELS = Settings(labels=False)


@pytest.mark.parametrize(
    ("nodes", "settings", "selected"),
    [
        ([A], Settings(), selector(build="10.0.20348")),
        ([A, B], Settings(), selector(build="10.0.20348")),
        ([A, DULL], Settings(), selector(**LABEL_2019)),
        ([A, NEWER], Settings(), selector(**LABEL_2019)),
        ([A, NEWER_DULL], Settings(), selector(build="10.0.20348")),
        ([DULL, NEWER], Settings(), selector(build="10.0.26100")),
        ([A], NO_LABELS, selector(build="10.0.20348")),
        ([A, DULL], NO_LABELS, None),
        ([A, NEWER], NO_LABELS, selector(build="10.0.26100")),
        ([A, NEWER, NEWER_DULL], NO_LABELS, selector(build="10.0.20348")),
    ],
)
def test_the_class_of_a_guest_selects_those_who_can_host_it_and_nobody_else(
    nodes: list[Node], settings: Settings, selected: dict[str, str] | None
) -> None:
    made = wanted(*nodes, settings=settings).get("windows-2019-hyperv")
    assert (dict(made.node_selector) if made else None) == selected


RESERVE, RESERVE_2019 = f"{HYPERVISOR.name}-reserve", f"{GUEST_2019}-reserve"


def test_each_size_that_a_node_is_configured_with_has_a_class_of_its_own() -> None:
    sized = node("sized", "2022", handlers=HOST | {RESERVE, RESERVE_2019})
    made = wanted(sized, A, node("newer", "2025", handlers=PLAIN | {RESERVE}))
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
    made = wanted(node("a", "2022", handlers=PLAIN), other)["windows-2022"]
    label = f"handler.winpod.dev/{PROCESS.name}"
    assert dict(made.node_selector) == selector(build="10.0.20348", **{label: "true"})


def test_a_node_that_the_selector_would_not_find_makes_no_class() -> None:
    bare = Node(
        "bare",
        (("kubernetes.io/arch", "amd64"), ("kubernetes.io/os", "windows")),
        kernel_version="10.0.17763.1",
    )
    assert not wanted(bare, settings=NO_LABELS)
    assert list(wanted(bare)) == ["windows-2019"]


def test_another_architecture_has_classes_of_its_own() -> None:
    arm = node("arm", "2025", handlers=PLAIN, labels={"kubernetes.io/arch": "arm64"})
    made = wanted(arm, node("amd", "2025", handlers=PLAIN))
    assert list(made) == ["windows-2025", "windows-2025-arm64"]
    assert dict(made["windows-2025-arm64"].node_selector)["kubernetes.io/arch"] == "arm64"


def test_only_guests_have_an_overhead_and_it_is_the_settings() -> None:
    settings = read_settings("classes: {overhead: {memory: 100Mi, cpu: 50m}}")
    made = wanted(A, settings=settings)
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
def test_only_taints_that_say_windows_are_tolerated(taint: Taint, is_tolerated: bool) -> None:
    made = tolerations_for([node("a", taints=(taint,))], Settings())
    assert any(toleration.tolerates(taint) for toleration in made) is is_tolerated
    assert len(made) == is_tolerated


def test_tolerations_are_those_of_all_its_nodes_and_of_the_settings() -> None:
    one = node("a", "2019", handlers=PLAIN, taints=(OS_TAINT,))
    other = node("b", "2019", handlers=PLAIN, taints=(Taint("os", "Windows"), OS_TAINT))
    settings = read_settings("classes: {tolerations: [{key: dedicated, operator: Exists}]}")
    made = wanted(one, other, node("c", "2019", handlers=PLAIN), settings=settings)
    assert made["windows-2019"].tolerations == (
        Toleration("os", "Equal", "Windows", "NoSchedule"),
        Toleration("os", "Equal", "windows", "NoSchedule"),
        Toleration("dedicated", "Exists"),
    )


def test_names_are_the_settings() -> None:
    settings = read_settings("classes: {name: 'win-{number}', hypervisorName: 'guest-{number}'}")
    assert list(wanted(A, settings=settings)) == ["guest-17763", "win-20348"]


def test_no_classes_are_wanted_where_they_are_off() -> None:
    assert not wanted(A, settings=Settings(classes=False))


def test_objects_are_what_is_read_back() -> None:
    settings = read_settings("classes: {overhead: {memory: 123456789, cpu: 50m}}")
    for one in desired_classes(labelled(A, NEWER, DULL), settings):
        obj = yaml.safe_load(yaml.safe_dump(one.to_object()))
        assert RuntimeClass.from_object(obj) == one.runtime_class


@pytest.mark.parametrize("labels", [True, False])
def test_a_pod_of_a_class_never_fails_on_a_node_for_its_handler(labels: bool) -> None:
    """Whatever nodes there are together: the class keeps pods off those that cannot serve it."""
    settings = Settings(labels=labels)
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


ONE = desired_classes(labelled(node("a", "2019", handlers=PLAIN)), Settings())[0]


def seen(wanted: WantedClass = ONE, *, ours: bool = True, **more: Any) -> SeenClass:
    runtime_class = replace(wanted.runtime_class, **more)
    return SeenClass(runtime_class, ours, annotations=((ABOUT, wanted.about),))


@pytest.mark.parametrize(
    ("wants", "there", "used", "deed", "words"),
    [
        (True, None, False, Deed.CREATE, "there are nodes for it"),
        (True, None, True, Deed.CREATE, "there are nodes for it"),
        (True, seen(), False, Deed.KEEP, ""),
        (True, seen(), True, Deed.KEEP, ""),
        (True, seen(ours=False), False, Deed.KEEP, "not made by winpod"),
        (True, seen(ours=False, handler="x"), True, Deed.KEEP, "not made by winpod"),
        (True, seen(tolerations=(Toleration("x"),)), True, Deed.UPDATE, "have changed"),
        (True, seen(node_selector=()), False, Deed.UPDATE, "have changed"),
        (True, seen(overhead=(("memory", Decimal(1)),)), True, Deed.UPDATE, "have changed"),
        (True, replace(seen(), annotations=()), True, Deed.UPDATE, "have changed"),
        (True, seen(handler="x"), False, Deed.REPLACE, f"from x to {PROCESS.name}"),
        (True, seen(handler="x"), True, Deed.KEEP, "stays until no pod uses it"),
        (False, seen(), False, Deed.REMOVE, "no pod uses it"),
        (False, seen(), True, Deed.KEEP, "stays while pods use it"),
        (False, seen(ours=False), False, None, ""),
        (False, None, True, None, ""),
    ],
)
def test_what_is_done_about_a_class(
    wants: bool, there: SeenClass | None, used: bool, deed: Deed | None, words: str
) -> None:
    existing = {there.name: there} if there else {}
    steps = plan_classes([ONE] if wants else [], existing, {ONE.name} if used else ())
    assert [step.deed for step in steps] == ([deed] if deed else [])
    for step in steps:
        assert words in step.reason
        assert bool(words) == bool(step.reason)


def test_new_classes_come_before_old_ones_go() -> None:
    """So that a change of names leaves no moment without a class."""
    new = desired_classes(labelled(node("a", "2022", handlers=PLAIN)), Settings())
    old = {name: seen(replace(ONE, runtime_class=RuntimeClass(name, "x"))) for name in ("a", "b")}
    deeds = [step.deed for step in plan_classes(new, old, ())]
    assert deeds == [Deed.CREATE, Deed.REMOVE, Deed.REMOVE]


def test_what_was_done_leaves_nothing_to_do() -> None:
    made = desired_classes(labelled(A, DULL, NEWER), Settings())
    existing = {one.name: seen(one) for one in made}
    assert {step.deed for step in plan_classes(made, existing, ())} == {Deed.KEEP}
