"""`winpod update`: update resource limits of running containers."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from winpod.cli.containers.run_options import parse_cpus, parse_memory
from winpod.cli.containers.targets import (
    Clients,
    ListedContainer,
    Targets,
    for_each,
    run_with_runtimes,
)
from winpod.cli.options import Root
from winpod.cri.proto import api_pb2 as api
from winpod.errors import InvalidInput


def command(
    targets: Targets,
    memory: Annotated[
        str,
        typer.Option("--memory", "-m", metavar="SIZE", help="Memory limit, such as 512m or 2Gi."),
    ] = "",
    cpus: Annotated[str, typer.Option(metavar="N", help="CPU limit, such as 2 or 0.5.")] = "",
    root: Root = None,
) -> None:
    """Update the resource limits of running containers.

    A microVM is resized along with its containers.
    """
    if not memory and not cpus:
        raise InvalidInput("no limit was given.", "Give --memory, --cpus or both.")
    count, maximum = parse_cpus(cpus, len(os.sched_getaffinity(0)))
    limits = api.WindowsContainerResources(
        cpu_count=count, cpu_maximum=maximum, memory_limit_in_bytes=parse_memory(memory)
    )

    async def update(clients: Clients) -> int:
        async def update_one(listed: ListedContainer) -> None:
            request = api.UpdateContainerResourcesRequest(container_id=listed.id, windows=limits)
            await listed.client.call("UpdateContainerResources", request)

        return await for_each(clients, targets, update_one)

    raise typer.Exit(run_with_runtimes(root, update))
