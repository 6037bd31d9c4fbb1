"""`winpod ps`: the containers of a runtime."""

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

from winpod.cli.containers import Clients, Listed, container_status, list_containers, with_runtimes
from winpod.cli.names import has_pods
from winpod.cli.options import Format, Output, Root, ago, emulated, print_table, short_id
from winpod.cri.config import read_config
from winpod.cri.guests import SANDBOX_INFO, told_accelerator
from winpod.cri.labels import PORTS_ANNOTATION
from winpod.cri.proto import api_pb2 as api
from winpod.windows.errors import InvalidInput
from winpod.windows.handlers import PROCESS

_FILTERS = ("name", "status", "image", "label")
_STATES = {
    api.CONTAINER_CREATED: "created",
    api.CONTAINER_RUNNING: "running",
    api.CONTAINER_EXITED: "exited",
    api.CONTAINER_UNKNOWN: "unknown",
}
Told = tuple[Listed, Any, str]
_SECOND = 1_000_000_000


def command(
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Those that have ended too.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print ids only.")] = False,
    filters: Annotated[
        list[str] | None,
        typer.Option(
            "--filter",
            "-f",
            metavar="KEY=VALUE",
            help="name=, status=, image= or label=KEY[=VALUE]; several must all hold.",
        ),
    ] = None,
    no_trunc: Annotated[bool, typer.Option("--no-trunc", help="Whole ids.")] = False,
    pods: Annotated[
        bool, typer.Option("--pods", "-p", help="The pods of `play`: where each runs, and why.")
    ] = False,
    root: Root = None,
    output: Output = Format.TEXT,
) -> None:
    """List the containers that run, whoever started them."""
    if pods:
        _list_pods(root, output)
        return
    wanted = [_parse_filter(text) for text in filters or ()]
    shown = everything or any(key == "status" for key, _ in wanted)

    async def read(clients: Clients) -> list[Told]:
        listed = [
            one
            for one in await list_containers(clients)
            if (shown or one.is_running) and all(_holds(one, *pair) for pair in wanted)
        ]
        return await asyncio.gather(*(_look(one) for one in listed))

    found = with_runtimes(root, read)
    if quiet:
        for one, _, _ in found:
            print(one.id if no_trunc else short_id(one.id))
    elif output is Format.JSON:
        print(json.dumps([_as_json(*told) for told in found], indent=2))
    else:
        columns = ("id", "image", "created", "status", "ports", "name")
        print_table(columns, [_row(*told, no_trunc) for told in found])


async def _look(one: Listed) -> Told:
    """A container, its status, and what runs its pod's microVM, if it has one."""
    status = await container_status(one.client, one.id)
    if one.sandbox.runtime_handler == PROCESS.name:
        return one, status, ""
    request = api.PodSandboxStatusRequest(pod_sandbox_id=one.sandbox.id, verbose=True)
    sandbox = await one.client.call("PodSandboxStatus", request)
    return one, status, told_accelerator(sandbox.info, SANDBOX_INFO)


def _list_pods(root: Path | None, output: Format) -> None:
    from winpod.cli.play_table import print_played
    from winpod.node.play.client import play_of

    config = read_config()
    config = replace(config, root=(root or config.root).absolute())

    async def read() -> Any:
        async with play_of(config.root, config) as client:
            return await client.get("state")

    nothing: dict[str, list[Any]] = {
        "nodes": [],
        "pods": [],
        "workloads": [],
        "services": [],
        "troubles": [],
    }
    state = asyncio.run(read()) if has_pods(config.root) else nothing
    if output is Format.JSON:
        print(json.dumps(state, indent=2))
    else:
        print_played(state)


def _parse_filter(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if key not in _FILTERS or not sign or (key == "status" and value not in _STATES.values()):
        raise InvalidInput(
            f'"{text}" is not a filter.',
            "Write name=, image=, label=KEY[=VALUE], or status= and one of "
            f"{', '.join(_STATES.values())}.",
        )
    return key, value


def _holds(one: Listed, key: str, value: str) -> bool:
    if key == "label":
        label, sign, wanted = value.partition("=")
        labels = {**one.sandbox.labels, **one.container.labels}
        return label in labels and (not sign or labels[label] == wanted)
    if key == "status":
        return _STATES[one.container.state] == value
    return value in (one.name if key == "name" else one.image)


def _row(one: Listed, status: Any, accelerator: str, whole: bool) -> Sequence[str]:
    return (
        one.id if whole else short_id(one.id),
        one.image,
        f"{_ago(status.created_at)} ago",
        describe_status(status) + emulated(accelerator),
        one.sandbox.annotations.get(PORTS_ANNOTATION, "") if one.is_running else "",
        one.name,
    )


def describe_status(status: Any) -> str:
    """`Up 2 hours`, `Exited (7) 5 minutes ago`."""
    if status.state == api.CONTAINER_RUNNING:
        return f"Up {_ago(status.started_at)}"
    if status.state == api.CONTAINER_EXITED:
        return f"Exited ({status.exit_code}) {_ago(status.finished_at)} ago"
    return _STATES[status.state].capitalize()


def _ago(moment: int) -> str:
    return ago((time.time_ns() - moment) / _SECOND)


def _as_json(one: Listed, status: Any, accelerator: str) -> dict[str, Any]:
    ended = status.state == api.CONTAINER_EXITED
    return {
        "id": one.id,
        "name": one.name,
        "pod": one.sandbox.metadata.name,
        "namespace": one.sandbox.metadata.namespace,
        "sandboxId": one.sandbox.id,
        "handler": one.sandbox.runtime_handler,
        "accelerator": accelerator,
        "image": one.image,
        "imageId": one.container.image_id,
        "state": _STATES[status.state],
        "exitCode": status.exit_code if ended else None,
        "reason": status.reason,
        "ports": one.sandbox.annotations.get(PORTS_ANNOTATION, ""),
        "createdAt": as_time(status.created_at),
        "startedAt": as_time(status.started_at),
        "finishedAt": as_time(status.finished_at),
        "labels": dict(one.container.labels),
    }


def as_time(moment: int) -> str | None:
    return datetime.fromtimestamp(moment / _SECOND, UTC).isoformat() if moment else None
