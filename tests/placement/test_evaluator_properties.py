"""Property tests of placement, and tests of its caches."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.placement_nodes import (
    amounts,
    image,
    node,
    pod,
)
from tests.support.placement_strategies import classes, fleets, images, nodes, pods
from winpod.placement.capacity import FreeCapacity, SortedCapacity
from winpod.placement.evaluator import Cluster, evaluate_node
from winpod.placement.model import (
    Node,
    Pod,
    RuntimeClass,
    Toleration,
)
from winpod.placement.node_groups import MAX_CACHED, NodeGroup
from winpod.placement.predicates import admit_with_runtime_class
from winpod.placement.verdicts import Status
from winpod.windows.handlers import BUILTIN_HANDLERS
from winpod.windows.isolation import guest_fits_host, image_fits_host
from winpod.windows.platforms import Image

EVERY = image("10.0.17763.805", "10.0.20348.2113", "10.0.26100.1742")


@settings(max_examples=300)
@given(pods(), fleets, classes(), images())
def test_grouping_changes_nothing(
    tested_pod: Pod, fleet: list[Node], known: list[RuntimeClass], found: dict[str, Image]
) -> None:
    placement = Cluster(fleet, known).place(tested_pod, found)
    admitted, _ = admit_with_runtime_class(tested_pod, {c.name: c for c in known})
    alone = {n.name: evaluate_node(admitted, n, found) for n in fleet}
    grouped = {name: v for v in placement.verdicts for name in v.nodes}
    assert set(grouped) == set(alone)
    for name, verdict in grouped.items():
        assert verdict.outcome is alone[name].outcome
        told = {r.cause for r in verdict.reasons}
        assert told == {r.cause for r in alone[name].reasons}


@settings(max_examples=100)
@given(pods(), pods(), fleets, st.lists(nodes(), min_size=5, max_size=5), images(), st.data())
def test_cluster_with_replaced_nodes_places_like_a_new_one(
    before: Pod,
    tested_pod: Pod,
    fleet: list[Node],
    others: list[Node],
    found: dict[str, Image],
    data: st.DataObject,
) -> None:
    cluster = Cluster(fleet)
    cluster.place(before, found)
    cluster.place(tested_pod, found)
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
    now = cluster.with_nodes(new for new, old in zip(changed, fleet, strict=True) if new != old)
    assert now.place(tested_pod, found) == Cluster(changed).place(tested_pod, found)
    assert cluster.place(tested_pod, found) == Cluster(fleet).place(tested_pod, found)


def test_caches_are_bounded_and_eviction_does_not_change_results() -> None:
    labels = {f"zone{number}": "here" for number in range(MAX_CACHED + 10)}
    cluster = Cluster([node("a", "2019", labels=labels), node("b", "2022")])
    selectors = [{zone: "here"} for zone in labels]
    tested_pod = [pod(node_selector=tuple(selector.items())) for selector in selectors] * 2
    assert {cluster.place(one, {"app": EVERY}).node for one in tested_pod} == {"a"}
    assert len(cluster._evaluations) == MAX_CACHED
    assert max(len(cluster.groups._groups), len(cluster._capacities)) <= MAX_CACHED


def test_resource_caches_are_bounded() -> None:
    sized = [node("a", allocatable=amounts(cpu="4"))]
    free = FreeCapacity(sized)
    room = SortedCapacity(NodeGroup((0,), ("a",), sized[0]), free)
    for number in range(200):
        assert not room.split_by_fit(amounts(**{f"example.test/{number}": "1"}))[0]
        assert room.split_by_fit(amounts(cpu="4"))[0] == ("a",)
    assert max(len(room._sorted), len(free._amounts)) <= 50


def test_selectors_without_matching_nodes_are_not_cached() -> None:
    cluster = Cluster([node("a"), node("b")])
    for number in range(10):
        tested_pod = pod(node_selector=((f"nowhere{number}", "x"),))
        assert cluster.place(tested_pod, {"app": EVERY}).status is Status.CANNOT_RUN
    assert len(cluster.groups._groups) == 1


@settings(max_examples=300)
@given(pods(), fleets, classes(), images())
def test_a_chosen_node_satisfies_every_rule(
    tested_pod: Pod, fleet: list[Node], known: list[RuntimeClass], found: dict[str, Image]
) -> None:
    placement = Cluster(fleet, known).place(tested_pod, found)
    if not placement.node:
        return
    (where,) = [n for n in fleet if n.name == placement.node]
    chosen = {c.name: c for c in known}.get(tested_pod.runtime_class)
    labels = dict(where.labels)
    host = where.build
    assert host is not None
    for key, value in (*tested_pod.node_selector, *(chosen.node_selector if chosen else ())):
        assert labels[key] == value
    tolerations = tested_pod.tolerations + (chosen.tolerations if chosen else ())
    for taint in where.taints:
        ignored = bool(tested_pod.node_name) and taint.effect == "NoSchedule"
        assert ignored or any(t.tolerates(taint) for t in tolerations)
    assert (
        not where.unschedulable or tested_pod.node_name or Toleration("", "Exists") in tolerations
    )
    assert tested_pod.node_name in ("", where.name)
    name = chosen.handler if chosen else ""
    handler = BUILTIN_HANDLERS.find(name)
    assert handler is not None
    kernel = handler.kernel_build(host)
    assert guest_fits_host(kernel, host)
    if where.runtime in ("containerd", "docker"):
        assert kernel == host
    for text in tested_pod.images:
        exempt = tested_pod.host_process and not found[text].is_index
        built = [m.platform.build for m in found[text].manifests]
        assert exempt or any(b is not None and image_fits_host(b, kernel) for b in built)
    free = {k: v - dict(where.allocated).get(k, 0) for k, v in where.allocatable or ()}
    wanted = dict(tested_pod.requests).get("memory", 0)
    wanted += dict(chosen.overhead).get("memory", 0) if chosen else 0
    assert where.allocatable is None or wanted <= free["memory"]


@settings(max_examples=300)
@given(pods(), fleets, nodes(), classes(), images())
def test_adding_a_node_never_makes_a_placed_pod_unplaceable(
    tested_pod: Pod,
    fleet: list[Node],
    more: Node,
    known: list[RuntimeClass],
    found: dict[str, Image],
) -> None:
    before = Cluster(fleet, known).place(tested_pod, found)
    after = Cluster([*fleet, replace(more, name="new")], known).place(tested_pod, found)
    if before.node:
        assert after.node
        assert after.status in (Status.RUNS, Status.MAY_FAIL)
