"""`winpod port-forward`: ports of this machine that lead into a pod."""

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

from winpod.cli.containers import (
    Clients,
    Listed,
    Namespace,
    Target,
    choose,
    list_containers,
    with_runtimes,
)
from winpod.cli.names import owner_named, read_names
from winpod.cli.options import Root
from winpod.cri.config import read_config
from winpod.cri.proto import api_pb2 as api
from winpod.cri.streaming.client import SessionFailed, forward_port
from winpod.node.play.client import play_of
from winpod.windows.errors import InvalidInput, NotFound, WinpodError

_PORTS = range(1, 65536)


def command(
    target: Target,
    ports: Annotated[
        list[str],
        typer.Argument(metavar="[LOCAL:]REMOTE...", help="8080:80; 80 alone is both; :80 any."),
    ],
    address: Annotated[str, typer.Option("--address", help="Where to listen.")] = "127.0.0.1",
    namespace: Namespace = "",
    root: Root = None,
) -> None:
    """Lead ports of this machine into a pod, until Ctrl-C.

    svc/NAME is a pod behind that Service, and its ports are the Service's.

    Each connection is made anew, to localhost in the pod, or to the pod's own address.
    """
    pairs = [parse_pair(text) for text in ports]

    async def forward(clients: Clients) -> None:
        listed = await list_containers(clients)
        behind = await _behind(root, target, namespace)
        if behind:
            found = choose(listed, behind.pod, namespace=behind.namespace)
        else:
            found = choose(listed, target, namespace=namespace)
        ways = [(local, behind.port(remote) if behind else remote) for local, remote in pairs]
        async with contextlib.AsyncExitStack() as stack:
            for local, remote in ways:
                server = await _listen(found, address, local, remote)
                await stack.enter_async_context(server)
                number = server.sockets[0].getsockname()[1]
                print(f"Forwarding from {address}:{number} -> {remote}", flush=True)
            await asyncio.Event().wait()

    with_runtimes(root, forward)


def parse_pair(text: str) -> tuple[int, int]:
    local, colon, remote = text.rpartition(":")
    if not remote.isdecimal() or int(remote) not in _PORTS or (local and not local.isdecimal()):
        raise InvalidInput(f'"{text}" is not a pair of ports.', "Write 8080:80, 80 or :80.")
    return (int(local or 0) if colon else int(remote)), int(remote)


@dataclass(frozen=True, slots=True)
class _Behind:
    """The pod that stands for a Service, and which of its ports each of the Service's is."""

    service: str
    namespace: str
    pod: str
    ports: Mapping[int, int]

    def port(self, asked: int) -> int:
        if found := self.ports.get(asked):
            return found
        known = ", ".join(map(str, self.ports)) or "none"
        raise InvalidInput(
            f"Service {self.service} does not have a service port {asked}.", f"It has: {known}."
        )


async def _behind(root: Path | None, target: str, namespace: str) -> _Behind | None:
    """None for what is no Service."""
    kind, _, name = owner_named(target).partition("/")
    if kind != "Service":
        return None
    config = read_config()
    config = replace(config, root=(root or config.root).absolute())
    places = [
        of
        for what, of, called in read_names(config.root)
        if (what, called) == (kind, name) and namespace in ("", of)
    ]
    if not places:
        raise NotFound(f"There is no service {name} here.", "`winpod play` runs them.")
    if len(places) > 1:
        raise InvalidInput(
            f"{target} is in the namespaces {', '.join(sorted(places))}.", "Choose one with -n."
        )
    async with play_of(config.root, config) as client:
        told = await client.get("object", kind=kind, namespace=places[0], name=name)
    if not told["behind"]:
        raise NotFound(f"There is no pod of {target} here.", "`winpod ps --pods` lists pods.")
    first = told["behind"][0]
    return _Behind(name, places[0], first["pod"], dict(first["ports"]))


async def _listen(found: Listed, address: str, local: int, remote: int) -> asyncio.Server:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = api.PortForwardRequest(pod_sandbox_id=found.sandbox.id, port=[remote])
            url = (await found.client.call("PortForward", request)).url
            await forward_port(url, reader, writer)
        except SessionFailed:
            sentence = f"{found.name} does not answer at port {remote}. Does it listen there?"
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
            f"{address}:{local} of this machine cannot be listened at: {why}.",
            f"Choose another port, or :{remote} for any that is free.",
        ) from None
