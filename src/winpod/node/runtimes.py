"""The runtime of a node: one of its own in this process, or one that listens at a socket."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from winpod.cri.config import Config
from winpod.cri.local import Place, assembled
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import Client
from winpod.cri.serving import Serving
from winpod.node.settings import NodeSettings
from winpod.windows.errors import WinpodError

_RETRY_SECONDS = 1.0
_log = logging.getLogger(__name__)


def place_of(node: NodeSettings, root: Path, config: Config) -> Place:
    """Images and base are shared by the nodes of a machine; everything else is the node's own.

    Its pods have a bridge of their own, of the subnet that the cluster gives to the node.
    """
    network = config.network
    if network.cni is None:
        name = hashlib.sha256(node.name.encode()).hexdigest()[:8]
        network = replace(network, subnets=(), bridge=f"winpod-{name}", cluster=node.cluster_cidr)
    runtime = replace(config.runtime, socket=root / "cri.sock", tcp="")
    return Place(
        root,
        node.build,
        config.images,
        config.handlers,
        network,
        runtime,
        config.hypervisor,
        shared=config.root,
    )


@asynccontextmanager
async def runtime_of(place: Place) -> AsyncIterator[Client]:
    """The runtime of a place, for as long as this lasts; what runs in it goes on."""
    socket = place.runtime.socket
    async with assembled(place) as server:
        await server.start(f"unix:{socket}")
        serving = Serving(str(socket), str(place.host.base), os.getpid(), background=False)
        serving.write(place.root)
        try:
            async with runtime_at(f"unix:{socket}") as client:
                yield client
        finally:
            await server.stop()
            serving.withdraw(place.root)


@asynccontextmanager
async def runtime_at(target: str) -> AsyncIterator[Client]:
    client = Client(target if ":" in target else f"unix:{target}")
    try:
        yield client
    finally:
        await client.close()


async def handlers_of(client: Client) -> frozenset[str]:
    """The handlers that a runtime can start, as soon as it answers."""
    while True:
        try:
            status = await client.call("Status", api.StatusRequest())
            return frozenset(h.name for h in status.runtime_handlers if h.name)
        except WinpodError as error:
            _log.warning("the node waits for its runtime: %s", error)
            await asyncio.sleep(_RETRY_SECONDS)
