"""A guest is told of its network what the CNI plugins answered."""

import pytest

from winpod.compute.errors import MachineFailed
from winpod.compute.hypervisor.links import Link, read_link

_IPS = [{"interface": 2, "address": "10.1.2.3/24", "gateway": "10.1.2.1"}]
_RESULT = {
    "interfaces": [
        {"name": "cni0", "mac": "aa:00:00:00:00:01"},
        {"name": "veth1", "mac": "aa:00:00:00:00:02"},
        {"name": "eth0", "mac": "aa:00:00:00:00:03", "sandbox": "/run/netns/x", "mtu": 1450},
    ],
    "ips": _IPS,
}


def test_the_guest_has_the_address_and_hardware_address_of_the_pods_interface() -> None:
    assert read_link("eth0", _RESULT) == Link(
        "aa:00:00:00:00:03", 1450, ("10.1.2.3/24",), ("10.1.2.1",)
    )


def test_addresses_of_other_interfaces_are_not_the_guests() -> None:
    other = {"interface": 0, "address": "10.9.9.9/24"}
    result = {**_RESULT, "ips": [other, *_IPS]}
    assert read_link("eth0", result).addresses == ("10.1.2.3/24",)


def test_without_a_size_packets_are_as_large_as_ethernets() -> None:
    interfaces = [{"name": "eth0", "mac": "aa:00:00:00:00:03", "sandbox": "/x"}]
    assert read_link("eth0", {"interfaces": interfaces}).mtu == 1500


def test_a_pod_without_the_interface_is_a_sentence() -> None:
    with pytest.raises(MachineFailed, match="no interface eth0 in the pod"):
        read_link("eth0", {"interfaces": [{"name": "eth0"}]})
