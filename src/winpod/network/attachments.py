"""What is asked of a network for one sandbox, and what it answered."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from winpod.windows.errors import InvalidInput

Json = Mapping[str, Any]

PROTOCOLS = ("tcp", "udp", "sctp")

_SANDBOX_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_NO_BURST_LIMIT = 0xFFFFFFFF
_POD_ANNOTATIONS = "io.kubernetes.cri.pod-annotations"

INTERFACE = "eth0"
"""A sandbox's own interface, which its addresses are on."""


@dataclass(frozen=True)
class PortMapping:
    """A port of the host that leads to one of the sandbox. Host port 0 leads nowhere."""

    container_port: int
    host_port: int = 0
    protocol: str = "tcp"
    host_ip: str = ""

    def __post_init__(self) -> None:
        if not 1 <= self.container_port <= 65535 or not 0 <= self.host_port <= 65535:
            raise InvalidInput(
                f"The port mapping {self.host_port}:{self.container_port} is not of ports "
                "between 1 and 65535."
            )
        if self.protocol not in PROTOCOLS:
            raise InvalidInput(
                f'The protocol "{self.protocol}" of port {self.container_port} is none of '
                f"{', '.join(PROTOCOLS)}."
            )
        if self.host_ip and not _is_address(self.host_ip):
            raise InvalidInput(
                f'The host address "{self.host_ip}" of port {self.container_port} '
                "is not an IP address."
            )


@dataclass(frozen=True)
class Dns:
    servers: tuple[str, ...] = ()
    searches: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Bandwidth:
    """Bits a second into the sandbox and out of it; 0 is no limit."""

    ingress: int = 0
    egress: int = 0


@dataclass(frozen=True)
class Attachment:
    """One sandbox to connect. To take it apart again, its id and namespace are enough."""

    sandbox_id: str
    netns: Path = Path()
    pod_name: str = ""
    pod_namespace: str = ""
    pod_uid: str = ""
    hostname: str = ""
    port_mappings: tuple[PortMapping, ...] = ()
    dns: Dns = Dns()
    bandwidth: Bandwidth = Bandwidth()
    ips: tuple[str, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    interface: str = INTERFACE

    def __post_init__(self) -> None:
        if not _SANDBOX_ID.fullmatch(self.sandbox_id):
            raise InvalidInput(f'"{self.sandbox_id}" cannot be the id of a sandbox.')
        for address in self.ips:
            if not _is_address(address.partition("/")[0]):
                raise InvalidInput(f'"{address}" is not an IP address.')


@dataclass(frozen=True)
class Attached:
    """`addresses` are those of the sandbox, IPv4 before IPv6; `result` is the plugins' own."""

    network: str
    addresses: tuple[str, ...]
    dns: Dns
    result: Json

    @property
    def ip(self) -> str:
        return self.addresses[0] if self.addresses else ""


def cni_arguments(attachment: Attachment) -> tuple[tuple[str, str], ...]:
    """CNI_ARGS as Kubernetes' network plugins expect them."""
    return (
        ("IgnoreUnknown", "1"),
        ("K8S_POD_NAMESPACE", attachment.pod_namespace),
        ("K8S_POD_NAME", attachment.pod_name),
        ("K8S_POD_INFRA_CONTAINER_ID", attachment.sandbox_id),
        ("K8S_POD_UID", attachment.pod_uid),
    )


def capability_arguments(attachment: Attachment) -> dict[str, Any]:
    """What plugins may ask for by capability, under the names of the CNI conventions."""
    mappings = [_port_mapping(mapping) for mapping in attachment.port_mappings if mapping.host_port]
    dns = {
        "servers": list(attachment.dns.servers),
        "searches": list(attachment.dns.searches),
        "options": list(attachment.dns.options),
    }
    every = {
        "portMappings": mappings,
        "dns": {key: value for key, value in dns.items() if value},
        "bandwidth": _bandwidth(attachment.bandwidth),
        "ips": list(attachment.ips),
        "aliases": [attachment.hostname] if attachment.hostname else [],
        _POD_ANNOTATIONS: dict(attachment.annotations),
    }
    return {key: value for key, value in every.items() if value}


def read_result(network: str, interface: str, result: Json) -> Attached:
    dns = result.get("dns") or {}
    return Attached(
        network=network,
        addresses=_sandbox_addresses(interface, result),
        dns=Dns(
            servers=tuple(dns.get("nameservers") or ()),
            searches=tuple(dns.get("search") or ()),
            options=tuple(dns.get("options") or ()),
        ),
        result=result,
    )


def _sandbox_addresses(interface: str, result: Json) -> tuple[str, ...]:
    """Addresses of the sandbox's interface; those of other interfaces are the plugin's affair."""
    interfaces: Sequence[Json] = result.get("interfaces") or ()
    found = []
    for ip in result.get("ips") or ():
        index = ip.get("interface")
        owner = interfaces[index] if index is not None and 0 <= index < len(interfaces) else None
        if owner is None or (owner.get("sandbox") and owner["name"] == interface):
            found.append(ip["address"])
    for key in ("ip4", "ip6"):  # results before CNI 0.3
        if key in result:
            found.append(result[key]["ip"])
    addresses = [ipaddress.ip_interface(address).ip for address in found]
    return tuple(str(address) for address in sorted(addresses, key=lambda ip: ip.version))


def _port_mapping(mapping: PortMapping) -> dict[str, Any]:
    return {
        "hostPort": mapping.host_port,
        "containerPort": mapping.container_port,
        "protocol": mapping.protocol,
        "hostIP": mapping.host_ip,
    }


def _bandwidth(bandwidth: Bandwidth) -> dict[str, int]:
    limits: dict[str, int] = {}
    if bandwidth.ingress:
        limits |= {"ingressRate": bandwidth.ingress, "ingressBurst": _NO_BURST_LIMIT}
    if bandwidth.egress:
        limits |= {"egressRate": bandwidth.egress, "egressBurst": _NO_BURST_LIMIT}
    return limits


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
