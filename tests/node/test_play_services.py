"""Services of play: which pods are behind them, their names, and connections that reach pods."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from lightkube.models import core_v1 as v1

from tests.node.known_objects import read
from winpod.node.play.dns import NameServer, decide
from winpod.node.play.dns_wire import Code, Kind, Question, encode_name, parse_question
from winpod.node.play.publishing import machine_routes, parse_publication, published_routes
from winpod.node.play.relay import Port, Relays, Route
from winpod.node.play.services import Names, Served, complete, names_of, served
from winpod.windows.errors import InvalidInput


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
    complete(document, None, [])
    return read(v1.Service, document)


PODS = (pod("one", "10.0.0.1"), pod("two", "10.0.0.2", hostname="two"))


def test_only_pods_that_are_ready_stand_behind_a_service() -> None:
    found = served(service(), (*PODS, pod("late", "10.0.0.3", ready=False)))
    assert [way.targets for way in found.ways] == [(("10.0.0.1", 80), ("10.0.0.2", 80))]
    everyone = served(service(publishNotReadyAddresses=True), [pod("x", "10.0.0.3", ready=False)])
    assert everyone.ways[0].targets == (("10.0.0.3", 80),)


def test_a_service_keeps_its_address_and_its_ports() -> None:
    first: dict[str, Any] = {"spec": {"type": "NodePort", "ports": [{"port": 80}]}}
    complete(first, None, [])
    again: dict[str, Any] = {"spec": {"type": "NodePort", "ports": [{"port": 80}]}}
    complete(again, first, [])
    assert again == first
    other: dict[str, Any] = {"spec": {"type": "NodePort", "ports": [{"port": 80}]}}
    complete(other, None, [first])
    assert other["spec"]["clusterIP"] != first["spec"]["clusterIP"]
    assert other["spec"]["ports"][0]["nodePort"] != first["spec"]["ports"][0]["nodePort"]


def test_ports_of_the_machine_lead_to_pods() -> None:
    found = served(service(type="LoadBalancer"), PODS)
    ports = [port.number for _, port, _ in machine_routes([found])]
    assert ports == [8080, 30000]
    asked = [parse_publication("9000:web"), parse_publication("9001:pod/one")]
    routes = {
        port.number: route.targets for _, port, route in published_routes([found], PODS, asked)
    }
    assert routes == {9000: found.ways[0].targets, 9001: (("10.0.0.1", 80),)}


def known_names() -> Names:
    services: list[Served] = [
        served(service(), PODS),
        served(service("db", clusterIP="None"), PODS),
        served(service("out", type="ExternalName", externalName="example.com"), PODS),
    ]
    return names_of(services, PODS)


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("web.shop.svc.cluster.local", Kind.A, ["10.214.1.0"]),
        ("web.shop.svc.cluster.local", Kind.AAAA, []),
        ("db.shop.svc.cluster.local", Kind.A, ["10.0.0.1", "10.0.0.2"]),
        ("two.db.shop.svc.cluster.local", Kind.A, ["10.0.0.2"]),
        ("10-0-0-1.shop.pod.cluster.local", Kind.A, ["10.0.0.1"]),
        ("out.shop.svc.cluster.local", Kind.A, ["example.com"]),
        ("_http._tcp.web.shop.svc.cluster.local", Kind.SRV, ["web.shop.svc.cluster.local"]),
        ("0.1.214.10.in-addr.arpa", Kind.PTR, ["web.shop.svc.cluster.local"]),
        ("shop.svc.cluster.local", Kind.A, []),
        ("none.shop.svc.cluster.local", Kind.A, None),
        ("9.9.214.10.in-addr.arpa", Kind.PTR, None),
    ],
)
def test_names_of_the_cluster_are_known(name: str, kind: Kind, expected: list[str] | None) -> None:
    decided = decide(Question(1, name, kind), known_names())
    assert decided is not None
    code, records = decided
    assert code is (Code.NO_SUCH_NAME if expected is None else Code.GOOD)
    assert [record.value for record in records] == (expected or [])


def test_other_names_are_for_others() -> None:
    for name in ("example.com", "1.0.0.127.in-addr.arpa", "notcluster.local"):
        assert decide(Question(1, name, Kind.A), known_names()) is None


@asynccontextmanager
async def name_server(
    names: Callable[[], Names], upstream: tuple[str, ...] = (), upstream_port: int = 53
) -> AsyncIterator[int]:
    server = NameServer(names, lambda: upstream, upstream_port)
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


async def test_the_name_server_answers_asks_others_and_survives_garbage() -> None:
    question = question_of("web.shop.svc.cluster.local", Kind.A, 7)
    many = {"many.cluster.local": tuple(f"10.1.{n // 200}.{n % 200}" for n in range(300))}
    async with (
        name_server(lambda: Names({"example.cluster.local": ("10.9.9.9",)})) as _,
        name_server(known_names) as port,
        name_server(lambda: Names(many)) as large,
    ):
        for ask in (ask_udp, ask_tcp):
            reply = await asyncio.to_thread(ask, port, question)
            assert reply[:2] == b"\0\x07"
            assert reply.endswith(socket.inet_aton("10.214.1.0"))
        assert (await asyncio.to_thread(ask_udp, port, b"\1\2"))[3] & 15 == Code.MALFORMED
        unknown = await asyncio.to_thread(ask_udp, port, question_of("example.com", Kind.A))
        assert unknown[3] & 15 == Code.FAILED
        asked = question_of("many.cluster.local", Kind.A)
        short = await asyncio.to_thread(ask_udp, large, asked)
        assert short[2] & 2
        whole = await asyncio.to_thread(ask_tcp, large, asked)
        assert struct.unpack_from("!H", whole, 6)[0] == 300


async def test_names_of_the_world_come_from_the_machines_own_servers() -> None:
    class Upstream(asyncio.DatagramProtocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport: Any = transport

        def datagram_received(self, data: bytes, addr: Any) -> None:
            self.transport.sendto(data[:2] + b"answered", addr)

    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(Upstream, local_addr=("127.0.0.1", 0))
    upstream_port = transport.get_extra_info("sockname")[1]
    async with name_server(known_names, ("127.0.0.1",), upstream_port) as port:
        reply = await asyncio.to_thread(ask_udp, port, question_of("example.com", Kind.A, 9))
    transport.close()
    assert reply == b"\0\x09answered"


def test_a_name_that_leads_to_itself_is_refused() -> None:
    header = struct.pack("!HHHHHH", 1, 0, 1, 0, 0, 0)
    with pytest.raises(InvalidInput):
        parse_question(header + b"\xc0\x0c\0\1\0\1")


def question_of(name: str, kind: Kind, id_: int = 1) -> bytes:
    header = struct.pack("!HHHHHH", id_, 0x0100, 1, 0, 0, 0)
    return header + encode_name(name) + struct.pack("!HH", kind, 1)


def free_port(kind: int = socket.SOCK_STREAM) -> int:
    with socket.socket(socket.AF_INET, kind) as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@asynccontextmanager
async def echoing(name: bytes) -> AsyncIterator[int]:
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


async def test_connections_go_to_pods_in_turn_and_past_those_that_are_dead() -> None:
    relays, port = Relays(), Port("127.0.0.1", free_port())
    async with echoing(b"one") as first, echoing(b"two") as second:
        targets = (("127.0.0.1", first), ("127.0.0.1", free_port()), ("127.0.0.1", second))
        await relays.update({port: Route(targets)})
        heard = [await talk(port.number) for _ in range(6)]
        assert set(heard) == {b"one hears", b"two hears"}
        await relays.update({port: Route(targets, sticky=True)})
        assert len({await talk(port.number) for _ in range(4)}) == 1
        await relays.update({port: Route()})
        assert await talk(port.number) == b""
        again = Relays()
        await again.update({port: Route()})
        assert again.troubles == {
            port: f"{port} is taken by another program. End that, or choose another port."
        }
    await relays.close()
    with pytest.raises(ConnectionRefusedError):
        await talk(port.number)


async def test_datagrams_find_their_way_back() -> None:
    class Echo(asyncio.DatagramProtocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport: Any = transport

        def datagram_received(self, data: bytes, addr: Any) -> None:
            self.transport.sendto(b"echo " + data, addr)

    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(Echo, local_addr=("127.0.0.1", 0))
    target = ("127.0.0.1", transport.get_extra_info("sockname")[1])
    relays, port = Relays(), Port("127.0.0.1", free_port(socket.SOCK_DGRAM), "UDP")
    await relays.update({port: Route((target,))})
    assert await asyncio.to_thread(ask_udp, port.number, b"one") == b"echo one"
    await relays.close()
    transport.close()
