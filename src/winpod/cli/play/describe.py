"""`winpod describe`: show details of an object created by `winpod play`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any

import typer
import yaml

from winpod.cli.options import Format, Output, Root
from winpod.cli.play.names import complete_names
from winpod.config import Config, read_config
from winpod.errors import InvalidInput, NotFound
from winpod.play.apiserver.database import read_names
from winpod.play.apiserver.objects import ObjectKey, find_kind
from winpod.play.client import connect_or_start

_HIDDEN = ("apiVersion", "kind")


def command(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME",
            help="Pod name, KIND/NAME or KIND NAME, such as deploy/web.",
            autocompletion=complete_names,
        ),
    ],
    namespace: Annotated[
        str,
        typer.Option(
            "--namespace", "-n", metavar="NAME", help="Namespace, if the name is ambiguous."
        ),
    ] = "",
    root: Root = None,
    output: Output = Format.TEXT,
) -> None:
    """Show details of an object created by `winpod play`.

    Includes its status, its pods with their placement, and its events.
    """
    config = read_config()
    config = replace(config, root=(root or config.root).absolute())
    key = find_object(config, "/".join(words), namespace)

    async def read() -> Any:
        async with connect_or_start(config.root, config) as client:
            return await client.get("object", kind=key.kind, namespace=key.namespace, name=key.name)

    description = asyncio.run(read())
    if description is None:
        raise NotFound(f"{key} was deleted.")
    if output is Format.JSON:
        print(json.dumps(description, indent=2))
        return
    for line in _lines(description):
        print(line)


def find_object(config: Config, text: str, namespace: str) -> ObjectKey:
    """Find an object by KIND/NAME, or a pod by NAME."""
    word, slash, name = text.partition("/")
    kind = find_kind(word) if slash else find_kind("pod")
    if kind is None:
        raise InvalidInput(
            f'"{word}" is not a known kind.', "Write for example deploy/web or svc/web."
        )
    name = name if slash else word
    found = [
        ObjectKey(*parts)
        for parts in read_names(config.root)
        if parts[0] == kind.name and parts[2] == name and (not namespace or parts[1] == namespace)
    ]
    if len(found) > 1:
        several = ", ".join(key.namespace for key in found)
        raise InvalidInput(
            f"{name} exists in several namespaces: {several}.", "Choose one with -n."
        )
    if not found:
        raise NotFound(
            f"{kind.name.lower()}/{name} not found.", "List pods with `winpod ps --pods`."
        )
    return found[0]


def _lines(description: dict[str, Any]) -> Iterator[str]:
    document = description["object"]
    yield from _section("", {k: v for k, v in document.items() if k not in (*_HIDDEN, "status")})
    status = description["status"] or document.get("status") or {}
    if status:
        yield from _section("status", status)
    if pod := description.get("pod"):
        yield from _placement(pod)
    if description["pods"]:
        yield "pods:"
        for pod in description["pods"]:
            yield f"  {pod['name']}  {pod['ready']}  {pod['state']}  {pod['node'] or '-'}"
            yield from (f"    {line}" for line in pod["against"])
    if service := description.get("service"):
        yield from _section("served", service)
    yield "events:" if description["events"] else "events: none"
    for event in description["events"]:
        times = f" (x{event['count']})" if event["count"] > 1 else ""
        yield f"  {event['last']}{times}  {event['type']}  {event['reason']}  {event['message']}"


def _section(name: str, content: Any) -> Iterator[str]:
    text = yaml.safe_dump(content, sort_keys=False, default_flow_style=False, width=100)
    if name:
        yield f"{name}:"
    for line in text.splitlines():
        yield f"  {line}" if name else line


def _placement(pod: dict[str, Any]) -> Iterator[str]:
    yield "placement:"
    yield f"  node: {pod['node'] or 'none'}"
    if pod["why"]:
        yield f"  why: {pod['handler']}, {pod['why']}"
    if pod["accelerator"]:
        yield f"  accelerator: {pod['accelerator']}"
    yield from (f"  unknown: {line}" for line in pod["unknown"])
    yield from (f"  against: {line}" for line in pod["against"])
    yield from (f"  advice: {line}" for line in pod["advice"])
