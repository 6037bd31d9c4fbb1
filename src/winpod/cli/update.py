"""`winpod update`: other limits for containers that run."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from winpod.cli.containers import Clients, Listed, Targets, for_each, with_runtimes
from winpod.cli.options import Root
from winpod.cli.run_options import parse_cpus, parse_memory
from winpod.cri.proto import api_pb2 as api
from winpod.windows.errors import InvalidInput


def command(
    targets: Targets,
    memory: Annotated[
        str, typer.Option("--memory", "-m", metavar="SIZE", help="Memory limit, such as 512m.")
    ] = "",
    cpus: Annotated[str, typer.Option(metavar="N", help="How many processors: 2, or 0.5.")] = "",
    root: Root = None,
) -> None:
    """Change the limits of containers while they run; a microVM grows with what is in it."""
    if not memory and not cpus:
        raise InvalidInput("there is nothing to change.", "Say --memory, --cpus or both.")
    count, maximum = parse_cpus(cpus, len(os.sched_getaffinity(0)))
    limits = api.WindowsContainerResources(
        cpu_count=count, cpu_maximum=maximum, memory_limit_in_bytes=parse_memory(memory)
    )

    async def update(clients: Clients) -> int:
        async def one(listed: Listed) -> None:
            request = api.UpdateContainerResourcesRequest(container_id=listed.id, windows=limits)
            await listed.client.call("UpdateContainerResources", request)

        return await for_each(clients, targets, one)

    raise typer.Exit(with_runtimes(root, update))
