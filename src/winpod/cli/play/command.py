"""`winpod play`: run Kubernetes manifests on this machine without a cluster.

The daemon pulls the images before it applies the objects; this process shows the progress.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from winpod.cli.log_format import LogOptions, start_logging
from winpod.cli.options import Format, Output, Root, with_options
from winpod.cli.play.pulls import PullOutput, user_credentials
from winpod.cli.play.table import failed_workloads, list_changes, print_changes, print_state
from winpod.cli.play.wait import WAIT_SECONDS, wait_settled
from winpod.compute.hypervisor.accelerator import is_emulation_allowed
from winpod.config import Config, read_config
from winpod.errors import InvalidInput, WinpodError
from winpod.play.apiserver.objects import Document, ObjectKey, key_of, read_manifest_files
from winpod.play.client import PlayClient, connect_or_start
from winpod.play.nodes import parse_node
from winpod.play.proxy.service_proxy import parse_published_port

_WATCH_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class PlayOptions:
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FILE]...", help="Manifest files, directories, or - for stdin."),
    ] = None
    filename: Annotated[
        list[str] | None,
        typer.Option("--filename", "-f", help="Manifest file, as with kubectl. May be repeated."),
    ] = None
    node: Annotated[
        list[str] | None,
        typer.Option(
            "--node",
            metavar="BUILD[:NAME]",
            help="Node to run, such as 2019 or 2022:web. May be repeated.",
        ),
    ] = None
    layout: Annotated[
        list[Path] | None,
        typer.Option("--layout", help="OCI layout to take images from first. May be repeated."),
    ] = None
    publish: Annotated[
        list[str] | None,
        typer.Option(
            "--publish",
            "-p",
            metavar="8080:web:80",
            help="Publish a local port to a Service or workload.",
        ),
    ] = None
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="Namespace of objects that name none.")
    ] = "default"

    def validate(self) -> None:
        if not self.sources:
            raise InvalidInput("No manifest was given.", "Name a file: winpod play app.yaml")
        for node in self.node or ():
            parse_node(node)
        for port in self.publish or ():
            parse_published_port(port)

    @property
    def sources(self) -> list[str]:
        return [*(self.files or ()), *(self.filename or ())]

    @property
    def layouts(self) -> list[str]:
        return [str(path.absolute()) for path in self.layout or ()]

    def read(self) -> list[Document]:
        """Read the manifests. An empty file (being written) is an error, not a deletion."""
        if documents := read_manifest_files(self.sources, self.namespace):
            return documents
        raise InvalidInput(
            f"{', '.join(self.sources)} contains no objects.",
            "Name a manifest with, for example, a Pod or a Deployment.",
        )

    async def body(self, documents: list[Document]) -> Document:
        return {
            "objects": documents,
            "nodes": [parse_node(text) for text in self.node or ()],
            "layouts": self.layouts,
            "publish": self.publish or [],
            "credentials": msgspec.to_builtins(await user_credentials(documents)),
        }

    def stamp(self) -> object:
        """Return a value that changes when a file changes."""
        files = [
            file
            for source in self.sources
            for file in (
                sorted(Path(source).rglob("*")) if Path(source).is_dir() else [Path(source)]
            )
        ]
        return [(file, file.stat().st_mtime_ns) for file in files if file.exists()]


@dataclass(frozen=True, slots=True)
class WaitOptions:
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until pods are ready or have failed.")
    ] = True
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="Maximum time to wait.")] = (
        WAIT_SECONDS
    )
    watch: Annotated[
        bool,
        typer.Option("--watch", "-w", help="Keep running and apply the files when they change."),
    ] = False

    @property
    def seconds(self) -> float:
        """How long to wait, 0 for not at all."""
        return self.timeout if self.wait else 0


@with_options
def command(
    *,
    options: PlayOptions,
    wait: WaitOptions,
    serve_here: Annotated[bool, typer.Option("--serve", hidden=True)] = False,
    root: Root = None,
    output: Output = Format.TEXT,
    log: LogOptions,
) -> None:
    """Run Kubernetes manifests on this machine without a cluster.

    winpod play app.yaml                           create or update the objects

    winpod play app.yaml --node 2019 --node 2022   run nodes of these builds

    A background process runs the controllers; see ps --pods, logs, exec, describe, events, down.
    Exit code: 0 all pods are ready or completed, 1 some are not.
    """
    config = read_config()
    config = replace(config, root=(root or config.root).absolute())
    if serve_here:
        _serve(config, log)
        return
    options.validate()
    is_ready = asyncio.run(_play(options, config, wait, log, output))
    raise typer.Exit(0 if is_ready else 1)


def _serve(config: Config, log: LogOptions) -> None:
    from winpod.play.server import serve

    start_logging(log, config.runtime.log_level)
    asyncio.run(serve(config.root, config))


async def _play(
    options: PlayOptions, config: Config, wait: WaitOptions, log: LogOptions, output: Format
) -> bool:
    latest = stamp = options.stamp()
    documents = options.read()
    emulation = is_emulation_allowed(config.hypervisor.allow_emulation, os.environ)
    async with connect_or_start(
        config.root, config, emulation=emulation, arguments=log.arguments
    ) as client:
        is_ready = await _apply(client, options, documents, wait.seconds, output)
        while wait.watch:
            await asyncio.sleep(_WATCH_SECONDS)
            before, latest = latest, options.stamp()
            if latest == stamp or latest != before:
                continue
            stamp = latest
            try:
                new = options.read()
                removed = await _remove(client, {*map(key_of, documents)} - {*map(key_of, new)})
                if output is Format.TEXT:
                    print_changes(removed)
                documents = new
                is_ready = await _apply(client, options, documents, wait.seconds, output, removed)
            except WinpodError as error:
                print(f"winpod: {error}", file=sys.stderr)
        return is_ready


async def _apply(
    client: PlayClient,
    options: PlayOptions,
    documents: list[Document],
    seconds: float,
    output: Format,
    removed: Document | None = None,
) -> bool:
    """Apply the manifests and print the result. JSON output also lists what was `removed`."""
    with PullOutput() as pull_output:
        result = await client.apply(await options.body(documents), pull_output.show)
    if output is Format.TEXT:
        print_changes(result)
    if seconds:
        state = await wait_settled(client, map(key_of, documents), seconds)
    else:
        state = await client.get("state")
    if output is Format.JSON:
        changes = [*list_changes(removed or {"changes": ()}), *list_changes(result)]
        notes = result.get("notes", [])
        print(json.dumps({"changes": changes, "notes": notes, **state}, indent=2), flush=True)
    if not seconds:
        return True
    if output is Format.TEXT:
        print_state(state)
    is_ready = all(pod["isReady"] or pod["phase"] == "Succeeded" for pod in state["pods"])
    return is_ready and not failed_workloads(state)


async def _remove(client: PlayClient, keys: set[ObjectKey]) -> Document:
    if not keys:
        return {"changes": []}
    body = {"keys": [[key.kind, key.namespace, key.name] for key in sorted(keys)]}
    result: Document = await client.post("delete", body)
    return result
