"""`winpod stop`: end containers."""

from __future__ import annotations

from typing import Annotated

import typer

from winpod.cli.containers import Clients, Listed, Targets, for_each, with_runtimes
from winpod.cli.options import Root
from winpod.cri.proto import api_pb2 as api


def command(
    targets: Targets,
    timeout: Annotated[
        int,
        typer.Option(
            "--time", "-t", metavar="SECONDS", min=0, help="How long to wait for its end."
        ),
    ] = 10,
    root: Root = None,
) -> None:
    """Stop containers: they are asked to end, and killed if they do not."""

    async def stop(clients: Clients) -> int:
        async def one(listed: Listed) -> None:
            request = api.StopContainerRequest(container_id=listed.id, timeout=timeout)
            await listed.client.call("StopContainer", request)

        return await for_each(clients, targets, one)

    raise typer.Exit(with_runtimes(root, stop))
