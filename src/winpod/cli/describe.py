"""`winpod describe`: one object that is played, with its pods and what happened to it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any

import typer
import yaml

from winpod.cli.names import complete_names, read_names
from winpod.cli.options import Format, Output, Root
from winpod.cri.config import Config, read_config
from winpod.node.play.client import play_of
from winpod.node.play.objects import Key, kind_of_word
from winpod.windows.errors import InvalidInput, NotFound

_HIDDEN = ("apiVersion", "kind")


def command(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME",
            help="A pod, or a kind and a name: deploy/web, or deploy web.",
            autocompletion=complete_names,
        ),
    ],
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", metavar="NAME", help="Where it is, if not clear.")
    ] = "",
    root: Root = None,
    output: Output = Format.TEXT,
) -> None:
    """Tell all about one object that is played, and why its pods are where they are."""
    config = read_config()
    config = replace(config, root=(root or config.root).absolute())
    key = find_object(config, "/".join(words), namespace)

    async def read() -> Any:
        async with play_of(config.root, config) as client:
            return await client.get("object", kind=key.kind, namespace=key.namespace, name=key.name)

    told = asyncio.run(read())
    if told is None:
        raise NotFound(f"{key} is gone.")
    if output is Format.JSON:
        print(json.dumps(told, indent=2))
        return
    for line in _lines(told):
        print(line)


def find_object(config: Config, text: str, namespace: str) -> Key:
    """The one that is meant; a pod where no kind is named."""
    word, slash, name = text.partition("/")
    kind = kind_of_word(word) if slash else kind_of_word("pod")
    if kind is None:
        raise InvalidInput(f'"{word}" is not a kind of object.', "Write deploy/web, or svc/web.")
    name = name if slash else word
    found = [
        Key(*parts)
        for parts in read_names(config.root)
        if parts[0] == kind.name and parts[2] == name and (not namespace or parts[1] == namespace)
    ]
    if len(found) > 1:
        several = ", ".join(key.namespace for key in found)
        raise InvalidInput(f"{name} is in several namespaces: {several}.", "Choose with -n.")
    if not found:
        raise NotFound(
            f"There is no {kind.name.lower()} {name} here.", "`winpod ps --pods` lists pods."
        )
    return found[0]


def _lines(told: dict[str, Any]) -> Iterator[str]:
    document = told["object"]
    yield from _section("", {k: v for k, v in document.items() if k not in (*_HIDDEN, "status")})
    status = told["status"] or document.get("status") or {}
    if status:
        yield from _section("status", status)
    if pod := told.get("pod"):
        yield from _placement(pod)
    if told["pods"]:
        yield "pods:"
        for pod in told["pods"]:
            yield f"  {pod['name']}  {pod['ready']}  {pod['state']}  {pod['node'] or '-'}"
            yield from (f"    {line}" for line in pod["against"])
    if service := told.get("service"):
        yield from _section("served", service)
    yield "events:" if told["events"] else "events: none"
    for event in told["events"]:
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
