"""`winpod stats`: show resource usage of containers."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Annotated, Any

import typer

from winpod.cli.containers.targets import (
    Clients,
    ListedContainer,
    choose_container,
    list_containers,
    run_with_runtimes,
)
from winpod.cli.options import Format, Output, Root, human_size, print_table, short_id
from winpod.cri.proto import api_pb2 as api

_COLUMNS = ("id", "name", "cpu %", "memory", "written")
_INTERVAL_SECONDS = 1.0


def command(
    targets: Annotated[
        list[str] | None,
        typer.Argument(metavar="[CONTAINER]...", help="Containers to show (default: all running)."),
    ] = None,
    no_stream: Annotated[
        bool, typer.Option("--no-stream", help="Print once and exit, even on a terminal.")
    ] = False,
    root: Root = None,
    output: Output = Format.TEXT,
) -> None:
    """Show resource usage of containers.

    On a terminal the table is refreshed until Ctrl-C. CPU is in percent of one processor, over the
    last second.
    """

    async def show(clients: Clients) -> None:
        await _read(clients, targets or [])
        while True:
            await asyncio.sleep(_INTERVAL_SECONDS)
            used = await _read(clients, targets or [])
            if output is Format.JSON:
                print(json.dumps([_as_json(*pair) for pair in used], indent=2))
            else:
                if sys.stdout.isatty() and not no_stream:
                    print("\x1b[H\x1b[J", end="")
                print_table(_COLUMNS, [_row(*pair) for pair in used], right=_COLUMNS[2:])
            if no_stream or output is Format.JSON or not sys.stdout.isatty():
                return

    run_with_runtimes(root, show)


async def _read(clients: Clients, targets: list[str]) -> list[tuple[ListedContainer, Any]]:
    listed = await list_containers(clients)
    selected = [choose_container(listed, target) for target in targets] or listed
    request = api.ListContainerStatsRequest()
    answers = await asyncio.gather(*(c.call("ListContainerStats", request) for c in clients))
    stats = {one.attributes.id: one for answer in answers for one in answer.stats}
    return [(one, stats[one.id]) for one in selected if one.id in stats]


def _row(one: ListedContainer, stats: Any) -> tuple[str, ...]:
    return (
        short_id(one.id),
        one.name,
        f"{stats.cpu.usage_nano_cores.value / 1e7:.1f}",
        human_size(stats.memory.working_set_bytes.value),
        human_size(stats.writable_layer.used_bytes.value),
    )


def _as_json(one: ListedContainer, stats: Any) -> dict[str, Any]:
    return {
        "id": one.id,
        "name": one.name,
        "cpuNanoCores": stats.cpu.usage_nano_cores.value,
        "cpuNanoSeconds": stats.cpu.usage_core_nano_seconds.value,
        "memoryBytes": stats.memory.working_set_bytes.value,
        "writtenBytes": stats.writable_layer.used_bytes.value,
    }
