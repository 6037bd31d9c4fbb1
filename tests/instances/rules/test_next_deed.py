"""The next deed: every situation there can be, and what must never happen in any of them."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from winpod.instances import paths
from winpod.instances.rules.next_deed import Deed, NodeNow, Situation, disturbs_pods, next_deed
from winpod.instances.rules.rolling import Turn
from winpod.instances.rules.steps import Do, Step

PUT = Step(Do.PUT_FILE, r"C:\k\bin\kubelet.exe", "", "", "")
START = Step(Do.START_SERVICE, "containerd", "", "", "")
STEPS = ((), (START,), (START, PUT))
NODES = (
    None,
    *(
        NodeNow("win", ready, cordoned, runtime, stranger)
        for ready, cordoned, runtime, stranger in product(
            (True, False), (True, False), ("containerd://2.1", "docker://20.10", ""), ("", "no")
        )
    ),
)
FLAGS = (True, False)


def situations() -> Iterator[Situation]:
    turns = (Turn(True), Turn(False, "a changes"))
    for rest in product(STEPS, NODES, (0, 2), turns, FLAGS, FLAGS, FLAGS, FLAGS):
        yield Situation(*rest)


def is_in_use(now: Situation) -> bool:
    """Whether its steps disturb the pods of a node that has been ready."""
    return now.node is not None and not now.is_joining and disturbs_pods(now.steps)


def test_pods_are_disturbed_only_on_a_node_that_is_cordoned_and_empty_and_has_its_turn() -> None:
    for now in situations():
        deed = next_deed(now).deed
        if deed is Deed.APPLY and is_in_use(now) and now.node:
            assert now.node.is_cordoned, now
            assert not now.pods, now
            assert now.turn.is_granted, now
        if deed is Deed.REMOVE and now.node and not now.node.stranger:
            assert now.node.is_cordoned, now
            assert not now.pods, now


def test_nothing_is_begun_without_a_turn_but_what_disturbs_nobody() -> None:
    for now in situations():
        if now.turn.is_granted or now.is_leaving:
            continue
        deed = next_deed(now).deed
        assert deed not in (Deed.CORDON, Deed.DRAIN, Deed.REPLACE), now
        if deed is Deed.APPLY:
            assert not is_in_use(now), now


def test_an_instance_rests_only_as_a_ready_node_with_containerd_that_takes_pods() -> None:
    for now in situations():
        if next_deed(now).deed is Deed.REST:
            assert now.node, now
            assert now.node.is_ready, now
            assert now.node.runtime.startswith("containerd://"), now
            assert not now.steps, now
            assert not now.is_cordoned_by_us, now


def test_a_cordon_of_ours_is_lifted_only_at_the_end_and_nobody_else_s_ever() -> None:
    for now in situations():
        if next_deed(now).deed is Deed.UNCORDON:
            assert now.is_cordoned_by_us, now
            assert not now.steps, now
            assert not now.is_leaving, now


def test_a_machine_is_replaced_never_changed_while_it_is_a_node() -> None:
    for now in situations():
        deed = next_deed(now).deed
        if now.is_machine:
            assert deed not in (Deed.CORDON, Deed.DRAIN, Deed.REMOVE, Deed.DELETE_NODE), now
            if deed is Deed.REPLACE:
                assert now.turn.is_granted, now
        else:
            assert deed is not Deed.REPLACE, now


def test_a_node_that_is_somebody_else_s_is_never_touched() -> None:
    for now in situations():
        if now.node and now.node.stranger:
            deed = next_deed(now).deed
            assert deed in ((Deed.REMOVE, Deed.LET_GO) if now.is_leaving else (Deed.REFUSE,)), now


def test_an_instance_is_let_go_only_when_nothing_of_ours_and_no_node_of_its_is_left() -> None:
    for now in situations():
        if next_deed(now).deed is Deed.LET_GO and not now.is_machine:
            assert not now.steps, now
            assert now.node is None or now.node.stranger, now


def test_whoever_waits_is_told_why() -> None:
    for now in situations():
        decision = next_deed(now)
        if decision.deed in (Deed.WAIT, Deed.REFUSE, Deed.AWAIT_NODE, Deed.DRAIN):
            assert decision.why, now


def deeds_of(now: Situation) -> list[Deed]:
    """What is done one after the other, each deed taken to succeed."""
    found = []
    while True:
        deed = next_deed(now).deed
        found.append(deed)
        if deed is Deed.CORDON and now.node:
            now = replace(
                now, node=replace(now.node, is_cordoned=True), is_cordoned_by_us=True, pods=3
            )
        elif deed is Deed.DRAIN:
            now = replace(now, pods=0)
        elif deed is Deed.APPLY:
            now = replace(now, steps=())
        elif deed is Deed.AWAIT_NODE:
            cordoned = now.node is not None and now.node.is_cordoned
            now = replace(now, node=NodeNow("win", True, cordoned, "containerd://2.1"))
        elif deed is Deed.UNCORDON and now.node:
            now = replace(now, node=replace(now.node, is_cordoned=False), is_cordoned_by_us=False)
        elif deed is Deed.REMOVE:
            now = replace(now, steps=())
        elif deed is Deed.DELETE_NODE:
            now = replace(now, node=None)
        else:
            return found


def test_the_ways_of_a_new_one_of_docker_s_and_of_one_that_leaves() -> None:
    docker = NodeNow("win", True, False, "docker://20.10")
    changed = [Deed.CORDON, Deed.DRAIN, Deed.APPLY, Deed.AWAIT_NODE, Deed.UNCORDON, Deed.REST]
    assert deeds_of(Situation((PUT,))) == [Deed.APPLY, Deed.AWAIT_NODE, Deed.REST]
    assert deeds_of(Situation((PUT,), docker, turn=Turn(True))) == changed
    leaving = Situation((PUT,), docker, is_leaving=True)
    last = [Deed.REMOVE, Deed.DELETE_NODE, Deed.LET_GO]
    assert deeds_of(leaving) == [Deed.CORDON, Deed.DRAIN, *last]


def test_every_way_comes_to_an_end() -> None:
    for now in situations():
        assert len(deeds_of(now)) <= 7, now


def test_a_service_that_stopped_is_started_and_a_token_put_without_a_drain() -> None:
    token = replace(PUT, target=paths.BOOTSTRAP_KUBECONFIG)
    assert not disturbs_pods((START, token))
    assert disturbs_pods((START, PUT))
