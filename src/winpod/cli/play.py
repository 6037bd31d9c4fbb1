"""`winpod play`: run manifests on this machine, with no cluster."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from winpod.cli.options import Format, Output, Root
from winpod.cli.play_changes import list_changes, print_changes
from winpod.cli.play_images import bring_images
from winpod.cli.play_table import failed_workloads, print_played
from winpod.cli.play_wait import WAIT_SECONDS, until_settled
from winpod.compute.hypervisor.accelerator import is_emulation_allowed
from winpod.cri.config import Config, read_config
from winpod.node.play.client import PlayClient, play_of
from winpod.node.play.nodes import parse_node
from winpod.node.play.objects import Document, Key, key_of, read_files
from winpod.node.play.publishing import parse_publication
from winpod.windows.errors import InvalidInput, WinpodError

_WATCH_SECONDS = 0.5


def command(
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FILE]...", help="Manifests: files, directories, - for input."),
    ] = None,
    filename: Annotated[
        list[str] | None, typer.Option("--filename", "-f", help="The same, as kubectl has it.")
    ] = None,
    node: Annotated[
        list[str] | None,
        typer.Option(
            "--node", metavar="BUILD[:NAME]", help="A node to have: 2019, 2022:web. Repeatable."
        ),
    ] = None,
    layout: Annotated[
        list[Path] | None,
        typer.Option("--layout", help="OCI layout to take images from first. Repeatable."),
    ] = None,
    publish: Annotated[
        list[str] | None,
        typer.Option(
            "--publish", "-p", metavar="8080:web:80", help="Lead a port here to a Service, or pods."
        ),
    ] = None,
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="For objects that name none.")
    ] = "default",
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Until pods are ready, or cannot be.")
    ] = True,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="How long to wait at most.")
    ] = WAIT_SECONDS,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Go on: apply the files when they change.")
    ] = False,
    serve_here: Annotated[bool, typer.Option("--serve", hidden=True)] = False,
    root: Root = None,
    output: Output = Format.TEXT,
) -> None:
    """Run manifests on this machine: Windows pods of any build, with no cluster.

    winpod play app.yaml                       pods, workloads, services, config maps, claims

    winpod play app.yaml --node 2019 --node 2022   on nodes of these builds

    winpod play app.yaml                       again: only what has changed

    A process in the background keeps it so; see ps --pods, logs, exec, describe, events, down.
    Exit code: 0 all pods are ready or done, 1 some are not.
    """
    config = read_config()
    config = replace(config, root=(root or config.root).absolute())
    if serve_here:
        _serve(config)
        return
    sources = [*(files or ()), *(filename or ())]
    if not sources:
        raise InvalidInput("There is nothing to play.", "Name a file: winpod play app.yaml")
    asked = _Asked(
        sources,
        namespace,
        [parse_node(text) for text in node or ()],
        [str(path.absolute()) for path in layout or ()],
        list(publish or ()),
    )
    for text in asked.publish:
        parse_publication(text)
    good = asyncio.run(_play(asked, config, timeout if wait else 0, watch, output))
    raise typer.Exit(0 if good else 1)


class _Asked:
    def __init__(
        self,
        sources: Sequence[str],
        namespace: str,
        nodes: list[Document],
        layouts: list[str],
        publish: list[str],
    ) -> None:
        self.sources = sources
        self.namespace = namespace
        self.nodes = nodes
        self.layouts = layouts
        self.publish = publish

    def read(self) -> list[Document]:
        """A file that is being written may be empty: that is nothing, and not an end of all."""
        if documents := read_files(self.sources, self.namespace):
            return documents
        raise InvalidInput(
            f"There is nothing to play: {', '.join(self.sources)} has no objects in it.",
            "Name a manifest with a Pod or a Deployment, for one.",
        )

    def body(self, documents: list[Document], local: Sequence[str] = ()) -> Document:
        return {
            "objects": documents,
            "nodes": self.nodes,
            "layouts": self.layouts,
            "publish": self.publish,
            "local": list(local),
        }

    def stamp(self) -> object:
        """Something that differs once a file does."""
        files = [
            file
            for source in self.sources
            for file in (
                sorted(Path(source).rglob("*")) if Path(source).is_dir() else [Path(source)]
            )
        ]
        return [(file, file.stat().st_mtime_ns) for file in files if file.exists()]


def _serve(config: Config) -> None:
    from winpod.node.play.server import serve

    level = config.runtime.log_level.upper()
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(message)s")
    asyncio.run(serve(config.root, config))


async def _play(asked: _Asked, config: Config, seconds: float, watch: bool, output: Format) -> bool:
    seen = stamp = asked.stamp()
    documents = asked.read()
    emulation = is_emulation_allowed(config.hypervisor.allow_emulation, os.environ)
    async with play_of(config.root, config, emulation=emulation) as client:
        good = await _apply(client, asked, documents, config, seconds, output)
        while watch:
            await asyncio.sleep(_WATCH_SECONDS)
            before, seen = seen, asked.stamp()
            if seen == stamp or seen != before:
                continue
            stamp = seen
            try:
                new = asked.read()
                removed = await _remove(client, {*map(key_of, documents)} - {*map(key_of, new)})
                if output is Format.TEXT:
                    print_changes(removed)
                documents = new
                good = await _apply(client, asked, documents, config, seconds, output, removed)
            except WinpodError as error:
                print(f"winpod: {error}", file=sys.stderr)
        return good


async def _apply(
    client: PlayClient,
    asked: _Asked,
    documents: list[Document],
    config: Config,
    seconds: float,
    output: Format,
    removed: Document | None = None,
) -> bool:
    """With JSON, one document tells all of it: what is there, and what is `removed`."""
    pulls = await client.post("pulls", asked.body(documents))
    local = await bring_images(pulls, asked.layouts, config)
    told = await client.post("apply", asked.body(documents, local))
    if output is Format.TEXT:
        print_changes(told)
    if seconds:
        state = await until_settled(client, map(key_of, documents), seconds)
    else:
        state = await client.get("state")
    if output is Format.JSON:
        changes = [*list_changes(removed or {"changes": ()}), *list_changes(told)]
        notes = told.get("notes", [])
        print(json.dumps({"changes": changes, "notes": notes, **state}, indent=2), flush=True)
    if not seconds:
        return True
    if output is Format.TEXT:
        print_played(state)
    good = all(pod["isReady"] or pod["phase"] == "Succeeded" for pod in state["pods"])
    return good and not failed_workloads(state)


async def _remove(client: PlayClient, keys: set[Key]) -> Document:
    if not keys:
        return {"changes": []}
    body = {"keys": [[key.kind, key.namespace, key.name] for key in sorted(keys)]}
    told: Document = await client.post("delete", body)
    return told
