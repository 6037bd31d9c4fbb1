"""The network request of one sandbox, and its result, as data."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from winpod.errors import InvalidInput

Json = Mapping[str, Any]

PROTOCOLS = ("tcp", "udp", "sctp")

_SANDBOX_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_NO_BURST_LIMIT = 0xFFFFFFFF
_POD_ANNOTATIONS = "io.kubernetes.cri.pod-annotations"

INTERFACE = "eth0"
"""Name of the sandbox's interface in its namespace, which has the pod's addresses."""


@dataclass(frozen=True)
class PortMapping:
    """A host port forwarded to a sandbox port. Host port 0 means that nothing is forwarded."""

    container_port: int
    host_port: int = 0
    protocol: str = "tcp"
    host_ip: str = ""

    def __post_init__(self) -> None:
        if not 1 <= self.container_port <= 65535 or not 0 <= self.host_port <= 65535:
            raise InvalidInput(
                f"The port mapping {self.host_port}:{self.container_port} is invalid: ports are "
                "between 1 and 65535."
            )
        if self.protocol not in PROTOCOLS:
            raise InvalidInput(
                f'The protocol "{self.protocol}" of port {self.container_port} is not one of '
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
    """Limits in bits per second into and out of the sandbox; 0 means unlimited."""

    ingress: int = 0
    egress: int = 0


@dataclass(frozen=True)
class Attachment:
    """A sandbox to connect. To disconnect it, its id and namespace are sufficient."""

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
            raise InvalidInput(f'"{self.sandbox_id}" is not a valid sandbox id.')
        for address in self.ips:
            if not _is_address(address.partition("/")[0]):
                raise InvalidInput(f'"{address}" is not an IP address.')


@dataclass(frozen=True)
class AttachResult:
    """Addresses of the sandbox, IPv4 before IPv6; `result` is the CNI result as returned."""

    network: str
    addresses: tuple[str, ...]
    dns: Dns
    result: Json

    @property
    def ip(self) -> str:
        return self.addresses[0] if self.addresses else ""


def cni_arguments(attachment: Attachment) -> tuple[tuple[str, str], ...]:
    """Return CNI_ARGS as Kubernetes network plugins expect them."""
    return (
        ("IgnoreUnknown", "1"),
        ("K8S_POD_NAMESPACE", attachment.pod_namespace),
        ("K8S_POD_NAME", attachment.pod_name),
        ("K8S_POD_INFRA_CONTAINER_ID", attachment.sandbox_id),
        ("K8S_POD_UID", attachment.pod_uid),
    )


def capability_arguments(attachment: Attachment) -> dict[str, Any]:
    """Return the capability arguments under the names of the CNI conventions."""
    mappings = [_port_mapping(mapping) for mapping in attachment.port_mappings if mapping.host_port]
    dns = {
        "servers": list(attachment.dns.servers),
        "searches": list(attachment.dns.searches),
        "options": list(attachment.dns.options),
    }
    arguments = {
        "portMappings": mappings,
        "dns": {key: value for key, value in dns.items() if value},
        "bandwidth": _bandwidth(attachment.bandwidth),
        "ips": list(attachment.ips),
        "aliases": [attachment.hostname] if attachment.hostname else [],
        _POD_ANNOTATIONS: dict(attachment.annotations),
    }
    return {key: value for key, value in arguments.items() if value}


def read_result(network: str, interface: str, result: Json) -> AttachResult:
    dns = result.get("dns") or {}
    return AttachResult(
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
    """Return the addresses of the sandbox's interface, ignoring those of other interfaces."""
    interfaces: Sequence[Json] = result.get("interfaces") or ()
    texts = []
    for ip in result.get("ips") or ():
        index = ip.get("interface")
        owner = interfaces[index] if index is not None and 0 <= index < len(interfaces) else None
        if owner is None or (owner.get("sandbox") and owner["name"] == interface):
            texts.append(ip["address"])
    for key in ("ip4", "ip6"):  # results before CNI 0.3
        if key in result:
            texts.append(result[key]["ip"])
    addresses = [ipaddress.ip_interface(text).ip for text in texts]
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
