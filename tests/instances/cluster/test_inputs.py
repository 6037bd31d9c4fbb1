"""Entries of the ConfigMap: each judged on its own, with a sentence of what to write instead."""

import pytest

from winpod.instances.cluster.inputs import Asked, BadEntry, Entries, read_entries, without_doubles

GOOD = {
    ("10.0.0.5", "username=Administrator"): Asked("10.0.0.5", "10.0.0.5", "Administrator"),
    ("win-a.example", "username=admin"): Asked("win-a.example", "win-a.example", "admin"),
    ("WIN-B", "username=admin"): Asked("win-b", "win-b", "admin"),
    ("10.0.0.5", " username=admin\n"): Asked("10.0.0.5", "10.0.0.5", "admin"),
    ("10.0.0.5", "username=admin,port=2222"): Asked("10.0.0.5", "10.0.0.5", "admin", 2222),
    ("10.0.0.5", "port=2222\nusername=admin"): Asked("10.0.0.5", "10.0.0.5", "admin", 2222),
    ("10.0.0.5", "username=CORP\\admin"): Asked("10.0.0.5", "10.0.0.5", "CORP\\admin"),
}
BAD = {
    ("10.0.0.300", "username=admin"): "neither an IPv4 address nor a DNS name",
    ("10.0.0", "username=admin"): "neither an IPv4 address nor a DNS name",
    ("-a", "username=admin"): "neither an IPv4 address nor a DNS name",
    ("a..b", "username=admin"): "neither an IPv4 address nor a DNS name",
    ("a_b", "username=admin"): "neither an IPv4 address nor a DNS name",
    ("a" * 64, "username=admin"): "neither an IPv4 address nor a DNS name",
    ("10.0.0.5", ""): "the user is not named",
    ("10.0.0.5", "username"): '"username" is not understood',
    ("10.0.0.5", "username="): "username is empty",
    ("10.0.0.5", "admin"): '"admin" is not understood',
    ("10.0.0.5", "username=admin password=x"): "is not understood",
    ("10.0.0.5", "username=a username=b"): "username is there twice",
    ("10.0.0.5", "username=a;b"): "cannot be the name of a Windows user",
    ("10.0.0.5", "username=a\\b\\c"): "cannot be the name of a Windows user",
    ("10.0.0.5", "username=CORP\\"): "cannot be the name of a Windows user",
    ("10.0.0.5", "username=" + "a" * 105): "cannot be the name of a Windows user",
    ("10.0.0.5", "username=admin port=0"): "must be a number from 1 to 65535",
    ("10.0.0.5", "username=admin port=65536"): "must be a number from 1 to 65535",
    ("10.0.0.5", "username=admin port=x"): "must be a number from 1 to 65535",
    ("10.0.0.5", "username=admin port="): "port is empty",
}


@pytest.mark.parametrize(("entry", "asked"), GOOD.items(), ids=str)
def test_an_entry_is_an_address_and_who_administers_it(
    entry: tuple[str, str], asked: Asked
) -> None:
    assert read_entries(dict([entry])) == Entries((asked,))


@pytest.mark.parametrize(("entry", "problem"), BAD.items(), ids=str)
def test_a_bad_entry_is_told_and_stops_no_other(entry: tuple[str, str], problem: str) -> None:
    found = read_entries({"good": "username=admin", **dict([entry])})
    assert [asked.name for asked in found.asked] == ["good"]
    (bad,) = found.bad
    assert bad.key == entry[0]
    assert problem in bad.problem


def test_one_name_in_other_letters_is_one_instance_and_told() -> None:
    found = read_entries({"WIN": "username=a", "win": "username=b"})
    assert [(asked.name, asked.username) for asked in found.asked] == [("win", "a")]
    assert found.bad == (BadEntry("win", '"win" is there twice, in other letters. Remove one.'),)


def test_an_entry_whose_address_is_a_machine_s_is_left_to_the_machine() -> None:
    entries = read_entries({"10.0.0.5": "username=a", "10.0.0.6": "username=a"})
    machine = Asked("machine-m", "10.0.0.5", "Administrator", machine="m")
    found = without_doubles(entries, [machine])
    assert {asked.name for asked in found.asked} == {"10.0.0.6", "machine-m"}
    assert [bad.key for bad in found.bad] == ["10.0.0.5"]
    assert "Machine m's" in found.bad[0].problem
