"""`winpod ps`: list containers."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from winpod.cli.containers.targets import (
    Clients,
    ListedContainer,
    container_status,
    list_containers,
    run_with_runtimes,
)
from winpod.cli.options import (
    Format,
    Output,
    Root,
    emulation_note,
    format_age,
    print_table,
    short_id,
)
from winpod.cli.play.names import has_pods
from winpod.config import read_config
from winpod.cri.handler_status import SANDBOX_INFO, reported_accelerator
from winpod.cri.proto import api_pb2 as api
from winpod.errors import InvalidInput
from winpod.labels import PORTS_ANNOTATION
from winpod.windows.handlers import PROCESS_HANDLER

_FILTERS = ("name", "status", "image", "label")
_STATES = {
    api.CONTAINER_CREATED: "created",
    api.CONTAINER_RUNNING: "running",
    api.CONTAINER_EXITED: "exited",
    api.CONTAINER_UNKNOWN: "unknown",
}
ContainerRow = tuple[ListedContainer, Any, str]
_SECOND = 1_000_000_000


def command(
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Include exited containers.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print IDs only.")] = False,
    filters: Annotated[
        list[str] | None,
        typer.Option(
            "--filter",
            "-f",
            metavar="KEY=VALUE",
            help="Filter by name=, status=, image= or label=KEY[=VALUE]. May be repeated.",
        ),
    ] = None,
    no_trunc: Annotated[bool, typer.Option("--no-trunc", help="Do not truncate IDs.")] = False,
    pods: Annotated[
        bool,
        typer.Option("--pods", "-p", help="List the pods of `winpod play` and their placement."),
    ] = False,
    root: Root = None,
    output: Output = Format.TEXT,
) -> None:
    """List containers."""
    if pods:
        _list_pods(root, output)
        return
    conditions = [_parse_filter(text) for text in filters or ()]
    include_exited = everything or any(key == "status" for key, _ in conditions)

    async def read(clients: Clients) -> list[ContainerRow]:
        listed = [
            listed_container
            for listed_container in await list_containers(clients)
            if (include_exited or listed_container.is_running)
            and all(_matches(listed_container, *pair) for pair in conditions)
        ]
        return await asyncio.gather(*(_read_row(listed_container) for listed_container in listed))

    found = run_with_runtimes(root, read)
    if quiet:
        for listed_container, _, _ in found:
            print(listed_container.id if no_trunc else short_id(listed_container.id))
    elif output is Format.JSON:
        print(json.dumps([_as_json(*row) for row in found], indent=2))
    else:
        columns = ("id", "image", "created", "status", "ports", "name")
        print_table(columns, [_row(*row, no_trunc) for row in found])


async def _read_row(listed_container: ListedContainer) -> ContainerRow:
    """Read the status of a container and the accelerator of its pod's microVM, if any."""
    status = await container_status(listed_container.client, listed_container.id)
    if listed_container.sandbox.runtime_handler == PROCESS_HANDLER.name:
        return listed_container, status, ""
    request = api.PodSandboxStatusRequest(pod_sandbox_id=listed_container.sandbox.id, verbose=True)
    sandbox = await listed_container.client.call("PodSandboxStatus", request)
    return listed_container, status, reported_accelerator(sandbox.info, SANDBOX_INFO)


def _list_pods(root: Path | None, output: Format) -> None:
    from winpod.cli.play.table import print_state
    from winpod.play.client import connect_or_start

    config = read_config()
    config = replace(config, root=(root or config.root).absolute())

    async def read() -> Any:
        async with connect_or_start(config.root, config) as client:
            return await client.get("state")

    empty_state: dict[str, list[Any]] = {
        "nodes": [],
        "pods": [],
        "workloads": [],
        "services": [],
        "troubles": [],
    }
    state = asyncio.run(read()) if has_pods(config.root) else empty_state
    if output is Format.JSON:
        print(json.dumps(state, indent=2))
    else:
        print_state(state)


def _parse_filter(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if key not in _FILTERS or not sign or (key == "status" and value not in _STATES.values()):
        raise InvalidInput(
            f'"{text}" is not a filter.',
            "Write name=, image=, label=KEY[=VALUE], or status= and one of "
            f"{', '.join(_STATES.values())}.",
        )
    return key, value


def _matches(listed_container: ListedContainer, key: str, value: str) -> bool:
    if key == "label":
        label, sign, expected = value.partition("=")
        labels = {**listed_container.sandbox.labels, **listed_container.container.labels}
        return label in labels and (not sign or labels[label] == expected)
    if key == "status":
        return _STATES[listed_container.container.state] == value
    return value in (listed_container.name if key == "name" else listed_container.image)


def _row(
    listed_container: ListedContainer, status: Any, accelerator: str, no_trunc: bool
) -> Sequence[str]:
    return (
        listed_container.id if no_trunc else short_id(listed_container.id),
        listed_container.image,
        f"{_age(status.created_at)} ago",
        describe_status(status) + emulation_note(accelerator),
        listed_container.sandbox.annotations.get(PORTS_ANNOTATION, "")
        if listed_container.is_running
        else "",
        listed_container.name,
    )


def describe_status(status: Any) -> str:
    """Format the status as docker does: `Up 2 hours`, `Exited (7) 5 minutes ago`."""
    if status.state == api.CONTAINER_RUNNING:
        return f"Up {_age(status.started_at)}"
    if status.state == api.CONTAINER_EXITED:
        return f"Exited ({status.exit_code}) {_age(status.finished_at)} ago"
    return _STATES[status.state].capitalize()


def _age(moment: int) -> str:
    return format_age((time.time_ns() - moment) / _SECOND)


def _as_json(listed_container: ListedContainer, status: Any, accelerator: str) -> dict[str, Any]:
    ended = status.state == api.CONTAINER_EXITED
    return {
        "id": listed_container.id,
        "name": listed_container.name,
        "pod": listed_container.sandbox.metadata.name,
        "namespace": listed_container.sandbox.metadata.namespace,
        "sandboxId": listed_container.sandbox.id,
        "handler": listed_container.sandbox.runtime_handler,
        "accelerator": accelerator,
        "image": listed_container.image,
        "imageId": listed_container.container.image_id,
        "state": _STATES[status.state],
        "exitCode": status.exit_code if ended else None,
        "reason": status.reason,
        "ports": listed_container.sandbox.annotations.get(PORTS_ANNOTATION, ""),
        "createdAt": format_time(status.created_at),
        "startedAt": format_time(status.started_at),
        "finishedAt": format_time(status.finished_at),
        "labels": dict(listed_container.container.labels),
    }


def format_time(moment: int) -> str | None:
    return datetime.fromtimestamp(moment / _SECOND, UTC).isoformat() if moment else None
