"""Networking with Debian's CNI plugins, in namespaces of the test."""

import asyncio
import json
import socket
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from tests.support.network_machine import (
    NOTHING,
    SUBNET,
    SUBNET_6,
    Machine,
    listen,
    peer_of,
    ping,
    run,
)
from winpod.errors import WinpodError
from winpod.network.attachments import Bandwidth, Dns, PortMapping
from winpod.network.errors import (
    AddressesExhausted,
    AlreadyConnected,
    NotConnected,
    PortNotListening,
)


async def test_sandboxes_reach_each_other_and_are_cleaned_up(machine: Machine) -> None:
    machine.use_default()
    networks = machine.networks()
    one, two = [await networks.connect(machine.attachment(name)) for name in ("one", "two")]
    assert (one.ip, two.ip) == ("10.250.1.2", "10.250.1.3")
    assert ping(networks.netns("one"), two.ip)
    assert ping(networks.netns("two"), one.ip)
    assert ping(networks.netns("one"), "127.0.0.1")
    for name in ("one", "two", "two", "never-there"):
        await networks.disconnect(name)
    assert machine.leftovers() == NOTHING


async def test_outbound_traffic_is_masqueraded(machine: Machine) -> None:
    machine.use_default()
    world = machine.namespaces.create("world")
    run("ip", "link", "add", "near", "type", "veth", "peer", "name", "far")
    run("ip", "link", "set", "far", "netns", str(world))
    run("ip", "addr", "add", "10.251.0.1/24", "dev", "near")
    run("ip", "link", "set", "near", "up")
    run("nsenter", f"--net={world}", "ip", "addr", "add", "10.251.0.2/24", "dev", "far")
    run("nsenter", f"--net={world}", "ip", "link", "set", "far", "up")
    networks = machine.networks()
    await networks.connect(machine.attachment("one"))

    def call_the_world() -> socket.socket:
        return socket.create_connection(("10.251.0.2", 80), timeout=60)

    server = listen(world)
    client = machine.namespaces.run_in("one", call_the_world)
    assert peer_of(server, client) == "10.251.0.1"


async def test_masquerading_uses_one_rule_for_all_sandboxes(machine: Machine) -> None:
    machine.use_default(SUBNET, SUBNET_6)
    for start in ("a", "b"):
        networks = machine.networks()
        names = [f"{start}{number}" for number in range(4)]
        await asyncio.gather(*(networks.connect(machine.attachment(name)) for name in names))
    for tool in ("iptables-save", "ip6tables-save"):
        assert run(tool).count("MASQUERADE") == 1


async def test_dual_stack_addresses_are_ipv4_first(machine: Machine) -> None:
    machine.use_default(SUBNET_6, SUBNET)
    connected = await machine.networks().connect(machine.attachment("one"))
    assert connected.addresses == ("10.250.1.2", "fd00:250:1::2")


@pytest.mark.parametrize("address", ["10.250.1.1", "127.0.0.1"])
async def test_host_port_is_forwarded_to_the_sandbox(machine: Machine, address: str) -> None:
    machine.use_default()
    networks = machine.networks()
    ports = (PortMapping(80, 8080), PortMapping(81))
    await networks.connect(machine.attachment("one", port_mappings=ports))
    server = listen(networks.netns("one"))
    client = socket.create_connection((address, 8080), timeout=60)
    assert peer_of(server, client)
    assert machine.rules()
    await networks.disconnect("one")
    assert machine.leftovers() == NOTHING


async def test_host_port_with_host_ip_is_bound_to_that_address_only(machine: Machine) -> None:
    machine.use_default()
    run("ip", "addr", "add", "10.251.9.9/32", "dev", "lo")
    networks = machine.networks()
    ports = (PortMapping(80, 8080, host_ip="10.251.9.9"),)
    await networks.connect(machine.attachment("one", port_mappings=ports))
    server = listen(networks.netns("one"))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("10.250.1.1", 8080), timeout=60)
    assert peer_of(server, socket.create_connection(("10.251.9.9", 8080), timeout=60))


async def test_bandwidth_of_a_pod_is_limited(machine: Machine) -> None:
    machine.use_default()
    networks = machine.networks()
    limits = Bandwidth(ingress=8_000_000, egress=4_000_000)
    await networks.connect(machine.attachment("one", bandwidth=limits))
    assert "rate 8Mbit" in run("tc", "qdisc", "show")
    assert "rate 4Mbit" in run("tc", "qdisc", "show")
    await networks.disconnect("one")
    assert machine.leftovers() == NOTHING


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::1", "own"])
async def test_dial_connects_from_inside_the_sandbox(machine: Machine, address: str) -> None:
    machine.use_default()
    networks = machine.networks()
    own = (await networks.connect(machine.attachment("one"))).addresses
    address = own[0] if address == "own" else address

    def serve() -> socket.socket:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        return socket.create_server((address, 80), family=family)

    with networks.namespaces.run_in("one", serve) as server:
        _, writer = await networks.dial("one", 80, own)
        writer.write(b"hello")
        await writer.drain()
        connection, _ = server.accept()
        assert connection.recv(5) == b"hello"
        connection.close()
        writer.close()
    with pytest.raises(PortNotListening, match=r'localhost:81 for pod "one": '):
        await networks.dial("one", 81)


async def test_counters_of_a_sandbox_count_its_traffic(machine: Machine) -> None:
    machine.use_default()
    networks = machine.networks()
    await networks.connect(machine.attachment("one"))
    (before,) = networks.counters("one")
    assert ping(networks.netns("one"), "10.250.1.1")
    (after,) = networks.counters("one")
    assert after.interface == "eth0"
    assert after.received_bytes > before.received_bytes
    assert after.sent_packets > before.sent_packets


