"""The network configuration of a guest from a CNI result."""

import pytest

from winpod.compute.errors import MicroVmFailed
from winpod.compute.hypervisor.tap_network import GuestNetworkConfig, read_cni_result

_IPS = [{"interface": 2, "address": "10.1.2.3/24", "gateway": "10.1.2.1"}]
_RESULT = {
    "interfaces": [
        {"name": "cni0", "mac": "aa:00:00:00:00:01"},
        {"name": "veth1", "mac": "aa:00:00:00:00:02"},
        {"name": "eth0", "mac": "aa:00:00:00:00:03", "sandbox": "/run/netns/x", "mtu": 1450},
    ],
    "ips": _IPS,
}


def test_guest_has_the_ip_and_mac_address_of_the_pods_interface() -> None:
    assert read_cni_result("eth0", _RESULT) == GuestNetworkConfig(
        "aa:00:00:00:00:03", 1450, ("10.1.2.3/24",), ("10.1.2.1",)
    )


def test_addresses_of_other_interfaces_are_ignored() -> None:
    other = {"interface": 0, "address": "10.9.9.9/24"}
    result = {**_RESULT, "ips": [other, *_IPS]}
    assert read_cni_result("eth0", result).addresses == ("10.1.2.3/24",)


def test_default_mtu_is_that_of_ethernet() -> None:
    interfaces = [{"name": "eth0", "mac": "aa:00:00:00:00:03", "sandbox": "/x"}]
    assert read_cni_result("eth0", {"interfaces": interfaces}).mtu == 1500


def test_missing_interface_is_reported() -> None:
    with pytest.raises(MicroVmFailed, match="no interface eth0 in the pod"):
        read_cni_result("eth0", {"interfaces": [{"name": "eth0"}]})
