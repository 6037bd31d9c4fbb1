"""Inventory entries of the ConfigMap, and the messages for invalid ones."""

import pytest

from winpod.instances.cluster.inventory import (
    InvalidEntry,
    Inventory,
    InventoryEntry,
    deduplicate,
    read_inventory,
)

GOOD = {
    ("10.0.0.5", "username=Administrator"): InventoryEntry("10.0.0.5", "10.0.0.5", "Administrator"),
    ("win-a.example", "username=admin"): InventoryEntry("win-a.example", "win-a.example", "admin"),
    ("WIN-B", "username=admin"): InventoryEntry("win-b", "win-b", "admin"),
    ("10.0.0.5", " username=admin\n"): InventoryEntry("10.0.0.5", "10.0.0.5", "admin"),
    ("10.0.0.5", "username=admin,port=2222"): InventoryEntry("10.0.0.5", "10.0.0.5", "admin", 2222),
    ("10.0.0.5", "port=2222\nusername=admin"): InventoryEntry(
        "10.0.0.5", "10.0.0.5", "admin", 2222
    ),
    ("10.0.0.5", "username=CORP\\admin"): InventoryEntry("10.0.0.5", "10.0.0.5", "CORP\\admin"),
}
BAD = {
    ("10.0.0.300", "username=admin"): "neither an IPv4 address nor a DNS name",
    ("10.0.0", "username=admin"): "neither an IPv4 address nor a DNS name",
    ("-a", "username=admin"): "neither an IPv4 address nor a DNS name",
    ("a..b", "username=admin"): "neither an IPv4 address nor a DNS name",
    ("a_b", "username=admin"): "neither an IPv4 address nor a DNS name",
    ("a" * 64, "username=admin"): "neither an IPv4 address nor a DNS name",
    ("10.0.0.5", ""): "the username is missing",
    ("10.0.0.5", "username"): '"username" is not valid',
    ("10.0.0.5", "username="): "username is empty",
    ("10.0.0.5", "admin"): '"admin" is not valid',
    ("10.0.0.5", "username=admin password=x"): "is not valid",
    ("10.0.0.5", "username=a username=b"): "username is set twice",
    ("10.0.0.5", "username=a;b"): "is not a valid Windows user name",
    ("10.0.0.5", "username=a\\b\\c"): "is not a valid Windows user name",
    ("10.0.0.5", "username=CORP\\"): "is not a valid Windows user name",
    ("10.0.0.5", "username=" + "a" * 105): "is not a valid Windows user name",
    ("10.0.0.5", "username=admin port=0"): "must be a number from 1 to 65535",
    ("10.0.0.5", "username=admin port=65536"): "must be a number from 1 to 65535",
    ("10.0.0.5", "username=admin port=x"): "must be a number from 1 to 65535",
    ("10.0.0.5", "username=admin port="): "port is empty",
}


@pytest.mark.parametrize(("entry", "expected"), GOOD.items(), ids=str)
def test_entry_has_address_and_user(entry: tuple[str, str], expected: InventoryEntry) -> None:
    assert read_inventory(dict([entry])) == Inventory((expected,))


@pytest.mark.parametrize(("entry", "problem"), BAD.items(), ids=str)
def test_invalid_entry_is_reported_and_does_not_affect_others(
    entry: tuple[str, str], problem: str
) -> None:
    inventory = read_inventory({"good": "username=admin", **dict([entry])})
    assert [item.name for item in inventory.valid] == ["good"]
    (bad,) = inventory.invalid
    assert bad.key == entry[0]
    assert problem in bad.problem


def test_names_that_differ_in_case_are_duplicates() -> None:
    inventory = read_inventory({"WIN": "username=a", "win": "username=b"})
    assert [(item.name, item.username) for item in inventory.valid] == [("win", "a")]
    assert inventory.invalid == (
        InvalidEntry("win", '"win" is defined twice, in different case. Remove one.'),
    )


def test_entry_with_the_address_of_a_machine_is_invalid() -> None:
    entries = read_inventory({"10.0.0.5": "username=a", "10.0.0.6": "username=a"})
    machine = InventoryEntry("machine-m", "10.0.0.5", "Administrator", machine="m")
    inventory = deduplicate(entries, [machine])
    assert {item.name for item in inventory.valid} == {"10.0.0.6", "machine-m"}
    assert [bad.key for bad in inventory.invalid] == ["10.0.0.5"]
    assert "Machine m's" in inventory.invalid[0].problem
