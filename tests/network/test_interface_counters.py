"""Selection and order of the host's interfaces in the counters."""

from winpod.network.netns import host_interfaces, parse_counters

DEVICES = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo: 900 9 0 0 0 0 0 0 900 9 0 0 0 0 0 0
vethab12: 50 1 0 0 0 0 0 0 60 1 0 0 0 0 0 0
cni0: 10 1 0 0 0 0 0 0 20 1 0 0 0 0 0 0
  eth1: 700 7 2 3 0 0 0 0 800 8 4 5 0 0 0 0
"""  # noqa: E501 - the kernel's format
ROUTES = """\
Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT
cni0\t0000F40A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
eth1\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0
"""


def test_default_route_interface_is_first_and_pod_veths_are_skipped() -> None:
    first, second = host_interfaces(parse_counters(DEVICES), ROUTES)
    assert (first.interface, second.interface) == ("eth1", "cni0")
    assert (first.received_bytes, first.receive_errors, first.received_dropped) == (700, 2, 3)
    assert (first.sent_bytes, first.send_errors, first.sent_dropped) == (800, 4, 5)


def test_host_without_default_route_reports_its_interfaces() -> None:
    named = [counters.interface for counters in host_interfaces(parse_counters(DEVICES), "Iface\n")]
    assert named == ["cni0", "eth1"]
