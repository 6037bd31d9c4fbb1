"""`winpod pull`: pull an image for a runtime handler."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TransferSpeedColumn,
)

from winpod.cli.images.list import image_as_json
from winpod.cli.options import Format, Output, Root, short_id
from winpod.config import BaseLayerPolicy, Config, read_config
from winpod.images.pull.platform_match import resolve_handler
from winpod.images.pull.puller import pull
from winpod.images.pull.singleflight import LOGGER, LayerProgress, LayerState, ignore_progress
from winpod.images.pull.singleflight import Progress as LayerCallback
from winpod.images.registry.auth import read_docker_config
from winpod.images.store.records import StoredImage
from winpod.images.store.store import Store
from winpod.labels import HYPERVISOR_HANDLER_PREFIX
from winpod.windows.builds import parse_build
from winpod.windows.handlers import Handler

_TERMINATED = 128 + signal.SIGTERM

HandlerOption = Annotated[
    str,
    typer.Option(
        "--handler",
        metavar="HANDLER",
        help=f"Runtime handler, such as {HYPERVISOR_HANDLER_PREFIX}17763.",
    ),
]


def command(
    reference: Annotated[
        str,
        typer.Argument(
            metavar="REF", help="Image reference, oci:DIR[:NAME] or oci-archive:FILE[:NAME]."
        ),
    ],
    handler: HandlerOption = "",
    host_build: Annotated[
        str,
        typer.Option(
            "--host-build",
            metavar="BUILD",
            help="Windows build of the node, such as 2022 or 10.0.17763.",
        ),
    ] = "",
    root: Root = None,
    base_layers: Annotated[
        BaseLayerPolicy | None,
        typer.Option(
            "--base-layers",
            help="Pull Microsoft's base layers, or replace them with the Wine base.",
        ),
    ] = None,
    output: Output = Format.TEXT,
) -> None:
    """Pull a Windows image for a runtime handler.

    Selects the manifest that the handler's Windows build can run, and pulls its layers.
    """
    config = read_config()
    chosen = resolve_handler(config.handlers, handler)
    if root:
        config = replace(config, root=root)
    if host_build:
        config = replace(config, host_build=parse_build(host_build))
    if base_layers:
        config = replace(config, images=replace(config.images, base_layers=base_layers))
    try:
        image = asyncio.run(pull_image(reference, chosen, config))
    except asyncio.CancelledError:
        raise typer.Exit(_TERMINATED) from None
    if output is Format.JSON:
        print(json.dumps(image_as_json(image), indent=2))
    else:
        print(image.id)


async def pull_image(
    reference: str,
    handler: Handler,
    config: Config,
    *,
    quiet: bool = False,
) -> StoredImage:
    """Pull an image with the user's docker credentials, and show the progress."""
    docker = read_docker_config()
    task = asyncio.current_task()
    if task:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with Store(config.root, handlers=config.handlers) as store, show_progress(quiet) as progress:
        return await pull(
            store,
            reference,
            handler,
            config.host_build,
            credentials=(docker,) if docker else (),
            settings=config.images,
            progress=progress,
        )


@contextmanager
def show_progress(quiet: bool = False) -> Iterator[LayerCallback]:
    """Show progress bars on a terminal, log lines otherwise."""
    if quiet:
        yield ignore_progress
        return
    console = Console(stderr=True)
    if console.is_terminal:
        with _ProgressBars(console) as bars:
            yield bars
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.INFO)
    try:
        yield ignore_progress
    finally:
        LOGGER.removeHandler(handler)


class _ProgressBars:
    """A progress bar per layer."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TextColumn("{task.fields[state]}", markup=False),
            console=console,
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> _ProgressBars:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def __call__(self, layer: LayerProgress) -> None:
        if layer.digest not in self._tasks:
            self._tasks[layer.digest] = self._progress.add_task(
                short_id(layer.digest), total=layer.total, state=layer.state
            )
        done = layer.total if layer.state is LayerState.BASE else layer.done
        self._progress.update(self._tasks[layer.digest], completed=done, state=layer.state)
