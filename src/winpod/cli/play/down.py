"""`winpod down`: delete objects created by `winpod play`."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace
from typing import Annotated, Any

import typer

from winpod.cli.options import Format, Output, Root
from winpod.cli.play.table import list_changes, print_changes
from winpod.config import Config, read_config
from winpod.errors import Unavailable
from winpod.play.apiserver.database import read_names
from winpod.play.apiserver.objects import key_of, read_manifest_files
from winpod.play.client import PlayClient, connect_or_start

_POLL_SECONDS = 0.2


def command(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE]...",
            help="Delete the objects of these manifests (default: all objects).",
        ),
    ] = None,
    filename: Annotated[
        list[str] | None,
        typer.Option("--filename", "-f", help="Manifest file, as with kubectl. May be repeated."),
    ] = None,
    volumes: Annotated[
        bool,
        typer.Option("--volumes", "-v", help="Also delete PersistentVolumeClaims and their data."),
    ] = False,
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="Namespace of objects that name none.")
    ] = "default",
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until pods are gone.")
    ] = True,
    root: Root = None,
    output: Output = Format.TEXT,
) -> None:
    """Delete the objects created by `winpod play`.

    Pods get their termination grace period. PersistentVolumeClaims are kept unless --volumes is
    given.
    """
    config = read_config()
    config = replace(config, root=(root or config.root).absolute())
    if not read_names(config.root):
        print('{"changes": []}' if output is Format.JSON else "No objects found.")
        return
    sources = [*(files or ()), *(filename or ())]
    body: dict[str, Any] = {"volumes": volumes, "all": not sources}
    if sources:
        keys = map(key_of, reversed(read_manifest_files(sources, namespace)))
        body["keys"] = [[key.kind, key.namespace, key.name] for key in keys]
    asyncio.run(_down(body, config, wait, output))


async def _down(body: dict[str, Any], config: Config, wait: bool, output: Format) -> None:
    async with connect_or_start(config.root, config) as client:
        result = await client.post("delete", body)
        deleted_pods = {
            (namespace, name) for kind, namespace, name, _ in result["changes"] if kind == "Pod"
        }
        if output is Format.TEXT:
            print_changes(result)
        if wait:
            await _wait_gone(client, deleted_pods, all_pods=bool(body["all"]))
        if output is Format.JSON:
            print(json.dumps({"changes": list_changes(result)}, indent=2))


def _is_clearing(state: dict[str, Any]) -> bool:
    """Whether claim data is still being deleted. Claims in use by other pods do not count."""
    ending = [claim for claim in state["claims"] if claim["state"] == "Terminating"]
    return state["clearing"] or any(not claim["pods"] for claim in ending)


async def _wait_gone(client: PlayClient, pods: set[tuple[str, str]], *, all_pods: bool) -> None:
    """Wait until the pods are gone. The server exits when nothing is left."""
    started = time.monotonic()
    while True:
        try:
            state = await client.get("state")
        except Unavailable:
            return
        remaining = [
            pod
            for pod in state["pods"]
            if all_pods or pod["state"] == "Terminating" or (pod["namespace"], pod["name"]) in pods
        ]
        if (
            not remaining
            and not _is_clearing(state)
            and (not all_pods or not state["nodes"] or time.monotonic() - started > 10)
        ):
            return
        await asyncio.sleep(_POLL_SECONDS)