async def test_twenty_sandboxes_connect_concurrently(machine: Machine) -> None:
    machine.use_default()
    networks = machine.networks()
    names = [f"pod-{number}" for number in range(20)]
    connected = await asyncio.gather(*(networks.connect(machine.attachment(n)) for n in names))
    assert len({each.ip for each in connected}) == 20
    assert ping(networks.netns("pod-0"), connected[19].ip)
    await asyncio.gather(*(networks.disconnect(name) for name in names))
    assert machine.leftovers() == NOTHING


async def test_calls_for_one_sandbox_are_serialised(machine: Machine) -> None:
    machine.use_default()
    networks = machine.networks()
    attachment = machine.attachment("one")
    connecting = asyncio.create_task(networks.connect(attachment))
    while not machine.cached():  # noqa: ASYNC110 - a file, which tells nobody
        await asyncio.sleep(0)
    await asyncio.gather(connecting, networks.disconnect("one"))
    assert machine.leftovers() == NOTHING


async def test_connecting_a_sandbox_twice_fails(machine: Machine) -> None:
    machine.use_default()
    networks = machine.networks()
    await networks.connect(machine.attachment("one"))
    with pytest.raises(AlreadyConnected):
        await networks.cni.add(machine.attachment("one"))
    with pytest.raises(WinpodError, match="exists already"):
        await networks.connect(machine.attachment("one"))
    assert ping(networks.netns("one"), "10.250.1.1")


@pytest.mark.parametrize("masquerade", [False, True], ids=["plain", "with-masquerading-per-pod"])
async def test_disconnect_without_namespace_removes_leases_and_rules(
    machine: Machine, masquerade: bool
) -> None:
    machine.configure(
        machine.bridge(ipMasq=masquerade),
        {"type": "portmap", "capabilities": {"portMappings": True}},
    )
    networks = machine.networks()
    await networks.connect(machine.attachment("one", port_mappings=(PortMapping(80, 8080),)))
    await networks.connect(machine.attachment("two", port_mappings=(PortMapping(80, 8081),)))
    machine.namespaces.remove("one")
    await networks.disconnect("one")
    assert not any("one" in rule for rule in machine.rules())
    server = listen(networks.netns("two"))
    assert peer_of(server, socket.create_connection(("10.250.1.1", 8081), timeout=60))
    run("nsenter", f"--net={networks.netns('two')}", "ip", "link", "delete", "eth0")
    await networks.disconnect("two")
    assert machine.leftovers() == NOTHING


async def test_exhausted_range_fails_until_an_address_is_freed(machine: Machine) -> None:
    machine.use_default(IPv4Network("10.250.1.0/29"))
    networks = machine.networks()
    for number in range(5):
        await networks.connect(machine.attachment(f"pod-{number}"))
    with pytest.raises(AddressesExhausted, match=r"no IP addresses available.*widen its range in"):
        await networks.connect(machine.attachment("one-more"))
    assert "one-more" not in machine.namespaces.names()
    await networks.disconnect("pod-3")
    assert (await networks.connect(machine.attachment("one-more"))).ip == "10.250.1.5"


async def test_disconnect_uses_the_configuration_of_connect(machine: Machine) -> None:
    machine.use_default()
    networks = machine.networks()
    await networks.connect(machine.attachment("one"))
    machine.configure(machine.bridge())
    two = await networks.connect(machine.attachment("two"))
    assert two.network == "own"
    (machine.conf_dir / "10-own.conflist").write_text("{")
    for name in ("one", "two"):
        await networks.disconnect(name)
    assert machine.leftovers() == NOTHING


async def test_disconnect_without_cache_entry_frees_the_address(machine: Machine) -> None:
    machine.use_default()
    networks = machine.networks()
    await networks.connect(machine.attachment("one"))
    for path in (machine.cache_dir / "results").iterdir():
        path.unlink()
    await networks.disconnect("one")
    assert machine.leftovers() == NOTHING


async def test_check_reports_a_missing_interface(machine: Machine) -> None:
    machine.use_default()
    networks = machine.networks()
    attachment = machine.attachment("one")
    with pytest.raises(NotConnected):
        await networks.cni.check(attachment)
    await networks.connect(attachment)
    await networks.cni.check(attachment)
    run("nsenter", f"--net={attachment.netns}", "ip", "addr", "flush", "dev", "eth0")
    with pytest.raises(WinpodError, match=r"bridge .* failed at CHECK for sandbox one"):
        await networks.cni.check(attachment)


async def test_cache_has_the_format_of_libcni(machine: Machine) -> None:
    """The entry has libcni's keys and location."""
    machine.use_default()
    dns = Dns(servers=("10.0.0.10",))
    pod = {"pod_name": "web", "pod_namespace": "default", "pod_uid": "u-1"}
    await machine.networks().connect(machine.attachment("one", dns=dns, **pod))
    path = machine.cache_dir / "results" / "winpod-one-eth0"
    document = json.loads(path.read_text())
    assert document["kind"] == "cniCacheV1"
    assert (document["containerId"], document["ifName"]) == ("one", "eth0")
    assert document["networkName"] == "winpod"
    assert Path(document["netns"]).name == "one"
    assert ["K8S_POD_NAME", "web"] in document["cniArgs"]
    assert document["capabilityArgs"] == {"dns": {"servers": ["10.0.0.10"]}}
    assert document["result"]["ips"][0]["address"] == "10.250.1.2/24"
