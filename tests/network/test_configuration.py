"""Reading CNI configurations, and what is asked of an attachment. No plugin runs here."""

import json
from pathlib import Path
from typing import Any

import pytest

from winpod.network.attachments import Attachment, PortMapping, read_result
from winpod.network.configuration import Directory, parse_network
from winpod.network.errors import NoNetwork
from winpod.windows.errors import InvalidInput


def network(**keys: Any) -> bytes:
    return json.dumps({"name": "net", "plugins": [{"type": "bridge"}], **keys}).encode()


def test_the_first_file_by_name_is_the_network(tmp_path: Path) -> None:
    directory = Directory(tmp_path)
    (tmp_path / "20-b.conflist").write_bytes(network(name="b"))
    assert directory.network().name == "b"
    (tmp_path / "10-a.conflist").write_bytes(network(name="a"))
    (tmp_path / "00-readme.txt").write_text("not one")
    (tmp_path / "05-directory.conflist").mkdir()
    assert directory.network().name == "a"
    (tmp_path / "10-a.conflist").write_bytes(network(name="other"))
    assert directory.network().name == "other"
    (tmp_path / "10-a.conflist").unlink()
    assert directory.network().name == "b"
    (tmp_path / "20-b.conflist").unlink()
    with pytest.raises(NoNetwork, match="has no CNI configuration"):
        directory.network()


def test_a_directory_that_is_not_there_has_no_network(tmp_path: Path) -> None:
    with pytest.raises(NoNetwork, match="has no CNI configuration"):
        Directory(tmp_path / "nowhere").network()


@pytest.mark.parametrize("ending", ["conf", "json"])
def test_a_single_plugin_is_a_list_of_one(tmp_path: Path, ending: str) -> None:
    document = {"cniVersion": "0.4.0", "name": "net", "type": "ptp"}
    (tmp_path / f"10-net.{ending}").write_text(json.dumps(document))
    found = Directory(tmp_path).network()
    assert (found.name, found.version) == ("net", "0.4.0")
    assert [plugin.type for plugin in found.plugins] == ["ptp"]
    assert parse_network(found.data, "again").plugins == found.plugins


def test_further_plugins_come_from_the_networks_own_directory(tmp_path: Path) -> None:
    path = tmp_path / "10-net.conflist"
    path.write_bytes(network())
    directory = Directory(tmp_path)
    assert len(directory.network().plugins) == 1
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "1.conf").write_text('{"type": "tuning"}')
    found = directory.network()
    assert [plugin.type for plugin in found.plugins] == ["bridge", "tuning"]
    assert parse_network(found.data, "cached").plugins == found.plugins
    path.write_bytes(network(loadOnlyInlinedPlugins=True))
    assert len(directory.network().plugins) == 1


@pytest.mark.parametrize(
    ("keys", "version"),
    [
        ({}, "0.1.0"),
        ({"cniVersion": "1.0.0"}, "1.0.0"),
        ({"cniVersion": "0.4.0", "cniVersions": ["1.0.0", "1.1.0", "1.2.0"]}, "1.1.0"),
        ({"cniVersion": "2.0.0", "cniVersions": ["1.0.0"]}, "1.0.0"),
    ],
)
def test_the_newest_version_known_here_is_spoken(keys: dict[str, Any], version: str) -> None:
    assert parse_network(network(**keys), "file").version == version


@pytest.mark.parametrize("value", [True, "true", "True"])
def test_checks_are_turned_off_by_a_boolean_or_its_name(value: object) -> None:
    assert not parse_network(network(disableCheck=value), "file").check
    assert parse_network(network(disableCheck="false"), "file").check


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"{", r"it is not JSON \(.*line 1 column 2"),
        (b"\xff\xfe", "it is not JSON"),
        (b"[]", "it is not a JSON object"),
        (b"{}", "its name is null"),
        (network(name="../x"), "its name is"),
        (network(plugins=[]), "it names no plugins"),
        (network(plugins={}), "it names no plugins"),
        (network(plugins="bridge"), "plugins is not a list of objects"),
        (network(plugins=["bridge"]), "plugins is not a list of objects"),
        (network(plugins=[{}]), "the type of a plugin is null"),
        (network(plugins=[{"type": "../../bin/sh"}]), "the type of a plugin is"),
        (
            network(plugins=[{"type": "a", "ipam": []}, {"type": "b", "ipam": "x"}]),
            "ipam of plugin b",
        ),
        (network(plugins=[{"type": "a", "capabilities": ["x"]}]), "capabilities of plugin a"),
        (network(cniVersion="new"), "its cniVersion is not a version"),
        (network(cniVersion=1), "its cniVersion is not a version"),
        (network(cniVersion="3.0.0"), "it is of CNI version 3.0.0"),
        (network(disableGC=3), "disableGC is 3 instead of true or false"),
    ],
)
def test_what_cannot_be_used_is_named_with_its_file(
    tmp_path: Path, text: bytes, reason: str
) -> None:
    (tmp_path / "10-net.conflist").write_bytes(text)
    with pytest.raises(NoNetwork, match=rf"10-net.conflist cannot be used: {reason}"):
        Directory(tmp_path).network()


@pytest.mark.parametrize(
    ("result", "addresses"),
    [
        ({}, ()),
        ({"ips": [{"address": "10.0.0.2/24"}]}, ("10.0.0.2",)),
        ({"ips": [{"address": "fd00::2/64"}, {"address": "10.0.0.2/24"}]}, ("10.0.0.2", "fd00::2")),
        ({"ip4": {"ip": "10.0.0.2/24"}, "ip6": {"ip": "fd00::2/64"}}, ("10.0.0.2", "fd00::2")),
        (
            {
                "interfaces": [{"name": "br0"}, {"name": "eth0", "sandbox": "/n"}],
                "ips": [
                    {"address": "10.0.0.1/24", "interface": 0},
                    {"address": "10.0.0.2/24", "interface": 1},
                ],
            },
            ("10.0.0.2",),
        ),
    ],
)
def test_the_addresses_of_a_sandbox_are_those_of_its_interface(
    result: dict[str, Any], addresses: tuple[str, ...]
) -> None:
    attached = read_result("net", "eth0", result)
    assert attached.addresses == addresses
    assert attached.ip == (addresses[0] if addresses else "")


@pytest.mark.parametrize(
    "ports",
    [
        {"container_port": 0},
        {"container_port": 65536},
        {"container_port": 80, "host_port": -1},
        {"container_port": 80, "protocol": "icmp"},
        {"container_port": 80, "host_ip": "localhost"},
    ],
)
def test_a_port_mapping_is_of_ports(ports: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        PortMapping(**ports)


def test_an_attachment_is_of_a_sandbox() -> None:
    with pytest.raises(InvalidInput, match="cannot be the id"):
        Attachment("../one")
    with pytest.raises(InvalidInput, match="not an IP address"):
        Attachment("one", ips=("nowhere",))
