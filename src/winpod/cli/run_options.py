"""What people write after `winpod run`, as the CRI has it. Pure; docker's forms are understood."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from pathlib import Path

from winpod.compute.disk_sources import DISKS
from winpod.cri.proto import api_pb2 as api
from winpod.windows.errors import InvalidInput
from winpod.windows.guest_sizes import wrong_value
from winpod.windows.quantities import parse_quantity

_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,62}", re.ASCII)
_HOSTNAME = re.compile(r"[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?", re.ASCII)
_PORT = re.compile(r"(?:(.+):)?(\d+):(\d+)(?:/(tcp|udp|sctp))?", re.ASCII)
_DESTINATION = re.compile(r"[a-zA-Z]:|\\\\", re.ASCII)
_PROTOCOLS = {"tcp": api.TCP, "udp": api.UDP, "sctp": api.SCTP}
_DOCKER_UNITS = {"b": 1, "k": 1024, "m": 1024**2, "g": 1024**3}
_FULL = 10_000


def parse_variable(text: str, own: Mapping[str, str]) -> api.KeyValue:
    """`NAME=value`, or the `NAME` of a variable that the shell has too."""
    name, sign, value = text.partition("=")
    if not sign and name in own:
        value = own[name]
    elif not name or not sign:
        raise InvalidInput(
            f'"{text}" is not a variable.', "Write NAME=value, or the name of one that is set here."
        )
    return api.KeyValue(key=name, value=value.encode())


def parse_env_file(text: str, own: Mapping[str, str]) -> list[api.KeyValue]:
    """One variable a line; empty lines and those that begin with # count for nothing."""
    lines = (line.strip() for line in text.splitlines())
    return [parse_variable(line, own) for line in lines if line and not line.startswith("#")]


def parse_annotation(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not key or not sign:
        raise InvalidInput(f'"{text}" is not an annotation.', "Write KEY=VALUE.")
    if must_be := wrong_value(key, value):
        raise InvalidInput(f'The annotation {key} is "{value}", and must be {must_be}.')
    return key, value


def parse_mount(text: str) -> api.Mount:
    disk = next((f"{kind}://" for kind in DISKS if text.startswith(f"{kind}://")), "")
    source, _, rest = text.removeprefix(disk).partition(":")
    destination = rest.removesuffix(":ro").removesuffix(":rw")
    if not source or not _DESTINATION.match(destination):
        raise InvalidInput(f'"{text}" is not a mount.', "Write /path/here:C:\\path\\there[:ro].")
    here = source if source.startswith("\\\\") else f"{disk}{Path(source).absolute()}"
    return api.Mount(host_path=here, container_path=destination, readonly=rest.endswith(":ro"))


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
    """`8080->80/tcp`, as `ps` shows them."""
    names = {number: name for name, number in _PROTOCOLS.items()}
    return ", ".join(
        f"{f'{port.host_ip}:' if port.host_ip else ''}{port.host_port}->{port.container_port}/"
        f"{names[port.protocol]}"
        for port in ports
    )


def describe_stdio(stdin: bool, tty: bool) -> str:
    return " ".join(name for name, has in (("stdin", stdin), ("tty", tty)) if has)


def parse_memory(text: str) -> int:
    """`512m` and `2g`, as docker counts; `512Mi` and `2Gi`, as Kubernetes does. Empty is none."""
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
    """Count and maximum: `2` is two processors, `0.5` a share of all that the machine has."""
    if not text:
        return 0, 0
    amount = parse_quantity(text)
    if amount is None or amount <= 0:
        raise InvalidInput(f'"{text}" is not a number of processors.', "Write 2 or 0.5.")
    if amount == int(amount):
        return int(amount), 0
    return 0, min(max(round(float(amount) / host_cpus * _FULL), 1), _FULL)


def check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f'"{name}" is not a name for a container.',
            "Use up to 63 letters, digits, -, _ and ., and begin with a letter or a digit.",
        )
    return name


def check_hostname(name: str) -> str:
    if not _HOSTNAME.fullmatch(name):
        raise InvalidInput(
            f'"{name}" is not a name for a computer.',
            "Use up to 63 letters, digits and -, and begin and end with a letter or a digit.",
        )
    return name


def check_address(text: str) -> str:
    try:
        return str(ip_address(text))
    except ValueError:
        raise InvalidInput(
            f'"{text}" is not the address of a name server.', "Write one such as 1.1.1.1."
        ) from None


def hostname_for(name: str) -> str:
    """What a computer of this name is called."""
    return re.sub(r"[^a-z0-9-]", "-", name.lower()).strip("-")
