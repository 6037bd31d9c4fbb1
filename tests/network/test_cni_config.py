"""Parsing of CNI configurations, capability arguments and results, without plugins."""

import json
from pathlib import Path
from typing import Any

import pytest

from winpod.errors import InvalidInput
from winpod.network.attachments import Attachment, PortMapping, read_result
from winpod.network.cni_config import CniConfigDirectory, parse_network
from winpod.network.errors import NoCniConfig


def network(**keys: Any) -> bytes:
    return json.dumps({"name": "net", "plugins": [{"type": "bridge"}], **keys}).encode()


def test_first_file_by_name_is_the_network(tmp_path: Path) -> None:
    directory = CniConfigDirectory(tmp_path)
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
    with pytest.raises(NoCniConfig, match="has no CNI configuration"):
        directory.network()


def test_missing_directory_has_no_network(tmp_path: Path) -> None:
    with pytest.raises(NoCniConfig, match="has no CNI configuration"):
        CniConfigDirectory(tmp_path / "nowhere").network()


@pytest.mark.parametrize("ending", ["conf", "json"])
def test_single_plugin_file_becomes_a_list_of_one(tmp_path: Path, ending: str) -> None:
    document = {"cniVersion": "0.4.0", "name": "net", "type": "ptp"}
    (tmp_path / f"10-net.{ending}").write_text(json.dumps(document))
    found = CniConfigDirectory(tmp_path).network()
    assert (found.name, found.version) == ("net", "0.4.0")
    assert [plugin.type for plugin in found.plugins] == ["ptp"]
    assert parse_network(found.data, "again").plugins == found.plugins


def test_plugins_are_loaded_from_the_directory_of_the_network(tmp_path: Path) -> None:
    path = tmp_path / "10-net.conflist"
    path.write_bytes(network())
    directory = CniConfigDirectory(tmp_path)
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
def test_newest_supported_version_is_chosen(keys: dict[str, Any], version: str) -> None:
    assert parse_network(network(**keys), "file").version == version


@pytest.mark.parametrize("value", [True, "true", "True"])
def test_disable_check_accepts_booleans_and_strings(value: object) -> None:
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
        (network(plugins=[]), "it lists no plugins"),
        (network(plugins={}), "it lists no plugins"),
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
        (network(cniVersion="3.0.0"), "CNI version 3.0.0 is newer"),
        (network(disableGC=3), "disableGC is 3 instead of true or false"),
    ],
)
def test_invalid_configuration_error_names_the_file(
    tmp_path: Path, text: bytes, reason: str
) -> None:
    (tmp_path / "10-net.conflist").write_bytes(text)
    with pytest.raises(NoCniConfig, match=rf"10-net.conflist cannot be used: {reason}"):
        CniConfigDirectory(tmp_path).network()


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
def test_only_addresses_of_the_sandbox_interface_are_returned(
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
def test_invalid_port_mapping_is_rejected(ports: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        PortMapping(**ports)


def test_invalid_attachment_is_rejected() -> None:
    with pytest.raises(InvalidInput, match="is not a valid sandbox id"):
        Attachment("../one")
    with pytest.raises(InvalidInput, match="not an IP address"):
        Attachment("one", ips=("nowhere",))
