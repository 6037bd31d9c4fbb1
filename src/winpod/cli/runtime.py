"""`winpod runtime`: serve the CRI to kubelet, crictl and other clients."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from winpod.cli.log_format import LogOptions, start_logging
from winpod.cli.options import Root, with_options
from winpod.compute.hypervisor.accelerator import is_emulation_allowed
from winpod.config import SOCKET, ComputeKind, read_config
from winpod.cri.assemble import RuntimeLocation, assemble
from winpod.cri.daemon import DaemonInfo
from winpod.windows.builds import parse_build

_log = logging.getLogger("winpod")


@with_options
def command(
    *,
    socket: Annotated[
        Path | None,
        typer.Option(
            "--socket", metavar="PATH", help=f"Unix socket to listen on (default: {SOCKET})."
        ),
    ] = None,
    tcp: Annotated[
        str,
        typer.Option(
            "--tcp", metavar="HOST:PORT", help="Also listen on TCP, for clients on Windows."
        ),
    ] = "",
    host_build: Annotated[
        str,
        typer.Option(
            "--host-build",
            metavar="BUILD",
            help="Windows build of the node, such as 2022 or 10.0.17763.",
        ),
    ] = "",
    cni: Annotated[
        Path | None,
        typer.Option(
            "--cni", metavar="DIR", help="CNI configuration directory, such as /etc/cni/net.d."
        ),
    ] = None,
    compute: Annotated[
        ComputeKind | None,
        typer.Option("--compute", help="Run containers under Wine, or simulate them for tests."),
    ] = None,
    idle_exit: Annotated[
        float,
        typer.Option(
            "--idle-exit",
            metavar="SECONDS",
            help="Exit after this long without requests (0: never).",
        ),
    ] = 0,
    root: Root = None,
    log: LogOptions,
) -> None:
    """Run the CRI v1 runtime service for Windows containers.

    Containers keep running when this process stops, and are recovered when it starts again.
    Simulated containers end with the process; they need no Wine, no network and no root.
    """
    config = read_config()
    settings = config.runtime
    start_logging(log, settings.log_level)
    host = parse_build(host_build) if host_build else config.host_build
    network = replace(config.network, cni=cni) if cni else config.network
    settings = replace(
        settings,
        socket=(socket or settings.socket).absolute(),
        tcp=tcp or settings.tcp,
        compute=compute or settings.compute,
    )
    location = RuntimeLocation(
        (root or config.root).absolute(),
        host,
        config.images,
        config.handlers,
        network,
        settings,
        config.hypervisor,
    )
    asyncio.run(_serve(location, idle_exit))


async def _serve(location: RuntimeLocation, idle_exit: float) -> None:
    settings = location.runtime
    addresses = [f"unix:{settings.socket}", *([settings.tcp] if settings.tcp else [])]
    daemon = DaemonInfo(
        str(settings.socket),
        str(location.host.base),
        os.getpid(),
        background=bool(idle_exit),
        emulation=is_emulation_allowed(location.hypervisor.allow_emulation, os.environ),
    )
    async with assemble(location) as server:
        await server.start(*addresses)
        daemon.write(location.root)
        _log.info("Serving %s on %s", location.host.describe(), ", ".join(addresses))
        stopped = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        stop_tasks: list[asyncio.Task[object]] = [asyncio.create_task(stopped.wait())]
        if idle_exit:
            stop_tasks.append(asyncio.create_task(server.wait_idle(idle_exit)))
        await asyncio.wait(stop_tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in stop_tasks:
            task.cancel()
        await server.stop()
        daemon.remove(location.root)
