"""`winpod node`: run Windows nodes of a Kubernetes cluster on this machine."""

from __future__ import annotations

import asyncio
import logging
import platform
import signal
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from winpod.cli.log_format import LogOptions, start_logging
from winpod.cli.options import Root, with_options
from winpod.config import read_config
from winpod.kubelet.node.multi_node import run_nodes
from winpod.kubelet.node.node_options import (
    ConnectionOptions,
    DirectoryOptions,
    NetworkOptions,
    NodeOptions,
    NodeSetup,
    ReservationOptions,
    ServerOptions,
    read_nodes,
)

_log = logging.getLogger("winpod")


@with_options
def command(
    *,
    connection: ConnectionOptions,
    nodes: Annotated[
        Path | None,
        typer.Option("--nodes", metavar="FILE", help="Run the nodes defined in this file."),
    ] = None,
    node: NodeOptions,
    reservations: ReservationOptions,
    network: NetworkOptions,
    server: ServerOptions,
    directories: DirectoryOptions,
    root: Root = None,
    log: LogOptions,
) -> None:
    """Join a Kubernetes cluster as one or more Windows nodes.

    Pods keep running when this process stops, and are recovered when it starts again. Simulated
    pods end with the process.
    """
    config = read_config()
    config = replace(config, root=(root or config.root).absolute())
    start_logging(log, config.runtime.log_level)
    setup = NodeSetup(
        config,
        replace(connection, kubeconfig=connection.kubeconfig.absolute()),
        replace(node, name=(node.name or platform.node()).lower()),
        reservations,
        network,
        server,
        directories,
    )
    setups = read_nodes(nodes, setup) if nodes else [setup]
    asyncio.run(_until_stopped([_with_port(setup, n) for n, setup in enumerate(setups)]))


def _with_port(setup: NodeSetup, number: int) -> NodeSetup:
    """Return the setup of the n-th node, whose port follows those of the nodes before it."""
    port = setup.server.port
    return replace(setup, server=replace(setup.server, port=port and port + number))


async def _until_stopped(nodes: list[NodeSetup]) -> None:
    running = asyncio.create_task(run_nodes(nodes))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, running.cancel)
    try:
        await running
    except asyncio.CancelledError:
        _log.info("Node is shutting down; its pods keep running")
