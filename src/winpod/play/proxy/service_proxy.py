"""Service proxy: cluster IPs, DNS, node ports and published ports, relayed in user space.

One local route (`ip route add local 10.214.0.0/16 dev lo`) makes every service address local
without adding it to an interface, so that relays can listen on it and pods reach it through their
gateway. The route is the only host state, and adding it is idempotent.

Each connection goes to the next ready pod in turn. A pod that refuses it is skipped.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import logging
import os
import socket
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network
from itertools import count
from typing import Any

from winpod.errors import InvalidInput
from winpod.k8s.models import core_v1 as v1
from winpod.network.errors import NoCniConfig
from winpod.play.apiserver.objects import find_kind
from winpod.play.pod_template import is_ready, name_of, owner_of
from winpod.play.proxy.dns import DnsServer
from winpod.play.proxy.endpoints import (
    DNS_ADDRESS,
    SERVICE_NETWORK,
    DnsNames,
    ServiceEndpoints,
    addresses_of,
    dns_names,
    endpoints_of,
)

_NEW_ROUTE, _DELETE_ROUTE = 24, 25
_REQUEST, _ACKNOWLEDGE, _REPLACE, _CREATE = 0x1, 0x4, 0x100, 0x400
_TABLE_LOCAL, _PROTOCOL_STATIC, _SCOPE_HOST, _TYPE_LOCAL = 255, 4, 254, 2
_DESTINATION, _INTERFACE = 1, 4
_ERROR = 2


def add_local_route(network: IPv4Network) -> None:
    """Make every address of the network local to this machine."""
    code = _route_request(_NEW_ROUTE, _CREATE | _REPLACE, network)
    if code:
        raise NoCniConfig(
            f"Failed to add a local route for the service network {network}: {os.strerror(code)}.",
            "Run as root, and bring the loopback interface up (ip link set lo up).",
        )


def remove_local_route(network: IPv4Network) -> None:
    code = _route_request(_DELETE_ROUTE, 0, network)
    if code not in (0, errno.ESRCH):
        raise NoCniConfig(f"Failed to remove the local route for {network}: {os.strerror(code)}.")


def _route_request(kind: int, flags: int, network: IPv4Network) -> int:
    """Send a netlink route request; return the kernel's error number, 0 for success."""
    route = struct.pack(
        "=BBBBBBBBI",
        socket.AF_INET,
        network.prefixlen,
        *(0, 0),
        _TABLE_LOCAL,
        _PROTOCOL_STATIC,
        _SCOPE_HOST,
        _TYPE_LOCAL,
        0,
    )
    body = route + _attribute(_DESTINATION, network.network_address.packed)
    body += _attribute(_INTERFACE, struct.pack("=I", socket.if_nametoindex("lo")))
    header = struct.pack("=IHHII", 16 + len(body), kind, _REQUEST | _ACKNOWLEDGE | flags, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as netlink:
        netlink.settimeout(5)
        netlink.send(header + body)
        reply = netlink.recv(4096)
    _, reply_kind, *_ = struct.unpack_from("=IHHII", reply)
    return -int(struct.unpack_from("=i", reply, 16)[0]) if reply_kind == _ERROR else 0


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value


_log = logging.getLogger(__name__)
_CONNECT_SECONDS = 5.0
_UDP_IDLE_SECONDS = 60.0
_CHUNK = 64 * 1024
_MAX_UDP_CLIENTS = 1024

Target = tuple[str, int]


@dataclass(frozen=True, slots=True, order=True)
class ListenPort:
    address: str
    number: int
    protocol: str = "TCP"

    def __str__(self) -> str:
        return f"{self.address}:{self.number}/{self.protocol}"


@dataclass(frozen=True, slots=True)
class ProxyRoute:
    targets: tuple[Target, ...] = ()
    sticky: bool = False


class PortRelays:
    """The open relays. `problems` holds the reason for each port that could not be opened."""

    def __init__(self) -> None:
        self._open: dict[ListenPort, _Relay] = {}
        self.problems: dict[ListenPort, str] = {}

    async def update(self, routes: Mapping[ListenPort, ProxyRoute]) -> None:
        for port in [port for port in self._open if port not in routes]:
            await self._open.pop(port).close()
        for port in [port for port in self.problems if port not in routes]:
            del self.problems[port]
        for port, route in routes.items():
            if relay := self._open.get(port):
                relay.route = route
                continue
            relay = _UdpRelay(port, route) if port.protocol == "UDP" else _TcpRelay(port, route)
            try:
                await relay.open()
            except OSError as error:
                self.problems[port] = _listen_problem(port, error)
                continue
            self.problems.pop(port, None)
            self._open[port] = relay

    async def close(self) -> None:
        await self.update({})


def _listen_problem(port: ListenPort, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"{port} is in use by another program. Stop it, or choose another port."
    return f"{port} cannot be opened: {os.strerror(error.errno or 0)}."


class _Relay:
    def __init__(self, port: ListenPort, route: ProxyRoute) -> None:
        self.port = port
        self.route = route
        self._next_target = count()

    async def open(self) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError

    def choices(self, client: str) -> Sequence[Target]:
        """Return all targets in order of preference: round robin, or by client if sticky."""
        targets = self.route.targets
        if not targets:
            return ()
        if self.route.sticky:
            start = int.from_bytes(hashlib.sha256(client.encode()).digest()[:4], "big")
        else:
            start = next(self._next_target)
        start %= len(targets)
        return (*targets[start:], *targets[:start])


class _TcpRelay(_Relay):
    def __init__(self, port: ListenPort, route: ProxyRoute) -> None:
        super().__init__(port, route)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, self.port.address, self.port.number)

    async def close(self) -> None:
        if self._server:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None:
            return
        self._tasks.add(task)
        try:
            client = str(writer.get_extra_info("peername")[0])
            if upstream := await self._connect(client):
                await relay_streams((reader, writer), upstream)
        except (ConnectionError, OSError):
            pass
        finally:
            self._tasks.discard(task)
            _abort(writer)

    async def _connect(
        self, client: str
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        for address, number in self.choices(client):
            try:
                async with asyncio.timeout(_CONNECT_SECONDS):
                    return await asyncio.open_connection(address, number)
            except (OSError, TimeoutError) as error:
                _log.debug("Failed to connect %s to %s:%d: %r", self.port, address, number, error)
        return None


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def relay_streams(left: Streams, right: Streams) -> None:
    """Copy both directions until both have ended."""
    copies = [
        asyncio.create_task(_copy(left[0], right[1])),
        asyncio.create_task(_copy(right[0], left[1])),
    ]
    try:
        await asyncio.gather(*copies)
    finally:
        for copy in copies:
            copy.cancel()
        for writer in (left[1], right[1]):
            with contextlib.suppress(OSError):
                writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


def _abort(writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, RuntimeError):
        writer.close()


class _UdpRelay(_Relay):
    """UDP relay; a client keeps its pod until it has been idle for a while."""

    def __init__(self, port: ListenPort, route: ProxyRoute) -> None:
        super().__init__(port, route)
        self._transport: asyncio.DatagramTransport | None = None
        self._clients: dict[Any, _UdpClient] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        address = (self.port.address, self.port.number)
        self._transport, _ = await loop.create_datagram_endpoint(
            lambda: _Receiver(self._received), local_addr=address
        )

    async def close(self) -> None:
        for client in list(self._clients.values()):
            client.close()
        for task in self._tasks:
            task.cancel()
        if self._transport:
            self._transport.close()

    def _received(self, data: bytes, sender: Any) -> None:
        if client := self._clients.get(sender):
            client.send(data)
        elif len(self._clients) < _MAX_UDP_CLIENTS:
            task = asyncio.create_task(self._open_client(data, sender))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _open_client(self, data: bytes, sender: Any) -> None:
        target = next(iter(self.choices(str(sender[0]))), None)
        if target is None or self._transport is None:
            return
        transport = self._transport
        client = _UdpClient(
            lambda reply: transport.sendto(reply, sender), lambda: self._clients.pop(sender, None)
        )
        if self._clients.setdefault(sender, client) is client:
            await client.open(target)
        self._clients[sender].send(data)


class _Receiver(asyncio.DatagramProtocol):
    def __init__(self, received: Any) -> None:
        self._received = received

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self._received(data, addr)


class _UdpClient:
    def __init__(self, reply: Any, ended: Any) -> None:
        self._reply = reply
        self._ended = ended
        self._transport: asyncio.DatagramTransport | None = None
        self._queued: list[bytes] = []
        self._idle: asyncio.TimerHandle | None = None

    async def open(self, target: Target) -> None:
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_datagram_endpoint(
            lambda: _Receiver(self._received_reply), remote_addr=target
        )
        for data in self._queued:
            self._transport.sendto(data)
        self._queued.clear()
        self._touch()

    def send(self, data: bytes) -> None:
        if self._transport is None:
            self._queued.append(data)
            return
        self._touch()
        self._transport.sendto(data)

    def _received_reply(self, data: bytes, _: Any) -> None:
        self._touch()
        self._reply(data)

    def _touch(self) -> None:
        if self._idle:
            self._idle.cancel()
        self._idle = asyncio.get_running_loop().call_later(_UDP_IDLE_SECONDS, self.close)

    def close(self) -> None:
        if self._idle:
            self._idle.cancel()
        if self._transport:
            self._transport.close()
        self._ended()


LOCALHOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class PublishedPort:
    """A port of this machine to publish, as in `8080:svc/web:80`."""

    local: int
    kind: str
    name: str
    port: int = 0


def parse_published_port(text: str) -> PublishedPort:
    """Parse `8080:web`, `8080:web:80` or `8080:deploy/web:80`; the default kind is Service."""
    local, _, rest = text.partition(":")
    kind_name, slash, target = rest.rpartition("/")
    name, _, port = target.partition(":")
    kind = find_kind(kind_name) if slash else find_kind("service")
    is_number = local.isdecimal() and 0 < int(local) < 65536
    if not is_number or not name or kind is None or (port and not port.isdecimal()):
        raise InvalidInput(
            f'"{text}" is not a port to publish.', "Use 8080:web:80 or 8080:deploy/web:80."
        )
    return PublishedPort(int(local), kind.name, name, int(port or 0))


class ServiceProxy:
    """Proxy of all services. `serves` is False for simulated pods, which have no network."""

    def __init__(self, *, serves: bool) -> None:
        self._serves = serves
        self._relays = PortRelays()
        self._names = DnsNames()
        self._dns: DnsServer | None = None
        self.served: list[ServiceEndpoints] = []
        self.published: dict[str, list[ListenPort]] = {}

    async def start(self) -> None:
        if not self._serves or self._dns:
            return
        await asyncio.to_thread(add_local_route, SERVICE_NETWORK)
        dns = DnsServer(lambda: self._names)
        try:
            await dns.start(DNS_ADDRESS)
        except OSError as error:
            raise NoCniConfig(
                f"The DNS server for pods cannot listen on {DNS_ADDRESS}: {error.strerror}.",
                "A winpod play with another --root may be running; stop it with winpod down.",
            ) from None
        self._dns = dns

    async def stop(self) -> None:
        if self._dns is None:
            return
        await self._relays.close()
        await self._dns.stop()
        self._dns = None
        await asyncio.to_thread(remove_local_route, SERVICE_NETWORK)

    @property
    def problems(self) -> list[str]:
        return list(self._relays.problems.values())

    async def update(
        self, services: Sequence[v1.Service], pods: Sequence[v1.Pod], publish: Iterable[str]
    ) -> None:
        self.served = [endpoints_of(service, pods) for service in services]
        self._names = dns_names(self.served, pods)
        routes = dict(cluster_routes(self.served))
        self.published = {}
        for owner, port, route in (
            *host_routes(self.served),
            *published_routes(self.served, pods, map(parse_published_port, publish)),
        ):
            routes[port] = route
            self.published.setdefault(owner, []).append(port)
        if self._serves and self._dns:
            await self._relays.update(routes)


def cluster_routes(services: Iterable[ServiceEndpoints]) -> Iterator[tuple[ListenPort, ProxyRoute]]:
    """Yield the routes of the cluster IPs."""
    for service in services:
        for service_port in service.ports if service.address else ():
            if service_port.protocol in ("TCP", "UDP"):
                port = ListenPort(service.address, service_port.port, service_port.protocol)
                yield port, ProxyRoute(service_port.targets, service.sticky)


def host_routes(
    services: Iterable[ServiceEndpoints],
) -> Iterator[tuple[str, ListenPort, ProxyRoute]]:
    """Yield routes of host ports: node ports, and for a LoadBalancer also the service ports."""
    for service in services:
        for service_port in service.ports if service.is_external else ():
            route = ProxyRoute(service_port.targets, service.sticky)
            owner = f"{service.namespace}/{service.name}"
            if service.is_balanced:
                yield owner, ListenPort(LOCALHOST, service_port.port, service_port.protocol), route
            if service_port.node_port:
                yield (
                    owner,
                    ListenPort(LOCALHOST, service_port.node_port, service_port.protocol),
                    route,
                )


def published_routes(
    services: Sequence[ServiceEndpoints], pods: Sequence[v1.Pod], published: Iterable[PublishedPort]
) -> Iterator[tuple[str, ListenPort, ProxyRoute]]:
    for publish in published:
        port = ListenPort(LOCALHOST, publish.local)
        if publish.kind == "Service":
            for service in services:
                if service.name == publish.name:
                    matching = [p for p in service.ports if publish.port in (0, p.port)]
                    owner = f"{service.namespace}/{service.name}"
                    yield from (
                        (owner, port, ProxyRoute(service_port.targets))
                        for service_port in matching[:1]
                    )
            continue
        targets = tuple(
            (address, number)
            for pod in pods
            if _is_target(pod, publish) and is_ready(pod)
            for address in addresses_of(pod)[:1]
            for number in (publish.port or _first_port(pod),)
            if number
        )
        yield f"{publish.kind.lower()}/{publish.name}", port, ProxyRoute(targets)


def _is_target(pod: v1.Pod, publish: PublishedPort) -> bool:
    if publish.kind == "Pod":
        return name_of(pod) == publish.name
    owner = owner_of(pod)
    return owner is not None and (owner.kind, owner.name) == (publish.kind, publish.name)


def _first_port(pod: v1.Pod) -> int:
    containers = pod.spec.containers if pod.spec else ()
    ports = (port.containerPort for container in containers for port in container.ports or ())
    return next(ports, 0)
