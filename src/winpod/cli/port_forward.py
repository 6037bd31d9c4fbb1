"""`winpod port-forward`: ports of this machine that lead into a pod."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from typing import Annotated

import typer

from winpod.cli.containers import Clients, Listed, Namespace, Target, find_container, with_runtimes
from winpod.cli.options import Root
from winpod.cri.proto import api_pb2 as api
from winpod.cri.streaming.client import SessionFailed, forward_port
from winpod.windows.errors import InvalidInput, WinpodError

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

    Each connection is made anew, to localhost in the pod, or to the pod's own address.
    """
    pairs = [parse_pair(text) for text in ports]

    async def forward(clients: Clients) -> None:
        found = await find_container(clients, target, namespace=namespace)
        async with contextlib.AsyncExitStack() as stack:
            for local, remote in pairs:
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
