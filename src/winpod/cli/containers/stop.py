"""`winpod stop`: stop containers."""

from __future__ import annotations

from typing import Annotated

import typer

from winpod.cli.containers.targets import (
    Clients,
    ListedContainer,
    Targets,
    for_each,
    run_with_runtimes,
)
from winpod.cli.options import Root
from winpod.cri.proto import api_pb2 as api


def command(
    targets: Targets,
    timeout: Annotated[
        int,
        typer.Option(
            "--time",
            "-t",
            metavar="SECONDS",
            min=0,
            help="Seconds to wait before killing the container.",
        ),
    ] = 10,
    root: Root = None,
) -> None:
    """Stop running containers.

    Containers that do not exit in time are killed.
    """

    async def stop(clients: Clients) -> int:
        async def stop_one(listed: ListedContainer) -> None:
            request = api.StopContainerRequest(container_id=listed.id, timeout=timeout)
            await listed.client.call("StopContainer", request)

        return await for_each(clients, targets, stop_one)

    raise typer.Exit(run_with_runtimes(root, stop))
