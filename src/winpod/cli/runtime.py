"""`winpod runtime`: the container runtime, for kubelet, crictl and everybody who speaks CRI."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from winpod.cli.options import Root
from winpod.compute.hypervisor.accelerator import is_emulation_allowed
from winpod.cri.config import read_config
from winpod.cri.local import Place, assembled
from winpod.cri.serving import Serving
from winpod.cri.settings import SOCKET, Compute
from winpod.windows.builds import parse_build

_log = logging.getLogger("winpod")


def command(
    socket: Annotated[
        Path | None,
        typer.Option("--socket", metavar="PATH", help=f"The Unix socket to listen on: {SOCKET}."),
    ] = None,
    tcp: Annotated[
        str,
        typer.Option(
            "--tcp", metavar="HOST:PORT", help="Listen here too, for clients that run on Windows."
        ),
    ] = "",
    host_build: Annotated[
        str,
        typer.Option(
            "--host-build", metavar="BUILD", help="The Windows build of the node: 2022, 10.0.17763."
        ),
    ] = "",
    cni: Annotated[
        Path | None,
        typer.Option(
            "--cni", metavar="DIR", help="CNI configurations to use, such as /etc/cni/net.d."
        ),
    ] = None,
    compute: Annotated[
        Compute | None,
        typer.Option(
            "--compute", help="Real containers under Wine, or a simulation of many, for tests."
        ),
    ] = None,
    idle_exit: Annotated[
        float,
        typer.Option(
            "--idle-exit", metavar="SECONDS", help="End when nobody has asked for anything so long."
        ),
    ] = 0,
    root: Root = None,
) -> None:
    """Run Windows containers for whoever speaks CRI v1.

    Containers go on when it stops, and it finds them again when it starts. Simulated ones end with
    it; they need no Wine, no network and no root.
    """
    config = read_config()
    settings = config.runtime
    level = settings.log_level.upper()
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(message)s")
    host = parse_build(host_build) if host_build else config.host_build
    network = replace(config.network, cni=cni) if cni else config.network
    settings = replace(
        settings,
        socket=(socket or settings.socket).absolute(),
        tcp=tcp or settings.tcp,
        compute=compute or settings.compute,
    )
    here = (root or config.root).absolute()
    place = Place(here, host, config.images, config.handlers, network, settings, config.hypervisor)
    asyncio.run(_serve(place, idle_exit))


async def _serve(place: Place, idle_exit: float) -> None:
    settings = place.runtime
    addresses = [f"unix:{settings.socket}", *([settings.tcp] if settings.tcp else [])]
    serving = Serving(
        str(settings.socket),
        str(place.host.base),
        os.getpid(),
        background=bool(idle_exit),
        emulation=is_emulation_allowed(place.hypervisor.allow_emulation, os.environ),
    )
    async with assembled(place) as server:
        await server.start(*addresses)
        serving.write(place.root)
        _log.info("%s at %s", place.host.describe(), ", ".join(addresses))
        stopped = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        ends: list[asyncio.Task[object]] = [asyncio.create_task(stopped.wait())]
        if idle_exit:
            ends.append(asyncio.create_task(server.until_idle(idle_exit)))
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()
        await server.stop()
        serving.withdraw(place.root)
