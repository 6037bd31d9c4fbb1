"""`winpod logs`: what a container wrote, from the log that kubelet reads too."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from winpod.cli.containers import (
    Clients,
    Listed,
    Part,
    Target,
    choose,
    container_status,
    exit_code,
    list_containers,
    with_runtimes,
)
from winpod.cli.options import Root
from winpod.cri.proto import api_pb2 as api
from winpod.node.logs import Line, Log, Printer, log_time
from winpod.windows.errors import InvalidInput, NotFound

_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?", re.ASCII)


def command(
    target: Target,
    container: Part = "",
    namespace: Annotated[
        str, typer.Option("--namespace", metavar="NAME", help="Only pods of this namespace.")
    ] = "",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the container has ended.")
    ] = False,
    tail: Annotated[
        str, typer.Option("--tail", "-n", metavar="N", help="Only the last lines.")
    ] = "all",
    timestamps: Annotated[
        bool, typer.Option("--timestamps", "-t", help="Begin each line with its time.")
    ] = False,
    since: Annotated[
        str,
        typer.Option(metavar="TIME", help="Only since a time (2026-01-31T12:00:00Z) or for (10m)."),
    ] = "",
    previous: Annotated[
        bool, typer.Option("--previous", "-p", help="Of the last one that has ended.")
    ] = False,
    root: Root = None,
) -> None:
    """Print what a container wrote."""
    newest = _parse_tail(tail)
    start = parse_since(since, datetime.now(UTC)) if since else ""

    async def show(clients: Clients) -> None:
        listed = await list_containers(clients)
        found = choose(listed, target, container, namespace)
        if previous:
            found = last_ended(listed, found)
        status = await container_status(found.client, found.id)
        if not status.log_path:
            raise NotFound(f"{found.name} was made without a log.")
        printer = Printer(timestamps=timestamps)

        def print_line(line: Line) -> None:
            if line.time >= start:
                _write(2 if line.stream == "stderr" else 1, printer.text(line))

        log = Log(Path(status.log_path), newest)
        for line in log.read():
            print_line(line)
        if follow:
            ended = asyncio.create_task(exit_code(found.client, found.id))
            async for line in log.follow(ended):
                print_line(line)

    with_runtimes(root, show)


def last_ended(listed: Sequence[Listed], found: Listed) -> Listed:
    """Of the containers that were in the place of this one; lists begin with the newest."""
    pod, name = found.sandbox.metadata, found.container.metadata.name
    for one in listed:
        is_same = (one.sandbox.metadata.uid, one.container.metadata.name) == (pod.uid, name)
        if is_same and one.container.state == api.CONTAINER_EXITED:
            return one
    raise NotFound(
        f'previous terminated container "{name}" in pod "{pod.name}" not found.',
        f"None has ended: `winpod logs {found.name}` has what it wrote.",
    )


def _parse_tail(text: str) -> int | None:
    if text == "all":
        return None
    if not text.isdecimal():
        raise InvalidInput(
            f'"{text}" is not a number of lines.',
            "Write 20, or all; a namespace is given with --namespace.",
        )
    return int(text)


def parse_since(text: str, now: datetime) -> str:
    """In the log's words: `10m`, `1h30m`, or a time itself."""
    match = _DURATION.fullmatch(text)
    if match and any(match.groups()):
        hours, minutes, seconds = (float(group or 0) for group in match.groups())
        moment = now - timedelta(hours=hours, minutes=minutes, seconds=seconds)
    else:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise InvalidInput(
                f'"{text}" is not a time.', "Write 10m, 1h30m or 2026-01-31T12:00:00Z."
            ) from None
        moment = moment if moment.tzinfo else moment.astimezone()
    return log_time(moment)


def _write(descriptor: int, text: bytes) -> None:
    while text:
        text = text[os.write(descriptor, text) :]
