"""Ports of this machine that `winpod run` is to lead to a container: free, or a sentence.

The network would take a port that somebody has and hand its connections to one of the two.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterable

from winpod.cli.run_options import describe_ports
from winpod.cri.labels import PORTS_ANNOTATION
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import Client
from winpod.windows.errors import WinpodError

_KINDS = {api.TCP: socket.SOCK_STREAM, api.UDP: socket.SOCK_DGRAM}


class PortTaken(WinpodError):
    code = "FAILED_PRECONDITION"


async def check_ports(client: Client, ports: Iterable[api.PortMapping]) -> None:
    ports = list(ports)
    if not ports:
        return
    ready = api.PodSandboxFilter(state=api.PodSandboxStateValue(state=api.SANDBOX_READY))
    listed = await client.call("ListPodSandbox", api.ListPodSandboxRequest(filter=ready))
    taken = {
        words.partition("->")[0].rpartition(":")[2] + words[words.rindex("/") :]: pod.metadata.name
        for pod in listed.items
        for words in pod.annotations.get(PORTS_ANNOTATION, "").split(", ")
        if words
    }
    for port in ports:
        words = describe_ports([port])
        key = f"{port.host_port}{words[words.rindex('/') :]}"
        if owner := taken.get(key) or _listener(port):
            raise PortTaken(
                f"The port {key} of this machine is taken by {owner}.", "Publish another one."
            )


def _listener(port: api.PortMapping) -> str:
    """Who has it besides containers, empty where nobody has."""
    kind = _KINDS.get(port.protocol)
    if kind is None:
        return ""
    family = socket.AF_INET6 if ":" in port.host_ip else socket.AF_INET
    with socket.socket(family, kind) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((port.host_ip or "0.0.0.0", port.host_port))  # noqa: S104 - as it will be
        except OSError as error:
            return "another program" if error.errno == errno.EADDRINUSE else ""
    return ""
