"""`winpod logs`: print the CRI log file of a container."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from winpod.cli.containers.targets import (
    Clients,
    ContainerOption,
    ListedContainer,
    Target,
    choose_container,
    container_status,
    exit_code,
    list_containers,
    run_with_runtimes,
)
from winpod.cli.options import Root, with_options
from winpod.clock import utc_now
from winpod.concurrency import cancel_and_wait
from winpod.cri.proto import api_pb2 as api
from winpod.errors import InvalidInput, NotFound
from winpod.kubelet.logs.reader import LogLine, LogPrinter, LogReader, log_time
from winpod.quantities import parse_duration


@dataclass(frozen=True, slots=True)
class LogsOptions:
    container: ContainerOption = ""
    namespace: Annotated[
        str, typer.Option("--namespace", metavar="NAME", help="Namespace of the pod.")
    ] = ""
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow the log until the container exits.")
    ] = False
    tail: Annotated[
        str, typer.Option("--tail", "-n", metavar="N", help="Number of recent lines to show.")
    ] = "all"
    timestamps: Annotated[bool, typer.Option("--timestamps", "-t", help="Show timestamps.")] = False
    since: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="Show logs since a time (2026-01-31T12:00:00Z) or duration (10m)."
        ),
    ] = ""
    previous: Annotated[
        bool, typer.Option("--previous", "-p", help="Show the previous terminated container.")
    ] = False


@with_options
def command(
    *,
    target: Target,
    options: LogsOptions,
    root: Root = None,
) -> None:
    """Print the logs of a container."""
    newest = _parse_tail(options.tail)
    start = parse_since(options.since, utc_now()) if options.since else ""

    async def show(clients: Clients) -> None:
        listed = await list_containers(clients)
        found = choose_container(listed, target, options.container, options.namespace)
        if options.previous:
            found = last_ended(listed, found)
        status = await container_status(found.client, found.id)
        if not status.log_path:
            raise NotFound(f"{found.name} was created without a log file.")
        printer = LogPrinter(timestamps=options.timestamps)

        def print_line(line: LogLine) -> None:
            if line.time >= start:
                _write(2 if line.stream == "stderr" else 1, printer.text(line))

        log = LogReader(Path(status.log_path), newest)
        for line in log.read():
            print_line(line)
        if options.follow:
            ended = asyncio.create_task(exit_code(found.client, found.id))
            try:
                async for line in log.follow(ended):
                    print_line(line)
            finally:
                await cancel_and_wait(ended)

    run_with_runtimes(root, show)


def last_ended(listed: Sequence[ListedContainer], found: ListedContainer) -> ListedContainer:
    """Return the last exited attempt of the same container. `listed` has the newest first."""
    pod, name = found.sandbox.metadata, found.container.metadata.name
    for one in listed:
        is_same = (one.sandbox.metadata.uid, one.container.metadata.name) == (pod.uid, name)
        if is_same and one.container.state == api.CONTAINER_EXITED:
            return one
    raise NotFound(
        f'previous terminated container "{name}" in pod "{pod.name}" not found.',
        f"No attempt has exited yet; see `winpod logs {found.name}`.",
    )


def _parse_tail(text: str) -> int | None:
    if text == "all":
        return None
    if not text.isdecimal():
        raise InvalidInput(
            f'"{text}" is not a number of lines.',
            "Write 20, or all; use --namespace for a namespace.",
        )
    return int(text)


def parse_since(text: str, now: datetime) -> str:
    """Convert a duration (`10m`, `1h30m`) or a timestamp to a CRI log timestamp."""
    try:
        moment = now - parse_duration(text)
    except (InvalidInput, OverflowError):
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
