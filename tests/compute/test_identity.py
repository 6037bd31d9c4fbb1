"""What a container's Windows believes of its name and its resolver."""

from pathlib import Path

import pytest

from winpod.compute.backend import SandboxAsked
from winpod.compute.identity import computer_name, names_of, resolver_file, resolver_of
from winpod.images.wine_registry import Value

POD = SandboxAsked("id", "web-0", ("10.0.0.10",), ("shop.svc", "svc"), ("ndots:5",))


def test_a_computer_name_is_short_and_in_capitals() -> None:
    assert computer_name("web-0") == "WEB-0"
    assert computer_name("a-very-long-name-of-a-pod") == "A-VERY-LONG-NAM"


def test_the_registry_has_the_pods_names_and_servers() -> None:
    told = {(change.key.rpartition("\\")[2], change.name): change.data for change in names_of(POD)}
    assert told["ComputerName", "ComputerName"] == Value.text("WEB-0").data
    assert told["ActiveComputerName", "ComputerName"] == Value.text("WEB-0").data
    assert told["Parameters", "Hostname"] == Value.text("web-0").data
    assert told["Parameters", "NameServer"] == Value.text("10.0.0.10").data
    assert told["Parameters", "SearchList"] == Value.text("shop.svc,svc").data


def test_the_resolver_is_the_pods() -> None:
    assert resolver_file(POD) == "nameserver 10.0.0.10\nsearch shop.svc svc\noptions ndots:5\n"


@pytest.mark.parametrize(
    ("text", "servers", "searches"),
    [
        ("nameserver 10.0.0.2\nsearch a b\n", ["10.0.0.2"], ["a", "b"]),
        ("nameserver 127.0.0.53\nnameserver fd00::1\n", ["fd00::1"], []),
        ("nameserver ::1%lo\nnameserver\nnameserver none\n", [], []),
        ("domain a\nsearch b c\n# nameserver 10.0.0.9\n", [], ["b", "c"]),
        (None, [], []),
    ],
)
def test_a_pod_that_names_no_server_has_the_machines_that_it_can_reach(
    tmp_path: Path,
    text: str | None,
    servers: list[str],
    searches: list[str],
) -> None:
    machine = tmp_path / "resolv.conf"
    if text is not None:
        machine.write_text(text)
    assert resolver_of(SandboxAsked("id", "web"), machine) == (servers, searches)
