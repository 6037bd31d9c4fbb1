"""`winpod down`: end what is played."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace
from typing import Annotated, Any

import typer

from winpod.cli.names import read_names
from winpod.cli.options import Format, Output, Root
from winpod.cli.play_changes import list_changes, print_changes
from winpod.cri.config import Config, read_config
from winpod.node.play.client import PlayClient, play_of
from winpod.node.play.objects import key_of, read_files
from winpod.windows.errors import Unavailable

_POLL_SECONDS = 0.2


def command(
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FILE]...", help="What these manifests asked for; else all."),
    ] = None,
    filename: Annotated[
        list[str] | None, typer.Option("--filename", "-f", help="The same, as kubectl has it.")
    ] = None,
    volumes: Annotated[
        bool, typer.Option("--volumes", "-v", help="Claims too, with what was written to them.")
    ] = False,
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="For objects that name none.")
    ] = "default",
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Until pods are gone.")] = True,
    root: Root = None,
    output: Output = Format.TEXT,
) -> None:
    """End what `play` runs: all of it, or what these manifests asked for.

    Pods have the time to end that they ask for. Claims stay, unless --volumes is given.
    """
    config = read_config()
    config = replace(config, root=(root or config.root).absolute())
    if not read_names(config.root):
        print('{"changes": []}' if output is Format.JSON else "Nothing is played.")
        return
    sources = [*(files or ()), *(filename or ())]
    body: dict[str, Any] = {"volumes": volumes, "all": not sources}
    if sources:
        keys = map(key_of, reversed(read_files(sources, namespace)))
        body["keys"] = [[key.kind, key.namespace, key.name] for key in keys]
    asyncio.run(_down(body, config, wait, output))


async def _down(body: dict[str, Any], config: Config, wait: bool, output: Format) -> None:
    async with play_of(config.root, config) as client:
        told = await client.post("delete", body)
        gone = {(namespace, name) for kind, namespace, name, _ in told["changes"] if kind == "Pod"}
        if output is Format.TEXT:
            print_changes(told)
        if wait:
            await _until_gone(client, gone, every=bool(body["all"]))
        if output is Format.JSON:
            print(json.dumps({"changes": list_changes(told)}, indent=2))


def _is_clearing(state: dict[str, Any]) -> bool:
    """Whether data of claims is still there; those that other pods have go with these."""
    ending = [claim for claim in state["claims"] if claim["state"] == "Terminating"]
    return state["clearing"] or any(not claim["pods"] for claim in ending)


async def _until_gone(client: PlayClient, pods: set[tuple[str, str]], *, every: bool) -> None:
    """A process that has ended meanwhile had nothing left."""
    started = time.monotonic()
    while True:
        try:
            state = await client.get("state")
        except Unavailable:
            return
        left = [
            pod
            for pod in state["pods"]
            if every or pod["state"] == "Terminating" or (pod["namespace"], pod["name"]) in pods
        ]
        if (
            not left
            and not _is_clearing(state)
            and (not every or not state["nodes"] or time.monotonic() - started > 10)
        ):
            return
        await asyncio.sleep(_POLL_SECONDS)
