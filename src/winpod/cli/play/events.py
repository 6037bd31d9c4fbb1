"""`winpod events`: list events of objects created by `winpod play`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any

import typer

from winpod.cli.options import Format, Output, Root, format_age, print_table
from winpod.cli.play.names import complete_names, has_pods, owner_named
from winpod.clock import utc_now
from winpod.config import read_config
from winpod.play.client import PlayClient, connect_or_start

_COLUMNS = ("last seen", "type", "reason", "object", "message")
_POLL_SECONDS = 0.5


def command(
    target: Annotated[
        str,
        typer.Argument(
            metavar="[NAME]",
            help="Only events of this pod, or KIND/NAME such as deploy/web.",
            autocompletion=complete_names,
        ),
    ] = "",
    namespace: Annotated[
        str,
        typer.Option("--namespace", "-n", metavar="NAME", help="Only events of this namespace."),
    ] = "",
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Watch for new events.")] = (False),
    root: Root = None,
    output: Output = Format.TEXT,
) -> None:
    """List events of objects created by `winpod play`.

    The oldest event is listed first.
    """
    config = read_config()
    config = replace(config, root=(root or config.root).absolute())
    if not has_pods(config.root):
        if output is Format.TEXT:
            print("No objects found.")
        elif not watch:
            print("[]")
        return

    async def show() -> None:
        async with connect_or_start(config.root, config) as client:
            found = await _read(client, target, namespace)
            if output is Format.JSON and not watch:
                print(json.dumps(found, indent=2))
            elif output is Format.JSON:
                _print_lines(found)
            else:
                print_table(_COLUMNS, [_row(event) for event in found])
            printed = {json.dumps(event) for event in found}
            while watch:
                await asyncio.sleep(_POLL_SECONDS)
                events = await _read(client, target, namespace)
                new = [event for event in events if json.dumps(event) not in printed]
                printed |= {json.dumps(event) for event in new}
                if output is Format.JSON:
                    _print_lines(new)
                else:
                    for event in new:
                        print("  ".join(_row(event)), flush=True)

    asyncio.run(show())


def _print_lines(events: Iterable[dict[str, Any]]) -> None:
    """Print one JSON object per line: a watch never ends, so a list would not be closed."""
    for event in events:
        print(json.dumps(event), flush=True)


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
    seconds = (utc_now() - datetime.fromisoformat(event["last"])).total_seconds()
    count = f" (x{event['count']})" if event["count"] > 1 else ""
    involved_object = f"{event['kind'].lower()}/{event['name']}"
    return (
        f"{format_age(seconds)}{count}",
        event["type"],
        event["reason"],
        involved_object,
        event["message"],
    )
