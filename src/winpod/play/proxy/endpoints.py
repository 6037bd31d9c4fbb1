"""Service endpoints, service allocation and the DNS names of services and pods."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network, ip_address

from winpod.errors import InvalidInput
from winpod.k8s.models import core_v1 as v1
from winpod.k8s.pods import is_deleted, metadata_of, spec_of
from winpod.play.pod_template import is_ready, is_terminal, name_of

DOMAIN = "cluster.local"
SERVICE_NETWORK = IPv4Network("10.214.0.0/16")
DNS_ADDRESS = "10.214.0.10"
_FIRST_ADDRESS_INDEX, _NODE_PORTS = 256, range(30000, 32768)


@dataclass(frozen=True, slots=True)
class ServicePort:
    """One port of a service and its targets."""

    name: str
    protocol: str
    port: int
    node_port: int = 0
    targets: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class ServiceEndpoints:
    """The current state of a service. `pods` are the endpoint addresses with their hostnames."""

    namespace: str
    name: str
    address: str
    is_external: bool
    ports: tuple[ServicePort, ...]
    pods: tuple[tuple[str, str], ...] = ()
    external_name: str = ""
    sticky: bool = False
    is_balanced: bool = False

    @property
    def is_headless(self) -> bool:
        return not self.address and not self.external_name


def endpoints_of(service: v1.Service, pods: Iterable[v1.Pod]) -> ServiceEndpoints:
    spec, metadata = service.spec, service.metadata
    if spec is None or metadata is None:
        raise InvalidInput("The service has no spec.")
    selected = [pod for pod in pods if _is_endpoint(pod, service)]
    address = "" if spec.clusterIP in (None, "None") else str(spec.clusterIP)
    return ServiceEndpoints(
        namespace=metadata.namespace or "",
        name=metadata.name or "",
        address="" if spec.type == "ExternalName" else address,
        is_external=spec.type in ("NodePort", "LoadBalancer"),
        ports=tuple(_service_ports(spec, selected)),
        pods=tuple((ip, _hostname(pod)) for pod in selected for ip in addresses_of(pod)),
        external_name=spec.externalName or "" if spec.type == "ExternalName" else "",
        sticky=spec.sessionAffinity == "ClientIP",
        is_balanced=spec.type == "LoadBalancer",
    )


def service_pods(service: v1.Service, pods: Iterable[v1.Pod]) -> list[tuple[str, dict[int, int]]]:
    """List the running pods a service selects, ready ones first.

    Each comes with its target port for every port of the service.
    """
    spec = service.spec or v1.ServiceSpec()
    running = [
        p for p in pods if _is_selected(p, service) and addresses_of(p) and not is_deleted(p)
    ]
    return [
        (name_of(pod), {port.port: _target(port, pod) for port in spec.ports or ()})
        for pod in sorted(running, key=lambda pod: (not is_ready(pod), name_of(pod)))
    ]


def _is_endpoint(pod: v1.Pod, service: v1.Service) -> bool:
    publish_unready = bool(
        service.spec and service.spec.publishNotReadyAddresses
    ) and not is_deleted(pod)
    is_published = is_ready(pod) or publish_unready
    return is_published and _is_selected(pod, service) and bool(addresses_of(pod))


def _is_selected(pod: v1.Pod, service: v1.Service) -> bool:
    spec, metadata = service.spec, metadata_of(pod)
    if not spec or not spec.selector or not service.metadata or is_terminal(pod):
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


def _service_ports(spec: v1.ServiceSpec, pods: Sequence[v1.Pod]) -> Iterator[ServicePort]:
    for port in spec.ports or ():
        targets = tuple(
            (address, number)
            for pod in pods
            for address in addresses_of(pod)[:1]
            if (number := _target(port, pod))
        )
        yield ServicePort(
            port.name or "", port.protocol or "TCP", port.port, port.nodePort or 0, targets
        )


def _target(port: v1.ServicePort, pod: v1.Pod) -> int:
    """Return the target port of the pod; 0 if it has no port of that name."""
    target = port.port if port.targetPort in (None, "", 0) else port.targetPort
    if isinstance(target, int) or str(target).isdecimal():
        return int(target)
    return next(
        (
            container_port.containerPort
            for container in spec_of(pod).containers
            for container_port in container.ports or ()
            if container_port.name == target
        ),
        0,
    )


def allocate_service(
    service: dict[str, object],
    before: Mapping[str, object] | None,
    all_: Iterable[Mapping[str, object]],
) -> None:
    """Assign cluster IP and node ports, keeping those assigned before."""
    spec = _spec(service)
    old = _spec(before) if before else {}
    kind = spec.setdefault("type", "ClusterIP")
    others = [_spec(other) for other in all_]
    if kind == "ExternalName":
        return
    taken = {str(other.get("clusterIP")) for other in others}
    address = spec.get("clusterIP") or old.get("clusterIP") or _free_address(taken)
    spec["clusterIP"] = address
    if kind == "ClusterIP":
        return
    old_node_ports = {
        (port.get("protocol", "TCP"), port["port"]): port.get("nodePort") for port in _ports(old)
    }
    used = {port.get("nodePort") for other in others for port in _ports(other)}
    for port in _ports(spec):
        key = (port.get("protocol", "TCP"), port["port"])
        port.setdefault(
            "nodePort", old_node_ports.get(key) or next(n for n in _NODE_PORTS if n not in used)
        )
        used.add(port["nodePort"])


def _spec(service: Mapping[str, object]) -> dict[str, object]:
    spec = service["spec"]
    if not isinstance(spec, dict):
        raise InvalidInput("The service has no spec.")
    return spec


def _ports(spec: Mapping[str, object]) -> list[dict[str, object]]:
    ports = spec.get("ports") or []
    return ports if isinstance(ports, list) else []


def _free_address(taken: Iterable[str]) -> str:
    used = set(taken)
    numbers = range(_FIRST_ADDRESS_INDEX, SERVICE_NETWORK.num_addresses - 1)
    return next(str(SERVICE_NETWORK[n]) for n in numbers if str(SERVICE_NETWORK[n]) not in used)


@dataclass(frozen=True, slots=True)
class DnsNames:
    """DNS records of the cluster: addresses, aliases, SRV ports and reverse names."""

    addresses: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    ports: Mapping[str, tuple[tuple[int, str], ...]] = field(default_factory=dict)
    reverse: Mapping[str, str] = field(default_factory=dict)

    def contains(self, name: str) -> bool:
        """Whether the name has records, or is a parent of a name that has."""
        if name in self.addresses or name in self.aliases or name in self.ports:
            return True
        ending = f".{name}"
        tables = (self.addresses, self.aliases, self.ports)
        return any(known.endswith(ending) for table in tables for known in table)


def dns_names(
    services: Iterable[ServiceEndpoints], pods: Iterable[v1.Pod], domain: str = DOMAIN
) -> DnsNames:
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
        for port in service.ports:
            if port.name:
                key = f"_{port.name}._{port.protocol.lower()}.{name}"
                hosts = members if service.is_headless else [name]
                ports[key] = tuple((port.port, host) for host in dict.fromkeys(hosts))
    for pod in pods:
        namespace = metadata_of(pod).namespace
        for ip in addresses_of(pod):
            addresses[f"{_dashed(ip)}.{namespace}.pod.{domain}"] = (ip,)
            reverse.setdefault(ip, f"{_dashed(ip)}.{namespace}.pod.{domain}")
    addresses[f"dns-version.{domain}"] = ()
    return DnsNames(addresses, aliases, ports, reverse)


def _distinct(pods: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(ip for ip, _ in pods))


def _label(ip: str, hostname: str) -> str:
    return hostname.lower() or _dashed(ip)


def _dashed(ip: str) -> str:
    return ip.replace(".", "-").replace(":", "-")


def reverse_name(name: str) -> str:
    """Return the address of a name below in-addr.arpa or ip6.arpa; empty for any other name."""
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


def is_service_address(address: str) -> bool:
    return ip_address(address) in SERVICE_NETWORK if _is_ipv4(address) else False


def _is_ipv4(address: str) -> bool:
    try:
        IPv4Address(address)
    except ValueError:
        return False
    return True
