"""Services made real: addresses that lead to pods, names that lead to addresses, ports of the
machine that lead to services."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from lightkube.models import core_v1 as v1

from winpod.network import local_addresses
from winpod.network.errors import NoNetwork
from winpod.node.play.dns import NameServer
from winpod.node.play.objects import kind_of_word
from winpod.node.play.relay import Port, Relays, Route
from winpod.node.play.services import (
    DNS_ADDRESS,
    SERVICE_NETWORK,
    Names,
    Served,
    addresses_of,
    names_of,
    served,
)
from winpod.node.play.templates import is_ready, name_of, owner_of
from winpod.windows.errors import InvalidInput

LOCALHOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Publication:
    """A port of this machine that was asked for: `8080:svc/web:80`."""

    local: int
    kind: str
    name: str
    port: int = 0


def parse_publication(text: str) -> Publication:
    """`8080:web`, `8080:web:80`, `8080:deploy/web:80`. Without a kind it is a service."""
    local, _, rest = text.partition(":")
    word, slash, named = rest.rpartition("/")
    name, _, port = named.partition(":")
    kind = kind_of_word(word) if slash else kind_of_word("service")
    is_number = local.isdecimal() and 0 < int(local) < 65536
    if not is_number or not name or kind is None or (port and not port.isdecimal()):
        raise InvalidInput(
            f'"{text}" is not a port to publish.', "Write 8080:web:80, or 8080:deploy/web:80."
        )
    return Publication(int(local), kind.name, name, int(port or 0))


class Publishing:
    """`serves` is False for pods that are simulated, which nobody can connect to."""

    def __init__(self, *, serves: bool) -> None:
        self._serves = serves
        self._relays = Relays()
        self._names = Names()
        self._dns: NameServer | None = None
        self.served: list[Served] = []
        self.published: dict[str, list[Port]] = {}

    async def start(self) -> None:
        if not self._serves or self._dns:
            return
        await asyncio.to_thread(local_addresses.claim, SERVICE_NETWORK)
        dns = NameServer(lambda: self._names)
        try:
            await dns.start(DNS_ADDRESS)
        except OSError as error:
            raise NoNetwork(
                f"The name server of the pods cannot listen at {DNS_ADDRESS}: {error.strerror}.",
                "Another winpod play, of another --root, may have it; end that with winpod down.",
            ) from None
        self._dns = dns

    async def stop(self) -> None:
        if self._dns is None:
            return
        await self._relays.close()
        await self._dns.stop()
        self._dns = None
        await asyncio.to_thread(local_addresses.give_up, SERVICE_NETWORK)

    @property
    def troubles(self) -> list[str]:
        return list(self._relays.troubles.values())

    async def update(
        self, services: Sequence[v1.Service], pods: Sequence[v1.Pod], publish: Iterable[str]
    ) -> None:
        self.served = [served(service, pods) for service in services]
        self._names = names_of(self.served, pods)
        routes = dict(cluster_routes(self.served))
        self.published = {}
        for owner, port, route in (
            *machine_routes(self.served),
            *published_routes(self.served, pods, map(parse_publication, publish)),
        ):
            routes[port] = route
            self.published.setdefault(owner, []).append(port)
        if self._serves and self._dns:
            await self._relays.update(routes)


def cluster_routes(services: Iterable[Served]) -> Iterator[tuple[Port, Route]]:
    """The addresses that pods know services by."""
    for service in services:
        for way in service.ways if service.address else ():
            if way.protocol in ("TCP", "UDP"):
                port = Port(service.address, way.port, way.protocol)
                yield port, Route(way.targets, service.sticky)


def machine_routes(services: Iterable[Served]) -> Iterator[tuple[str, Port, Route]]:
    """Ports of this machine: a NodePort's own, and for a LoadBalancer the service's too."""
    for service in services:
        for way in service.ways if service.is_external else ():
            route = Route(way.targets, service.sticky)
            owner = f"{service.namespace}/{service.name}"
            if service.is_balanced:
                yield owner, Port(LOCALHOST, way.port, way.protocol), route
            if way.node_port:
                yield owner, Port(LOCALHOST, way.node_port, way.protocol), route


def published_routes(
    services: Sequence[Served], pods: Sequence[v1.Pod], asked: Iterable[Publication]
) -> Iterator[tuple[str, Port, Route]]:
    for one in asked:
        port = Port(LOCALHOST, one.local)
        if one.kind == "Service":
            for service in services:
                if service.name == one.name:
                    ways = [w for w in service.ways if one.port in (0, w.port)]
                    owner = f"{service.namespace}/{service.name}"
                    yield from ((owner, port, Route(way.targets)) for way in ways[:1])
            continue
        targets = tuple(
            (address, number)
            for pod in pods
            if _is_of(pod, one) and is_ready(pod)
            for address in addresses_of(pod)[:1]
            for number in (one.port or _first_port(pod),)
            if number
        )
        yield f"{one.kind.lower()}/{one.name}", port, Route(targets)


def _is_of(pod: v1.Pod, one: Publication) -> bool:
    if one.kind == "Pod":
        return name_of(pod) == one.name
    owner = owner_of(pod)
    return owner is not None and (owner.kind, owner.name) == (one.kind, one.name)


def _first_port(pod: v1.Pod) -> int:
    containers = pod.spec.containers if pod.spec else ()
    ports = (port.containerPort for container in containers for port in container.ports or ())
    return next(ports, 0)
