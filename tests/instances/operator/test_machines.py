"""Machines: which are instances, and when one may be replaced."""

from typing import Any

import msgspec
import pytest

from winpod.instances.cluster.inputs import Asked
from winpod.instances.operator.machines import Machine, MachineSet, asked_of, crowd, hold

OWN = [
    {"type": "InternalIP", "address": "10.0.0.5"},
    {"type": "InternalIP", "address": "fd00::5"},
    {"type": "Hostname", "address": "win-5"},
]


def machine(addresses: list[dict[str, str]], **metadata: Any) -> Machine:
    document = {"metadata": {"name": "m", **metadata}, "status": {"addresses": addresses}}
    return msgspec.convert(document, Machine)


def test_a_machine_is_an_instance_once_it_has_an_address_and_until_it_leaves() -> None:
    known = ("10.0.0.5", "fd00::5", "win-5")
    expected = Asked("machine-m", "10.0.0.5", "capi", machine="m", addresses=known)
    assert asked_of(machine(OWN), "capi") == expected
    assert asked_of(machine([]), "capi") is None
    assert asked_of(machine(OWN[1:]), "capi") is None
    assert asked_of(machine(OWN, deletionTimestamp="2026-11-16T00:00:00Z"), "capi") is None


def test_a_machine_knows_its_set() -> None:
    owners = [{"kind": "Other", "name": "x"}, {"kind": "MachineSet", "name": "s"}]
    assert machine(OWN, ownerReferences=owners).owner == "s"
    assert machine(OWN).owner == ""


@pytest.mark.parametrize(
    ("ready", "wanted", "word"), [(3, 3, ""), (2, 3, "2 of 3"), (0, 1, "0 of 1"), (0, 0, "")]
)
def test_a_machine_is_replaced_only_where_its_set_is_whole(
    ready: int, wanted: int, word: str
) -> None:
    found = msgspec.convert(
        {"spec": {"replicas": wanted}, "status": {"readyReplicas": ready}}, MachineSet
    )
    said = hold("m", "s", found)
    assert word in said
    assert bool(said) == bool(word)


def test_a_machine_that_nobody_would_make_again_is_not_deleted() -> None:
    assert "belongs to no MachineSet" in hold("m", "", None)
    assert "belongs to no MachineSet" in hold("m", "s", None)


def of_set(name: str, owner: str, *, is_leaving: bool = False) -> Machine:
    leaving = {"deletionTimestamp": "2026-11-17T00:00:00Z"} if is_leaving else {}
    owners = [{"kind": "MachineSet", "name": owner}]
    return machine(OWN, name=name, ownerReferences=owners, **leaving)


STAYS = (of_set("a-1", "a"), of_set("a-2", "a"), of_set("b-1", "b"))
LEAVES, COMES = of_set("a-0", "a", is_leaving=True), of_set("a-3", "a")
B_LEAVES = of_set("b-0", "b", is_leaving=True)
NODES = {"a-0", "a-1", "a-2", "b-0", "b-1"}


@pytest.mark.parametrize(
    ("machines", "missing", "turns", "limit", "words"),
    [
        ((), {}, (), 1, ""),
        ((), {}, ("10.0.0.9",), 1, ""),
        ((LEAVES,), {}, (), 1, "one Machine is replaced at a time, and now Machine a-0 leaves"),
        ((LEAVES,), {}, ("machine-a-0",), 2, ""),
        ((LEAVES,), {}, ("machine-b-1",), 2, "Machine a-0 leaves"),
        ((LEAVES,), {}, ("10.0.0.9",), 2, "2 Machines are replaced at a time"),
        ((COMES,), {}, (), 1, "Machine a-3 is not a ready node yet"),
        ((), {"a": 1}, (), 1, "MachineSet a has to make another"),
        ((LEAVES, COMES), {}, (), 2, ""),
        ((LEAVES,), {"a": 1}, (), 2, ""),
        ((LEAVES, B_LEAVES), {}, (), 2, "Machine a-0 leaves, Machine b-0 leaves"),
        ((LEAVES, B_LEAVES), {}, (), 3, ""),
        ((LEAVES,), {"b": 1}, (), 2, "Machine a-0 leaves, MachineSet b has to make another"),
        ((COMES,), {"a": 1}, (), 2, "Machine a-3 is not a ready node yet"),
    ],
)
def test_no_more_machines_are_on_their_way_than_may_change_at_a_time(
    machines: tuple[Machine, ...],
    missing: dict[str, int],
    turns: tuple[str, ...],
    limit: int,
    words: str,
) -> None:
    said = crowd((*STAYS, *machines), NODES, missing, turns, limit)
    assert words in said
    assert bool(said) == bool(words)
