"""Parsers of `winpod run` options into CRI messages. Pure; accepts docker's syntax."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from pathlib import Path

from winpod.compute.disk_mounts import DISK_KINDS
from winpod.cri.proto import api_pb2 as api
from winpod.errors import InvalidInput
from winpod.quantities import parse_quantity
from winpod.windows.handlers import invalid_annotation_reason

_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,62}", re.ASCII)
_HOSTNAME = re.compile(r"[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?", re.ASCII)
_PORT = re.compile(r"(?:(.+):)?(\d+):(\d+)(?:/(tcp|udp|sctp))?", re.ASCII)
_DESTINATION = re.compile(r"[a-zA-Z]:|\\\\", re.ASCII)
_PROTOCOLS = {"tcp": api.TCP, "udp": api.UDP, "sctp": api.SCTP}
_DOCKER_UNITS = {"b": 1, "k": 1024, "m": 1024**2, "g": 1024**3}
_CPU_MAXIMUM = 10_000


def parse_variable(text: str, environment: Mapping[str, str]) -> api.KeyValue:
    """Parse `NAME=value`, or `NAME` to copy the variable from the environment."""
    name, sign, value = text.partition("=")
    if not sign and name in environment:
        value = environment[name]
    elif not name or not sign:
        raise InvalidInput(
            f'"{text}" is not an environment variable.',
            "Write NAME=value, or the NAME of a variable in the environment.",
        )
    return api.KeyValue(key=name, value=value.encode())


def parse_env_file(text: str, environment: Mapping[str, str]) -> list[api.KeyValue]:
    """Parse an env file: a variable per line; empty lines and # comments are skipped."""
    lines = (line.strip() for line in text.splitlines())
    return [
        parse_variable(line, environment) for line in lines if line and not line.startswith("#")
    ]


def parse_annotation(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not key or not sign:
        raise InvalidInput(f'"{text}" is not an annotation.', "Write KEY=VALUE.")
    if expected := invalid_annotation_reason(key, value):
        raise InvalidInput(f'The annotation {key} is "{value}", and must be {expected}.')
    return key, value


def parse_mount(text: str) -> api.Mount:
    disk = next((f"{kind}://" for kind in DISK_KINDS if text.startswith(f"{kind}://")), "")
    source, _, rest = text.removeprefix(disk).partition(":")
    destination = rest.removesuffix(":ro").removesuffix(":rw")
    if not source or not _DESTINATION.match(destination):
        raise InvalidInput(
            f'"{text}" is not a mount.', "Write /host/path:C:\\container\\path[:ro]."
        )
    host_path = source if source.startswith("\\\\") else f"{disk}{Path(source).absolute()}"
    return api.Mount(host_path=host_path, container_path=destination, readonly=rest.endswith(":ro"))


def parse_port(text: str) -> api.PortMapping:
    match = _PORT.fullmatch(text)
    if match is None:
        raise InvalidInput(
            f'"{text}" is not a pair of ports.', "Write 8080:80, 127.0.0.1:8080:80 or 53:53/udp."
        )
    address, host, container, protocol = match.groups()
    if not (0 < int(host) < 65536 and 0 < int(container) < 65536):
        raise InvalidInput(f'"{text}" is not a pair of ports.', "Ports go from 1 to 65535.")
    return api.PortMapping(
        protocol=_PROTOCOLS[protocol or "tcp"],
        container_port=int(container),
        host_port=int(host),
        host_ip=(address or "").strip("[]"),
    )


def describe_ports(ports: Iterable[api.PortMapping]) -> str:
    """Format port mappings as `ps` shows them: `8080->80/tcp`."""
    names = {number: name for name, number in _PROTOCOLS.items()}
    return ", ".join(
        f"{f'{port.host_ip}:' if port.host_ip else ''}{port.host_port}->{port.container_port}/"
        f"{names[port.protocol]}"
        for port in ports
    )


def describe_stdio(stdin: bool, tty: bool) -> str:
    return " ".join(name for name, has in (("stdin", stdin), ("tty", tty)) if has)


def parse_memory(text: str) -> int:
    """Parse docker (`512m`, `2g`) or Kubernetes (`512Mi`, `2Gi`) sizes. Empty means no limit."""
    if not text:
        return 0
    number, unit = text[:-1], text[-1].lower()
    if unit in _DOCKER_UNITS and number.isdecimal():
        amount = int(number) * _DOCKER_UNITS[unit]
    else:
        amount = int(parse_quantity(text) or 0)
    if amount <= 0:
        raise InvalidInput(f'"{text}" is not an amount of memory.', "Write 512m or 2Gi.")
    return amount


def parse_cpus(text: str, host_cpus: int) -> tuple[int, int]:
    """Return CPU count and maximum: whole CPUs as a count, fractions as a share of the host."""
    if not text:
        return 0, 0
    amount = parse_quantity(text)
    if amount is None or amount <= 0:
        raise InvalidInput(f'"{text}" is not a number of processors.', "Write 2 or 0.5.")
    if amount == int(amount):
        return int(amount), 0
    return 0, min(max(round(float(amount) / host_cpus * _CPU_MAXIMUM), 1), _CPU_MAXIMUM)


def check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f'"{name}" is not a valid container name.',
            "Use up to 63 letters, digits, -, _ and ., starting with a letter or digit.",
        )
    return name


def check_hostname(name: str) -> str:
    if not _HOSTNAME.fullmatch(name):
        raise InvalidInput(
            f'"{name}" is not a valid host name.',
            "Use up to 63 letters, digits and -, starting and ending with a letter or digit.",
        )
    return name


def check_address(text: str) -> str:
    try:
        return str(ip_address(text))
    except ValueError:
        raise InvalidInput(
            f'"{text}" is not the IP address of a DNS server.', "Write one such as 1.1.1.1."
        ) from None


def hostname_for(name: str) -> str:
    """Derive a valid host name from a container name."""
    return re.sub(r"[^a-z0-9-]", "-", name.lower()).strip("-")
