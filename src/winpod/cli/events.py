"""`winpod events`: what has happened to what is played."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from winpod.cli.names import complete_names, has_pods, owner_named
from winpod.cli.options import Format, Output, Root, ago, print_table
from winpod.cri.config import read_config
from winpod.node.play.client import PlayClient, play_of

_COLUMNS = ("last seen", "type", "reason", "object", "message")
_POLL_SECONDS = 0.5


def command(
    target: Annotated[
        str,
        typer.Argument(
            metavar="[NAME]", help="Of one pod, or deploy/web.", autocompletion=complete_names
        ),
    ] = "",
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", metavar="NAME", help="Only of this namespace.")
    ] = "",
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on, with each as it comes.")] = (
        False
    ),
    root: Root = None,
    output: Output = Format.TEXT,
) -> None:
    """Tell what has happened to pods and workloads, the oldest first."""
    config = read_config()
    config = replace(config, root=(root or config.root).absolute())
    if not has_pods(config.root):
        print("[]" if output is Format.JSON else "Nothing is played.")
        return

    async def show() -> None:
        async with play_of(config.root, config) as client:
            found = await _read(client, target, namespace)
            if output is Format.JSON:
                print(json.dumps(found, indent=2))
                return
            print_table(_COLUMNS, [_row(event) for event in found])
            told = {json.dumps(event) for event in found}
            while watch:
                await asyncio.sleep(_POLL_SECONDS)
                for event in await _read(client, target, namespace):
                    if (text := json.dumps(event)) not in told:
                        told.add(text)
                        print("  ".join(_row(event)), flush=True)

    asyncio.run(show())


async def _read(client: PlayClient, target: str, namespace: str) -> list[dict[str, Any]]:
    kind, _, name = (owner_named(target) or f"/{target}").partition("/")
    return [
        event
        for event in await client.get("events")
        if (not namespace or event["namespace"] == namespace)
        and (not name or event["name"] == name)
        and (not kind or event["kind"] == kind)
    ]


def _row(event: dict[str, Any]) -> tuple[str, ...]:
    seconds = (datetime.now(UTC) - datetime.fromisoformat(event["last"])).total_seconds()
    times = f" (x{event['count']})" if event["count"] > 1 else ""
    about = f"{event['kind'].lower()}/{event['name']}"
    return (f"{ago(seconds)}{times}", event["type"], event["reason"], about, event["message"])
