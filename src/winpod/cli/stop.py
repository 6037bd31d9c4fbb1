"""`winpod stop`: end containers."""

from __future__ import annotations

from typing import Annotated

import typer

from winpod.cli.containers import Targets, for_each, with_runtime
from winpod.cli.options import Root
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import Client


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

    async def stop(client: Client) -> int:
        async def one(id_: str) -> None:
            request = api.StopContainerRequest(container_id=id_, timeout=timeout)
            await client.call("StopContainer", request)

        return await for_each(client, targets, lambda listed: one(listed.id))

    raise typer.Exit(with_runtime(root, stop))
