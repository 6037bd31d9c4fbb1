"""Services: which pods stand behind each, at which ports, and under which names they are found."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network, ip_address

from lightkube.models import core_v1 as v1

from winpod.node.play.templates import has_ended, is_ready, name_of
from winpod.node.pods import is_deleted
from winpod.node.requests import metadata_of, spec_of
from winpod.windows.errors import InvalidInput

DOMAIN = "cluster.local"
SERVICE_NETWORK = IPv4Network("10.214.0.0/16")
DNS_ADDRESS = "10.214.0.10"
_FIRST, _NODE_PORTS = 256, range(30000, 32768)


@dataclass(frozen=True, slots=True)
class Way:
    """One port of a service, and where it leads."""

    name: str
    protocol: str
    port: int
    node_port: int = 0
    targets: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Served:
    """A service as it is now. `pods` are the addresses behind it, each with its pod's name."""

    namespace: str
    name: str
    address: str
    is_external: bool
    ways: tuple[Way, ...]
    pods: tuple[tuple[str, str], ...] = ()
    external_name: str = ""
    sticky: bool = False
    is_balanced: bool = False

    @property
    def is_headless(self) -> bool:
        return not self.address and not self.external_name


def served(service: v1.Service, pods: Iterable[v1.Pod]) -> Served:
    spec, metadata = service.spec, service.metadata
    if spec is None or metadata is None:
        raise InvalidInput("a service has no spec.")
    chosen = [pod for pod in pods if _is_behind(pod, service)]
    address = "" if spec.clusterIP in (None, "None") else str(spec.clusterIP)
    return Served(
        namespace=metadata.namespace or "",
        name=metadata.name or "",
        address="" if spec.type == "ExternalName" else address,
        is_external=spec.type in ("NodePort", "LoadBalancer"),
        ways=tuple(_ways(spec, chosen)),
        pods=tuple((ip, _hostname(pod)) for pod in chosen for ip in addresses_of(pod)),
        external_name=spec.externalName or "" if spec.type == "ExternalName" else "",
        sticky=spec.sessionAffinity == "ClientIP",
        is_balanced=spec.type == "LoadBalancer",
    )


def pods_behind(service: v1.Service, pods: Iterable[v1.Pod]) -> list[tuple[str, dict[int, int]]]:
    """The pods that it selects and that run, those that are ready first; for each port of the
    service which one it is in the pod."""
    spec = service.spec or v1.ServiceSpec()
    there = [p for p in pods if _is_selected(p, service) and addresses_of(p) and not is_deleted(p)]
    return [
        (name_of(pod), {port.port: _target(port, pod) for port in spec.ports or ()})
        for pod in sorted(there, key=lambda pod: (not is_ready(pod), name_of(pod)))
    ]


def _is_behind(pod: v1.Pod, service: v1.Service) -> bool:
    early = bool(service.spec and service.spec.publishNotReadyAddresses) and not is_deleted(pod)
    is_open = is_ready(pod) or early
    return is_open and _is_selected(pod, service) and bool(addresses_of(pod))


def _is_selected(pod: v1.Pod, service: v1.Service) -> bool:
    spec, metadata = service.spec, metadata_of(pod)
    if not spec or not spec.selector or not service.metadata or has_ended(pod):
        return False
    labels = metadata.labels or {}
    return metadata.namespace == service.metadata.namespace and all(
        labels.get(key) == value for key, value in spec.selector.items()
    )


def addresses_of(pod: v1.Pod) -> list[str]:
    if pod.status is None:
        return []
    listed = [ip.ip for ip in pod.status.podIPs or () if ip.ip]
    return listed or ([pod.status.podIP] if pod.status.podIP else [])


def _hostname(pod: v1.Pod) -> str:
    return spec_of(pod).hostname or ""


def _ways(spec: v1.ServiceSpec, pods: Sequence[v1.Pod]) -> Iterator[Way]:
    for port in spec.ports or ():
        targets = tuple(
            (address, number)
            for pod in pods
            for address in addresses_of(pod)[:1]
            if (number := _target(port, pod))
        )
        yield Way(port.name or "", port.protocol or "TCP", port.port, port.nodePort or 0, targets)


def _target(port: v1.ServicePort, pod: v1.Pod) -> int:
    """The pod's own port; 0 where it has none of that name."""
    wanted = port.port if port.targetPort in (None, "", 0) else port.targetPort
    if isinstance(wanted, int) or str(wanted).isdecimal():
        return int(wanted)
    return next(
        (
            own.containerPort
            for container in spec_of(pod).containers
            for own in container.ports or ()
            if own.name == wanted
        ),
        0,
    )


