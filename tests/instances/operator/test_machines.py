"""Machines: which are instances, and when one may be replaced."""

from collections.abc import Iterable
from itertools import product
from typing import Any

import msgspec
import pytest

from winpod.instances.cluster.inventory import InventoryEntry
from winpod.instances.operator.machines import (
    Machine,
    MachineSet,
    inventory_entry_of,
    pending_replacements,
    replacement_blocker,
)

OWN = [
    {"type": "InternalIP", "address": "10.0.0.5"},
    {"type": "InternalIP", "address": "fd00::5"},
    {"type": "Hostname", "address": "win-5"},
]
LABEL, LEFT = "machine.openshift.io/os-id", "2026-11-17T00:00:00Z"


def machine(addresses: list[dict[str, str]], **metadata: Any) -> Machine:
    found = {"name": "m", "labels": {LABEL: "Windows"}, **metadata}
    return msgspec.convert({"metadata": found, "status": {"addresses": addresses}}, Machine)


def test_machine_is_an_instance_while_it_has_an_address_and_is_not_deleted() -> None:
    known = ("10.0.0.5", "fd00::5", "win-5")
    expected = InventoryEntry("machine-m", "10.0.0.5", "capi", machine="m", addresses=known)
    assert inventory_entry_of(machine(OWN), "capi") == expected
    assert inventory_entry_of(machine([]), "capi") is None
    assert inventory_entry_of(machine(OWN[1:]), "capi") is None
    assert inventory_entry_of(machine(OWN, deletionTimestamp=LEFT), "capi") is None
    assert inventory_entry_of(machine(OWN, labels={LABEL: "Linux"}), "capi") is None


def test_machine_has_its_owner() -> None:
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
    ("ready", "replicas", "reason"), [(3, 3, ""), (2, 3, "2 of 3"), (0, 1, "0 of 1"), (0, 0, "")]
)
def test_machine_is_replaced_only_if_its_set_is_complete(
    ready: int, replicas: int, reason: str
) -> None:
    messages = replacement_blocker(machine(OWN), machine_set(replicas=replicas, ready=ready))
    assert reason in messages
    assert bool(messages) == bool(reason)


@pytest.mark.parametrize(
    ("owner", "reason"),
    [
        (None, "belongs to no MachineSet"),
        (machine_set(deletionTimestamp=LEFT), "belongs to no MachineSet"),
        (machine_set(makes="Linux"), "the template of MachineSet s has no label"),
    ],
)
def test_machine_that_would_not_be_replaced_is_not_deleted(
    owner: MachineSet | None, reason: str
) -> None:
    assert reason in replacement_blocker(machine(OWN), owner)


STATES = ("node", "new", "leaves", "taken out")
"""States of a Machine in a MachineSet; `taken out` has lost the Windows label."""


def machines_of_set(owner: str, states: Iterable[str]) -> list[Machine]:
    owners = [{"kind": "MachineSet", "name": owner}]
    overrides: dict[str, dict[str, Any]] = {
        "leaves": {"deletionTimestamp": LEFT},
        "taken out": {"labels": {}},
    }
    return [
        machine(
            OWN, name=f"{owner}-{state}-{at}", ownerReferences=owners, **overrides.get(state, {})
        )
        for at, state in enumerate(states)
    ]


def nodes_of(machines: Iterable[Machine]) -> set[str]:
    """Machines that are or were ready nodes."""
    return {one.name for one in machines if "-node-" in one.name or "-leaves-" in one.name}


def test_missing_nodes_of_a_set_are_listed_in_every_state() -> None:
    """One message per missing node: new, being deleted, or not created yet."""
    for count, replicas in product(range(4), range(4)):
        for states in product(STATES, repeat=count):
            own = machines_of_set("a", states)
            present = sum(state in ("node", "taken out") for state in states)
            messages = pending_replacements(own, [machine_set("a", replicas)], nodes_of(own))
            assert len(messages) == max(0, replicas - present), (states, replicas)
            new = sum("is not a ready node yet" in one for one in messages)
            assert new == min(states.count("new"), len(messages)), (states, replicas)
            going = sum(one.endswith(" is being deleted") for one in messages)
            assert going == min(states.count("leaves"), len(messages) - new), (states, replicas)
            to_make = messages.count("MachineSet a has to create a Machine")
            assert to_make == len(messages) - new - going, (states, replicas)


NEW = "Machine a-new-0 is not a ready node yet"


@pytest.mark.parametrize(
    ("sets", "machines", "messages"),
    [
        ((), (), []),
        ((), machines_of_set("a", ("leaves", "new")), []),
        ((machine_set("a"),), machines_of_set("a", ("node",)), []),
        (
            (machine_set("a"),),
            machines_of_set("a", ("leaves",)),
            ["Machine a-leaves-0 is being deleted"],
        ),
        ((machine_set("a"),), (), ["MachineSet a has to create a Machine"]),
        ((machine_set("a"),), machines_of_set("a", ("new", "leaves")), [NEW]),
        ((machine_set("a"),), machines_of_set("a", ("node", "leaves")), []),
        ((machine_set("a", 0),), machines_of_set("a", ("leaves",)), []),
        ((machine_set("a", deletionTimestamp=LEFT),), (), []),
        ((machine_set("a", makes="Linux"),), (), []),
        (
            (machine_set("b", 2), machine_set("a")),
            (*machines_of_set("b", ("node", "leaves")), *machines_of_set("a", ("new",))),
            [NEW, "Machine b-leaves-1 is being deleted"],
        ),
    ],
)
def test_missing_nodes_of_several_sets(
    sets: tuple[MachineSet, ...], machines: Iterable[Machine], messages: list[str]
) -> None:
    """A set that is scaled down, deleted or not for Windows lacks nothing."""
    assert pending_replacements(machines, sets, nodes_of(machines)) == messages


def test_machines_without_a_set_are_not_missing_nodes() -> None:
    alone = [machine(OWN, name="x"), machine(OWN, name="y", deletionTimestamp=LEFT)]
    assert pending_replacements(alone, [machine_set("a", 0)], ()) == []
