"""`winpod rm`: remove containers."""

from __future__ import annotations

from typing import Annotated

import typer

from winpod.cli.containers.targets import (
    Clients,
    ListedContainer,
    Targets,
    for_each,
    remove_pod,
    run_with_runtimes,
)
from winpod.cli.options import Root
from winpod.cri.proto import api_pb2 as api
from winpod.errors import InvalidInput


def command(
    targets: Targets,
    force: Annotated[
        bool, typer.Option("--force", "-f", help="Kill and remove running containers too.")
    ] = False,
    root: Root = None,
) -> None:
    """Remove containers.

    Containers started by `run` are removed with their logs and network. Containers of other pods
    may be started again by the kubelet or `play`.
    """

    async def remove(clients: Clients) -> int:
        async def remove_one(listed: ListedContainer) -> None:
            if listed.is_running and not force:
                raise InvalidInput(
                    f"{listed.name} is running.",
                    f"Stop it first (winpod stop {listed.name}), or use -f.",
                )
            if listed.is_from_run:
                await remove_pod(listed.client, listed.sandbox.id)
                return
            request = api.RemoveContainerRequest(container_id=listed.id)
            await listed.client.call("RemoveContainer", request)

        return await for_each(clients, targets, remove_one)

    raise typer.Exit(run_with_runtimes(root, remove))
