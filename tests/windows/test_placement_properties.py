"""What must hold of placement for any cluster and any pod, and what is remembered of them."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.windows.fleet import (
    CONTAINERD,
    OS_TAINT,
    WINPOD,
    amounts,
    image,
    node,
    pod,
    runtime_class,
    tolerate_os,
)
from tests.windows.test_placement import FIELDS
from winpod.windows.alike import MOST_KEPT, Group
from winpod.windows.builds import parse_build
from winpod.windows.handlers import KNOWN
from winpod.windows.isolation import fits_host, guest_fits_host
from winpod.windows.objects import Node, Pod, Requirement, RuntimeClass, Taint, Toleration
from winpod.windows.objects import NodeTerm as Term
from winpod.windows.placement import Cluster, judge
from winpod.windows.platforms import Image
from winpod.windows.room import Free, Room
from winpod.windows.scheduling import admit
from winpod.windows.verdicts import Status

EVERY = image("10.0.17763.805", "10.0.20348.2113", "10.0.26100.1742")
BUILDS = ["2019", "1903", "2022", "23h2", "2025"]
VERSIONS = [f"{parse_build(b)}.{r}" for b in BUILDS for r in (1, 10, 9)]
HANDLERS = ["", "docker", "runhcs-wcow-process", "runhcs-wcow-hypervisor", "nobody-knows"] + [
    f"runhcs-wcow-hypervisor-{parse_build(b).number}" for b in BUILDS
]
POOLS = st.sampled_from(["", "x", "y"])
sizes = st.sampled_from(["1Gi", "2Gi", "4Gi"])


@st.composite
def nodes(draw: st.DrawFn) -> Node:
    pool = draw(POOLS)
    return node(
        draw(st.text("abc", min_size=1, max_size=3)),
        draw(st.sampled_from(BUILDS)),
        labels={"pool": pool} if pool else {},
        taints=draw(st.sampled_from([(), (OS_TAINT,), (Taint("a", "b", "NoExecute"),)])),
        unschedulable=draw(st.booleans()),
        runtime=draw(st.sampled_from(["winpod", "containerd", "docker", ""])),
        handlers=draw(st.sampled_from([None, CONTAINERD, WINPOD])),
        allocatable=draw(st.none() | sizes.map(lambda size: amounts(memory=size))),
        allocated=draw(st.sampled_from([(), amounts(memory="1Gi")])),
    )


@st.composite
def pods(draw: st.DrawFn) -> Pod:
    pool = draw(POOLS)
    return pod(
        *draw(st.sampled_from([("app",), ("app", "second")])),
        node_selector=(("pool", pool),) if pool else (),
        affinity=draw(
            st.sampled_from([None, (Term((Requirement("pool", "NotIn", ("x",)),)),), (FIELDS,)])
        ),
        tolerations=draw(st.sampled_from([(), tolerate_os(), (Toleration("", "Exists"),)])),
        runtime_class=draw(st.sampled_from(["", "c0", "c1"])),
        node_name=draw(st.sampled_from(["", "", "a"])),
        requests=draw(st.sampled_from([(), amounts(memory="1Gi"), amounts(memory="3Gi")])),
        host_process=draw(st.sampled_from([False, False, True])),
    )


@st.composite
def classes(draw: st.DrawFn) -> list[RuntimeClass]:
    return [
        runtime_class(
            f"c{i}",
            draw(st.sampled_from(HANDLERS)),
            draw(st.sampled_from(["", "2022"])),
            overhead=draw(st.sampled_from([(), amounts(memory="200Mi")])),
        )
        for i in range(2)
    ]


@st.composite
def images(draw: st.DrawFn) -> dict[str, Image]:
    versions = st.lists(st.sampled_from(VERSIONS), min_size=1, max_size=4, unique=True)
    return {
        text: image(*draw(versions), index=draw(st.booleans()))
        for text in ("app", "second")
        if draw(st.integers(0, 9))
    }


fleets = st.lists(nodes(), max_size=5, unique_by=lambda n: n.name)


@settings(max_examples=300)
@given(pods(), fleets, classes(), images())
def test_grouping_changes_nothing(
    asked: Pod, fleet: list[Node], known: list[RuntimeClass], found: dict[str, Image]
) -> None:
    placement = Cluster(fleet, known).place(asked, found)
    admitted, _ = admit(asked, {c.name: c for c in known})
    alone = {n.name: judge(admitted, n, found) for n in fleet}
    grouped = {name: v for v in placement.verdicts for name in v.nodes}
    assert set(grouped) == set(alone)
    for name, verdict in grouped.items():
        assert verdict.outcome is alone[name].outcome
        told = {r.cause for r in verdict.reasons}
        assert told == {r.cause for r in alone[name].reasons}


@settings(max_examples=100)
@given(pods(), pods(), fleets, st.lists(nodes(), min_size=5, max_size=5), images(), st.data())
def test_a_cluster_whose_nodes_have_changed_places_as_a_new_one_does(
    before: Pod,
    asked: Pod,
    fleet: list[Node],
    others: list[Node],
    found: dict[str, Image],
    data: st.DataObject,
) -> None:
    cluster = Cluster(fleet)
    cluster.place(before, found)
    cluster.place(asked, found)
    changed = [
        data.draw(
            st.sampled_from(
                (
                    one,
                    replace(one, allocated=()),
                    replace(one, allocated=one.allocatable or ()),
                    replace(other, name=one.name),
                )
            )
        )
        for one, other in zip(fleet, others, strict=False)
    ]
    now = cluster.changed(new for new, old in zip(changed, fleet, strict=True) if new != old)
    assert now.place(asked, found) == Cluster(changed).place(asked, found)
    assert cluster.place(asked, found) == Cluster(fleet).place(asked, found)


def test_what_a_cluster_remembers_of_pods_has_a_bound_and_forgetting_changes_nothing() -> None:
    labels = {f"zone{number}": "here" for number in range(MOST_KEPT + 10)}
    cluster = Cluster([node("a", "2019", labels=labels), node("b", "2022")])
    selectors = [{zone: "here"} for zone in labels]
    asked = [pod(node_selector=tuple(selector.items())) for selector in selectors] * 2
    assert {cluster.place(one, {"app": EVERY}).node for one in asked} == {"a"}
    assert len(cluster._judged) == MOST_KEPT
    assert max(len(cluster.alike._groups), len(cluster._rooms)) <= MOST_KEPT


def test_what_is_sorted_by_resources_has_a_bound() -> None:
    sized = [node("a", allocatable=amounts(cpu="4"))]
    free = Free(sized)
    room = Room(Group((0,), ("a",), sized[0]), free)
    for number in range(200):
        assert not room.split(amounts(**{f"example.test/{number}": "1"}))[0]
        assert room.split(amounts(cpu="4"))[0] == ("a",)
    assert max(len(room._sorted), len(free._amounts)) <= 50


def test_labels_that_no_node_has_are_not_remembered() -> None:
    cluster = Cluster([node("a"), node("b")])
    for number in range(10):
        asked = pod(node_selector=((f"nowhere{number}", "x"),))
        assert cluster.place(asked, {"app": EVERY}).status is Status.CANNOT_RUN
    assert len(cluster.alike._groups) == 1


@settings(max_examples=300)
@given(pods(), fleets, classes(), images())
def test_a_chosen_node_satisfies_every_rule(
    asked: Pod, fleet: list[Node], known: list[RuntimeClass], found: dict[str, Image]
) -> None:
    placement = Cluster(fleet, known).place(asked, found)
    if not placement.node:
        return
    (where,) = [n for n in fleet if n.name == placement.node]
    chosen = {c.name: c for c in known}.get(asked.runtime_class)
    labels = dict(where.labels)
    host = where.build
    assert host is not None
    for key, value in (*asked.node_selector, *(chosen.node_selector if chosen else ())):
        assert labels[key] == value
    tolerations = asked.tolerations + (chosen.tolerations if chosen else ())
    for taint in where.taints:
        ignored = bool(asked.node_name) and taint.effect == "NoSchedule"
        assert ignored or any(t.tolerates(taint) for t in tolerations)
    assert not where.unschedulable or asked.node_name or Toleration("", "Exists") in tolerations
    assert asked.node_name in ("", where.name)
    name = chosen.handler if chosen else ""
    handler = KNOWN.find(name)
    assert handler is not None
    kernel = handler.kernel(host)
    assert guest_fits_host(kernel, host)
    if where.runtime in ("containerd", "docker"):
        assert kernel == host
    for text in asked.images:
        exempt = asked.host_process and not found[text].is_index
        built = [m.platform.build for m in found[text].manifests]
        assert exempt or any(b is not None and fits_host(b, kernel) for b in built)
    free = {k: v - dict(where.allocated).get(k, 0) for k, v in where.allocatable or ()}
    wanted = dict(asked.requests).get("memory", 0)
    wanted += dict(chosen.overhead).get("memory", 0) if chosen else 0
    assert where.allocatable is None or wanted <= free["memory"]


@settings(max_examples=300)
@given(pods(), fleets, nodes(), classes(), images())
def test_adding_a_node_never_makes_a_placed_pod_unplaceable(
    asked: Pod,
    fleet: list[Node],
    more: Node,
    known: list[RuntimeClass],
    found: dict[str, Image],
) -> None:
    before = Cluster(fleet, known).place(asked, found)
    after = Cluster([*fleet, replace(more, name="new")], known).place(asked, found)
    if before.node:
        assert after.node
        assert after.status in (Status.RUNS, Status.MAY_FAIL)
