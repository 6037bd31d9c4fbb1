"""Service endpoints, DNS and port relays of the play proxy."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support.known_objects import read
from winpod.errors import InvalidInput
from winpod.k8s.models import core_v1 as v1
from winpod.play.proxy.dns import (
    DnsServer,
    Question,
    RecordType,
    ResponseCode,
    answer_cluster_name,
    encode_name,
    parse_question,
)
from winpod.play.proxy.endpoints import (
    DnsNames,
    ServiceEndpoints,
    allocate_service,
    dns_names,
    endpoints_of,
)
from winpod.play.proxy.service_proxy import (
    ListenPort,
    PortRelays,
    ProxyRoute,
    host_routes,
    parse_published_port,
    published_routes,
)


def pod(name: str, ip: str, *, ready: bool = True, **spec: Any) -> v1.Pod:
    container = {"name": "app", "image": "app", "ports": [{"name": "http", "containerPort": 80}]}
    return read(
        v1.Pod,
        {
            "metadata": {"name": name, "namespace": "shop", "uid": name, "labels": {"app": "web"}},
            "spec": {"containers": [container], **spec},
            "status": {
                "phase": "Running",
                "podIP": ip,
                "conditions": [{"type": "Ready", "status": str(ready)}],
            },
        },
    )


def service(name: str = "web", **spec: Any) -> v1.Service:
    ports = [{"name": "http", "port": 8080, "targetPort": "http"}]
    document: dict[str, Any] = {
        "kind": "Service",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {"selector": {"app": "web"}, "ports": ports, **spec},
    }
    allocate_service(document, None, [])
    return read(v1.Service, document)


PODS = (pod("one", "10.0.0.1"), pod("two", "10.0.0.2", hostname="two"))


def test_only_ready_pods_are_endpoints() -> None:
    endpoints = endpoints_of(service(), (*PODS, pod("late", "10.0.0.3", ready=False)))
    assert [port.targets for port in endpoints.ports] == [(("10.0.0.1", 80), ("10.0.0.2", 80))]
    unready = endpoints_of(
        service(publishNotReadyAddresses=True), [pod("x", "10.0.0.3", ready=False)]
    )
    assert unready.ports[0].targets == (("10.0.0.3", 80),)


def test_service_keeps_cluster_ip_and_node_ports() -> None:
    first: dict[str, Any] = {"spec": {"type": "NodePort", "ports": [{"port": 80}]}}
    allocate_service(first, None, [])
    again: dict[str, Any] = {"spec": {"type": "NodePort", "ports": [{"port": 80}]}}
    allocate_service(again, first, [])
    assert again == first
    other: dict[str, Any] = {"spec": {"type": "NodePort", "ports": [{"port": 80}]}}
    allocate_service(other, None, [first])
    assert other["spec"]["clusterIP"] != first["spec"]["clusterIP"]
    assert other["spec"]["ports"][0]["nodePort"] != first["spec"]["ports"][0]["nodePort"]


def test_host_ports_are_routed_to_pods() -> None:
    endpoints = endpoints_of(service(type="LoadBalancer"), PODS)
    ports = [port.number for _, port, _ in host_routes([endpoints])]
    assert ports == [8080, 30000]
    published = [parse_published_port("9000:web"), parse_published_port("9001:pod/one")]
    routes = {
        port.number: route.targets
        for _, port, route in published_routes([endpoints], PODS, published)
    }
    assert routes == {9000: endpoints.ports[0].targets, 9001: (("10.0.0.1", 80),)}


def cluster_names() -> DnsNames:
    services: list[ServiceEndpoints] = [
        endpoints_of(service(), PODS),
        endpoints_of(service("db", clusterIP="None"), PODS),
        endpoints_of(service("out", type="ExternalName", externalName="example.com"), PODS),
    ]
    return dns_names(services, PODS)


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("web.shop.svc.cluster.local", RecordType.A, ["10.214.1.0"]),
        ("web.shop.svc.cluster.local", RecordType.AAAA, []),
        ("db.shop.svc.cluster.local", RecordType.A, ["10.0.0.1", "10.0.0.2"]),
        ("two.db.shop.svc.cluster.local", RecordType.A, ["10.0.0.2"]),
        ("10-0-0-1.shop.pod.cluster.local", RecordType.A, ["10.0.0.1"]),
        ("out.shop.svc.cluster.local", RecordType.A, ["example.com"]),
        ("_http._tcp.web.shop.svc.cluster.local", RecordType.SRV, ["web.shop.svc.cluster.local"]),
        ("0.1.214.10.in-addr.arpa", RecordType.PTR, ["web.shop.svc.cluster.local"]),
        ("shop.svc.cluster.local", RecordType.A, []),
        ("none.shop.svc.cluster.local", RecordType.A, None),
        ("9.9.214.10.in-addr.arpa", RecordType.PTR, None),
    ],
)
def test_cluster_names_are_answered(
    name: str, kind: RecordType, expected: list[str] | None
) -> None:
    decided = answer_cluster_name(Question(1, name, kind), cluster_names())
    assert decided is not None
    code, records = decided
    assert code is (ResponseCode.NXDOMAIN if expected is None else ResponseCode.NOERROR)
    assert [record.value for record in records] == (expected or [])


def test_names_outside_the_cluster_are_not_answered() -> None:
    for name in ("example.com", "1.0.0.127.in-addr.arpa", "notcluster.local"):
        assert answer_cluster_name(Question(1, name, RecordType.A), cluster_names()) is None


@asynccontextmanager
async def dns_server(
    names: Callable[[], DnsNames], upstream: tuple[str, ...] = (), upstream_port: int = 53
) -> AsyncIterator[int]:
    server = DnsServer(names, lambda: upstream, upstream_port)
    port = await server.start("127.0.0.1", 0)
    try:
        yield port
    finally:
        await server.stop()


def ask_udp(port: int, data: bytes) -> bytes:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(10)
        client.sendto(data, ("127.0.0.1", port))
        return client.recv(65535)


def ask_tcp(port: int, data: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.sendall(struct.pack("!H", len(data)) + data)
        reader = client.makefile("rb")
        return reader.read(struct.unpack("!H", reader.read(2))[0])


async def test_dns_server_answers_truncates_and_survives_garbage() -> None:
    question = encode_question("web.shop.svc.cluster.local", RecordType.A, 7)
    many = {"many.cluster.local": tuple(f"10.1.{n // 200}.{n % 200}" for n in range(300))}
    async with (
        dns_server(lambda: DnsNames({"example.cluster.local": ("10.9.9.9",)})) as _,
        dns_server(cluster_names) as port,
        dns_server(lambda: DnsNames(many)) as large,
    ):
        for ask in (ask_udp, ask_tcp):
            reply = await asyncio.to_thread(ask, port, question)
            assert reply[:2] == b"\0\x07"
            assert reply.endswith(socket.inet_aton("10.214.1.0"))
        assert (await asyncio.to_thread(ask_udp, port, b"\1\2"))[3] & 15 == ResponseCode.FORMERR
        unknown = await asyncio.to_thread(
            ask_udp, port, encode_question("example.com", RecordType.A)
        )
        assert unknown[3] & 15 == ResponseCode.SERVFAIL
        many_question = encode_question("many.cluster.local", RecordType.A)
        truncated = await asyncio.to_thread(ask_udp, large, many_question)
        assert truncated[2] & 2
        complete = await asyncio.to_thread(ask_tcp, large, many_question)
        assert struct.unpack_from("!H", complete, 6)[0] == 300


@pytest.mark.parametrize("class_", [3, 4, 255], ids=["CH", "HS", "ANY"])
@pytest.mark.parametrize("name", ["web.shop.svc.cluster.local", "version.bind"])
async def test_classes_other_than_internet_are_refused(class_: int, name: str) -> None:
    question = encode_question(name, RecordType.A, 7)[:-2] + struct.pack("!H", class_)
    reply = await DnsServer(cluster_names, lambda: ()).reply(question, over_udp=True)
    assert reply[:2] == b"\0\x07"
    assert reply[3] & 15 == ResponseCode.REFUSED
    assert struct.unpack_from("!HH", reply, 4) == (1, 0)


async def test_external_names_are_forwarded_upstream() -> None:
    class Upstream(asyncio.DatagramProtocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport: Any = transport

        def datagram_received(self, data: bytes, addr: Any) -> None:
            self.transport.sendto(data[:2] + b"answered", addr)

    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(Upstream, local_addr=("127.0.0.1", 0))
    upstream_port = transport.get_extra_info("sockname")[1]
    async with dns_server(cluster_names, ("127.0.0.1",), upstream_port) as port:
        reply = await asyncio.to_thread(
            ask_udp, port, encode_question("example.com", RecordType.A, 9)
        )
    transport.close()
    assert reply == b"\0\x09answered"


def test_name_with_compression_loop_is_rejected() -> None:
    header = struct.pack("!HHHHHH", 1, 0, 1, 0, 0, 0)
    with pytest.raises(InvalidInput):
        parse_question(header + b"\xc0\x0c\0\1\0\1")


def encode_question(name: str, kind: RecordType, id_: int = 1) -> bytes:
    header = struct.pack("!HHHHHH", id_, 0x0100, 1, 0, 0, 0)
    return header + encode_name(name) + struct.pack("!HH", kind, 1)


def free_port(kind: int = socket.SOCK_STREAM) -> int:
    with socket.socket(socket.AF_INET, kind) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def echo_server(name: bytes) -> AsyncIterator[int]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(name + await reader.read())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def talk(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b" hears")
    writer.write_eof()
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


async def test_connections_are_balanced_and_skip_dead_pods() -> None:
    relays, port = PortRelays(), ListenPort("127.0.0.1", free_port())
    async with echo_server(b"one") as first, echo_server(b"two") as second:
        targets = (("127.0.0.1", first), ("127.0.0.1", free_port()), ("127.0.0.1", second))
        await relays.update({port: ProxyRoute(targets)})
        replies = [await talk(port.number) for _ in range(6)]
        assert set(replies) == {b"one hears", b"two hears"}
        await relays.update({port: ProxyRoute(targets, sticky=True)})
        assert len({await talk(port.number) for _ in range(4)}) == 1
        await relays.update({port: ProxyRoute()})
        assert await talk(port.number) == b""
        second_relays = PortRelays()
        await second_relays.update({port: ProxyRoute()})
        assert second_relays.problems == {
            port: f"{port} is in use by another program. Stop it, or choose another port."
        }
    await relays.close()
    with pytest.raises(ConnectionRefusedError):
        await talk(port.number)


async def test_udp_replies_reach_the_client() -> None:
    class Echo(asyncio.DatagramProtocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport: Any = transport

        def datagram_received(self, data: bytes, addr: Any) -> None:
            self.transport.sendto(b"echo " + data, addr)

    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(Echo, local_addr=("127.0.0.1", 0))
    target = ("127.0.0.1", transport.get_extra_info("sockname")[1])
    relays, port = PortRelays(), ListenPort("127.0.0.1", free_port(socket.SOCK_DGRAM), "UDP")
    await relays.update({port: ProxyRoute((target,))})
    assert await asyncio.to_thread(ask_udp, port.number, b"one") == b"echo one"
    await relays.close()
    transport.close()
