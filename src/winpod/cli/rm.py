"""`winpod rm`: remove containers."""

from __future__ import annotations

from typing import Annotated

import typer

from winpod.cli.containers import Clients, Listed, Targets, for_each, remove_pod, with_runtimes
from winpod.cli.options import Root
from winpod.cri.proto import api_pb2 as api
from winpod.windows.errors import InvalidInput


def command(
    targets: Targets,
    force: Annotated[
        bool, typer.Option("--force", "-f", help="Those that run too; they are killed.")
    ] = False,
    root: Root = None,
) -> None:
    """Remove containers that have ended.

    What `run` started goes with its logs and its network. The others are only a part of their pod:
    whoever runs the pod may start them again.
    """

    async def remove(clients: Clients) -> int:
        async def one(listed: Listed) -> None:
            if listed.is_running and not force:
                raise InvalidInput(
                    f"{listed.name} is running.",
                    f"Stop it first (winpod stop {listed.name}), or use -f.",
                )
            if listed.is_of_run:
                await remove_pod(listed.client, listed.sandbox.id)
                return
            request = api.RemoveContainerRequest(container_id=listed.id)
            await listed.client.call("RemoveContainer", request)

        return await for_each(clients, targets, one)

    raise typer.Exit(with_runtimes(root, remove))
