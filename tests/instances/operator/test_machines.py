"""Machines: which are instances, and when one may be replaced."""

from typing import Any

import msgspec
import pytest

from winpod.instances.cluster.inputs import Asked
from winpod.instances.operator.machines import Machine, MachineSet, asked_of, hold

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
