"""Machines: which are instances, and when one may be replaced."""

from collections.abc import Iterable
from itertools import product
from typing import Any

import msgspec
import pytest

from winpod.instances.cluster.inputs import Asked
from winpod.instances.operator.machines import Machine, MachineSet, asked_of, hold, under_way

OWN = [
    {"type": "InternalIP", "address": "10.0.0.5"},
    {"type": "InternalIP", "address": "fd00::5"},
    {"type": "Hostname", "address": "win-5"},
]
LABEL, LEFT = "machine.openshift.io/os-id", "2026-11-17T00:00:00Z"


def machine(addresses: list[dict[str, str]], **metadata: Any) -> Machine:
    found = {"name": "m", "labels": {LABEL: "Windows"}, **metadata}
    return msgspec.convert({"metadata": found, "status": {"addresses": addresses}}, Machine)


def test_a_machine_is_an_instance_once_it_has_an_address_and_until_it_leaves() -> None:
    known = ("10.0.0.5", "fd00::5", "win-5")
    expected = Asked("machine-m", "10.0.0.5", "capi", machine="m", addresses=known)
    assert asked_of(machine(OWN), "capi") == expected
    assert asked_of(machine([]), "capi") is None
    assert asked_of(machine(OWN[1:]), "capi") is None
    assert asked_of(machine(OWN, deletionTimestamp=LEFT), "capi") is None
    assert asked_of(machine(OWN, labels={LABEL: "Linux"}), "capi") is None


def test_a_machine_knows_its_set() -> None:
    owners = [{"kind": "Other", "name": "x"}, {"kind": "MachineSet", "name": "s"}]
    assert machine(OWN, ownerReferences=owners).owner == "s"
    assert machine(OWN).owner == ""


def machine_set(
    name: str = "s", replicas: int = 1, ready: int = 1, *, makes: str = "Windows", **metadata: Any
) -> MachineSet:
    template = {"metadata": {"labels": {LABEL: makes}}}
    document = {
        "metadata": {"name": name, **metadata},
        "spec": {"replicas": replicas, "template": template},
        "status": {"readyReplicas": ready},
    }
    return msgspec.convert(document, MachineSet)


@pytest.mark.parametrize(
    ("ready", "wanted", "word"), [(3, 3, ""), (2, 3, "2 of 3"), (0, 1, "0 of 1"), (0, 0, "")]
)
def test_a_machine_is_replaced_only_where_its_set_is_whole(
    ready: int, wanted: int, word: str
) -> None:
    said = hold(machine(OWN), machine_set(replicas=wanted, ready=ready))
    assert word in said
    assert bool(said) == bool(word)


@pytest.mark.parametrize(
    ("owner", "words"),
    [
        (None, "belongs to no MachineSet"),
        (machine_set(deletionTimestamp=LEFT), "belongs to no MachineSet"),
        (machine_set(makes="Linux"), "the template of MachineSet s has no label"),
    ],
)
def test_a_machine_that_nobody_would_make_again_is_not_deleted(
    owner: MachineSet | None, words: str
) -> None:
    assert words in hold(machine(OWN), owner)


STATES = ("node", "new", "leaves", "taken out")
"""Of a Machine that is in a MachineSet; who is taken out is no concern of ours any more."""


def of_set(owner: str, states: Iterable[str]) -> list[Machine]:
    owners = [{"kind": "MachineSet", "name": owner}]
    more: dict[str, dict[str, Any]] = {
        "leaves": {"deletionTimestamp": LEFT},
        "taken out": {"labels": {}},
    }
    return [
        machine(OWN, name=f"{owner}-{state}-{at}", ownerReferences=owners, **more.get(state, {}))
        for at, state in enumerate(states)
    ]


def nodes_of(machines: Iterable[Machine]) -> set[str]:
    """Who leaves was one before."""
    return {one.name for one in machines if "-node-" in one.name or "-leaves-" in one.name}


def test_what_a_set_lacks_is_under_way_however_its_machines_are() -> None:
    """A sentence for each: of those that are new, that leave, and that are still to be made."""
    for count, replicas in product(range(4), range(4)):
        for states in product(STATES, repeat=count):
            own = of_set("a", states)
            there = sum(state in ("node", "taken out") for state in states)
            said = under_way(own, [machine_set("a", replicas)], nodes_of(own))
            assert len(said) == max(0, replicas - there), (states, replicas)
            new = sum("is not a ready node yet" in one for one in said)
            assert new == min(states.count("new"), len(said)), (states, replicas)
            going = sum(one.endswith(" leaves") for one in said)
            assert going == min(states.count("leaves"), len(said) - new), (states, replicas)
            to_make = said.count("MachineSet a has to make another")
            assert to_make == len(said) - new - going, (states, replicas)


NEW = "Machine a-new-0 is not a ready node yet"


@pytest.mark.parametrize(
    ("sets", "machines", "said"),
    [
        ((), (), []),
        ((), of_set("a", ("leaves", "new")), []),
        ((machine_set("a"),), of_set("a", ("node",)), []),
        ((machine_set("a"),), of_set("a", ("leaves",)), ["Machine a-leaves-0 leaves"]),
        ((machine_set("a"),), (), ["MachineSet a has to make another"]),
        ((machine_set("a"),), of_set("a", ("new", "leaves")), [NEW]),
        ((machine_set("a"),), of_set("a", ("node", "leaves")), []),
        ((machine_set("a", 0),), of_set("a", ("leaves",)), []),
        ((machine_set("a", deletionTimestamp=LEFT),), (), []),
        ((machine_set("a", makes="Linux"),), (), []),
        (
            (machine_set("b", 2), machine_set("a")),
            (*of_set("b", ("node", "leaves")), *of_set("a", ("new",))),
            [NEW, "Machine b-leaves-1 leaves"],
        ),
    ],
)
def test_machine_sets_lack_what_they_want_and_have_not(
    sets: tuple[MachineSet, ...], machines: Iterable[Machine], said: list[str]
) -> None:
    """Neither one that is scaled down or deleted, nor one that makes no Windows, lacks any."""
    assert under_way(machines, sets, nodes_of(machines)) == said


def test_who_belongs_to_no_set_is_new_or_leaves_as_any_other_instance_does() -> None:
    alone = [machine(OWN, name="x"), machine(OWN, name="y", deletionTimestamp=LEFT)]
    assert under_way(alone, [machine_set("a", 0)], ()) == []
