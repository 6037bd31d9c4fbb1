"""`winpod port-forward`: forward local ports to a pod."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from winpod.cli.containers.targets import (
    Clients,
    ListedContainer,
    Namespace,
    Target,
    choose_container,
    list_containers,
    run_with_runtimes,
)
from winpod.cli.options import Root
from winpod.cli.play.names import owner_named
from winpod.config import read_config
from winpod.cri.proto import api_pb2 as api
from winpod.cri.streaming.client import SessionFailed, forward_port
from winpod.errors import InvalidInput, NotFound, WinpodError
from winpod.play.apiserver.database import read_names
from winpod.play.client import connect_or_start

_PORTS = range(1, 65536)


def command(
    target: Target,
    ports: Annotated[
        list[str],
        typer.Argument(
            metavar="[LOCAL:]REMOTE...",
            help="Ports to forward: 8080:80, 80 for both, :80 for any local port.",
        ),
    ],
    address: Annotated[
        str, typer.Option("--address", help="Local address to listen on.")
    ] = "127.0.0.1",
    namespace: Namespace = "",
    root: Root = None,
) -> None:
    """Forward local ports to a pod.

    svc/NAME selects a pod of that Service; the ports are then the Service's. Runs until Ctrl-C.

    Each connection goes to localhost in the pod, or else to the pod IP.
    """
    pairs = [parse_pair(text) for text in ports]

    async def forward(clients: Clients) -> None:
        listed = await list_containers(clients)
        service_pod = await _resolve_service(root, target, namespace)
        if service_pod:
            found = choose_container(listed, service_pod.pod, namespace=service_pod.namespace)
        else:
            found = choose_container(listed, target, namespace=namespace)
        forwards = [
            (local, service_pod.port(remote) if service_pod else remote) for local, remote in pairs
        ]
        async with contextlib.AsyncExitStack() as stack:
            for local, remote in forwards:
                server = await _listen(found, address, local, remote)
                await stack.enter_async_context(server)
                number = server.sockets[0].getsockname()[1]
                print(f"Forwarding from {address}:{number} -> {remote}", flush=True)
            await asyncio.Event().wait()

    run_with_runtimes(root, forward)


def parse_pair(text: str) -> tuple[int, int]:
    local, colon, remote = text.rpartition(":")
    if not remote.isdecimal() or int(remote) not in _PORTS or (local and not local.isdecimal()):
        raise InvalidInput(f'"{text}" is not a pair of ports.', "Write 8080:80, 80 or :80.")
    return (int(local or 0) if colon else int(remote)), int(remote)


@dataclass(frozen=True, slots=True)
class _ServicePod:
    """The pod chosen for a Service, and the target port of each service port."""

    service: str
    namespace: str
    pod: str
    ports: Mapping[int, int]

    def port(self, service_port: int) -> int:
        if target := self.ports.get(service_port):
            return target
        available = ", ".join(map(str, self.ports)) or "none"
        raise InvalidInput(
            f"Service {self.service} does not have a service port {service_port}.",
            f"It has: {available}.",
        )


async def _resolve_service(root: Path | None, target: str, namespace: str) -> _ServicePod | None:
    """Resolve a Service to a pod. Returns None if the target is not a Service."""
    kind, _, name = owner_named(target).partition("/")
    if kind != "Service":
        return None
    config = read_config()
    config = replace(config, root=(root or config.root).absolute())
    namespaces = [
        object_namespace
        for object_kind, object_namespace, object_name in read_names(config.root)
        if (object_kind, object_name) == (kind, name) and namespace in ("", object_namespace)
    ]
    if not namespaces:
        raise NotFound(f"Service {name} not found.", "Create it with `winpod play`.")
    if len(namespaces) > 1:
        raise InvalidInput(
            f"{target} exists in the namespaces {', '.join(sorted(namespaces))}.",
            "Choose one with -n.",
        )
    async with connect_or_start(config.root, config) as client:
        service = await client.get("object", kind=kind, namespace=namespaces[0], name=name)
    if not service["behind"]:
        raise NotFound(f"{target} has no running pod.", "List pods with `winpod ps --pods`.")
    first = service["behind"][0]
    return _ServicePod(name, namespaces[0], first["pod"], dict(first["ports"]))


async def _listen(found: ListedContainer, address: str, local: int, remote: int) -> asyncio.Server:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = api.PortForwardRequest(pod_sandbox_id=found.sandbox.id, port=[remote])
            url = (await found.client.call("PortForward", request)).url
            await forward_port(url, reader, writer)
        except SessionFailed:
            sentence = f"{found.name} does not accept connections on port {remote}."
            print(f"winpod: {sentence}", file=sys.stderr)
        except WinpodError as error:
            print(f"winpod: {error}", file=sys.stderr)
        finally:
            writer.close()

    try:
        return await asyncio.start_server(serve, address, local)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        raise InvalidInput(
            f"cannot listen on {address}:{local}: {why}.",
            f"Choose another port, or :{remote} for a free one.",
        ) from None