def complete(
    service: dict[str, object],
    before: Mapping[str, object] | None,
    all_: Iterable[Mapping[str, object]],
) -> None:
    """Gives a service its address and its ports on the machine; those it had, it keeps."""
    spec = _spec(service)
    old = _spec(before) if before else {}
    kind = spec.setdefault("type", "ClusterIP")
    others = [_spec(other) for other in all_]
    if kind == "ExternalName":
        return
    taken = {str(other.get("clusterIP")) for other in others}
    stated = spec.get("clusterIP") or old.get("clusterIP") or _free_address(taken)
    spec["clusterIP"] = stated
    if kind == "ClusterIP":
        return
    kept = {
        (port.get("protocol", "TCP"), port["port"]): port.get("nodePort") for port in _ports(old)
    }
    used = {port.get("nodePort") for other in others for port in _ports(other)}
    for port in _ports(spec):
        key = (port.get("protocol", "TCP"), port["port"])
        port.setdefault("nodePort", kept.get(key) or next(n for n in _NODE_PORTS if n not in used))
        used.add(port["nodePort"])


def _spec(service: Mapping[str, object]) -> dict[str, object]:
    spec = service["spec"]
    if not isinstance(spec, dict):
        raise InvalidInput("a service has no spec.")
    return spec


def _ports(spec: Mapping[str, object]) -> list[dict[str, object]]:
    ports = spec.get("ports") or []
    return ports if isinstance(ports, list) else []


def _free_address(taken: Iterable[str]) -> str:
    used = set(taken)
    numbers = range(_FIRST, SERVICE_NETWORK.num_addresses - 1)
    return next(str(SERVICE_NETWORK[n]) for n in numbers if str(SERVICE_NETWORK[n]) not in used)


@dataclass(frozen=True, slots=True)
class Names:
    """What the names of a cluster mean: addresses, other names, ports, and names of addresses."""

    addresses: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    ports: Mapping[str, tuple[tuple[int, str], ...]] = field(default_factory=dict)
    reverse: Mapping[str, str] = field(default_factory=dict)

    def knows(self, name: str) -> bool:
        """Whether it is one of these, or stands between one of these and the domain."""
        if name in self.addresses or name in self.aliases or name in self.ports:
            return True
        ending = f".{name}"
        tables = (self.addresses, self.aliases, self.ports)
        return any(known.endswith(ending) for table in tables for known in table)


def names_of(services: Iterable[Served], pods: Iterable[v1.Pod], domain: str = DOMAIN) -> Names:
    addresses: dict[str, tuple[str, ...]] = {}
    aliases: dict[str, str] = {}
    ports: dict[str, tuple[tuple[int, str], ...]] = {}
    reverse: dict[str, str] = {}
    for service in services:
        name = f"{service.name}.{service.namespace}.svc.{domain}"
        if service.external_name:
            aliases[name] = service.external_name.rstrip(".").lower()
            continue
        addresses[name] = (service.address,) if service.address else _distinct(service.pods)
        if service.address:
            reverse[service.address] = name
        members = [f"{_label(ip, host)}.{name}" for ip, host in service.pods]
        if service.is_headless:
            for (ip, _), member in zip(service.pods, members, strict=True):
                addresses[member] = (*addresses.get(member, ()), ip)
                reverse[ip] = member
        for way in service.ways:
            if way.name:
                key = f"_{way.name}._{way.protocol.lower()}.{name}"
                hosts = members if service.is_headless else [name]
                ports[key] = tuple((way.port, host) for host in dict.fromkeys(hosts))
    for pod in pods:
        namespace = metadata_of(pod).namespace
        for ip in addresses_of(pod):
            addresses[f"{_dashed(ip)}.{namespace}.pod.{domain}"] = (ip,)
            reverse.setdefault(ip, f"{_dashed(ip)}.{namespace}.pod.{domain}")
    addresses[f"dns-version.{domain}"] = ()
    return Names(addresses, aliases, ports, reverse)


def _distinct(pods: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(ip for ip, _ in pods))


def _label(ip: str, hostname: str) -> str:
    return hostname.lower() or _dashed(ip)


def _dashed(ip: str) -> str:
    return ip.replace(".", "-").replace(":", "-")


def reverse_name(name: str) -> str:
    """The address that a name below in-addr.arpa or ip6.arpa asks for; empty for any other."""
    if name.endswith(".in-addr.arpa"):
        parts = name.removesuffix(".in-addr.arpa").split(".")
        text = ".".join(reversed(parts))
    elif name.endswith(".ip6.arpa"):
        digits = name.removesuffix(".ip6.arpa").split(".")[::-1]
        text = ":".join("".join(digits[i : i + 4]) for i in range(0, len(digits), 4))
    else:
        return ""
    try:
        return str(ip_address(text))
    except ValueError:
        return ""


def is_of_services(address: str) -> bool:
    return ip_address(address) in SERVICE_NETWORK if _is_ipv4(address) else False


def _is_ipv4(address: str) -> bool:
    try:
        IPv4Address(address)
    except ValueError:
        return False
    return True
