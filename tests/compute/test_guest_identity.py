"""The hostname and DNS configuration of a container's Windows."""

from pathlib import Path

import pytest

from winpod.compute.backend import SandboxSpec
from winpod.compute.guest_identity import (
    computer_name,
    dns_configuration,
    hostname_values,
    resolv_conf,
)
from winpod.images.winreg.wine_registry import RegistryValue

POD = SandboxSpec("id", "web-0", ("10.0.0.10",), ("shop.svc", "svc"), ("ndots:5",))


def test_computer_name_is_truncated_and_upper_case() -> None:
    assert computer_name("web-0") == "WEB-0"
    assert computer_name("a-very-long-name-of-a-pod") == "A-VERY-LONG-NAM"


def test_registry_has_the_pods_hostname_and_dns() -> None:
    values = {
        (change.key.rpartition("\\")[2], change.name): change.data
        for change in hostname_values(POD)
    }
    assert values["ComputerName", "ComputerName"] == RegistryValue.text("WEB-0").data
    assert values["ActiveComputerName", "ComputerName"] == RegistryValue.text("WEB-0").data
    assert values["Parameters", "Hostname"] == RegistryValue.text("web-0").data
    assert values["Parameters", "NameServer"] == RegistryValue.text("10.0.0.10").data
    assert values["Parameters", "SearchList"] == RegistryValue.text("shop.svc,svc").data


def test_resolv_conf_has_the_pods_dns() -> None:
    assert resolv_conf(POD) == "nameserver 10.0.0.10\nsearch shop.svc svc\noptions ndots:5\n"


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
def test_pod_without_dns_servers_gets_the_hosts_reachable_ones(
    tmp_path: Path,
    text: str | None,
    servers: list[str],
    searches: list[str],
) -> None:
    host_file = tmp_path / "resolv.conf"
    if text is not None:
        host_file.write_text(text)
    assert dns_configuration(SandboxSpec("id", "web"), host_file) == (servers, searches)
