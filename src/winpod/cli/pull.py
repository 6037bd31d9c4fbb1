"""`winpod pull`: bring an image into the store, for a handler."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from collections.abc import Iterator, Sequence
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

from winpod.cli.images import image_as_json
from winpod.cli.options import Format, Output, Root, short_id
from winpod.cri.config import Config, read_config
from winpod.images.credentials import CredentialSource, read_docker_config
from winpod.images.pull import pull
from winpod.images.pull_choice import resolve_handler
from winpod.images.pull_progress import LOG, LayerProgress, LayerState
from winpod.images.settings import BasePolicy
from winpod.images.store import Store
from winpod.images.stored import StoredImage
from winpod.windows.builds import parse_build
from winpod.windows.handlers import Handler

_TERMINATED = 128 + signal.SIGTERM

Handlers = Annotated[
    str,
    typer.Option(
        "--handler",
        metavar="HANDLER",
        help="The runtime handler it is for, such as runhcs-wcow-hypervisor-17763.",
    ),
]


def command(
    reference: Annotated[
        str,
        typer.Argument(
            metavar="REF", help="An image's name, oci:DIR[:NAME] or oci-archive:FILE[:NAME]."
        ),
    ],
    handler: Handlers = "",
    host_build: Annotated[
        str,
        typer.Option(
            "--host-build", metavar="BUILD", help="The Windows build of the node: 2022, 10.0.17763."
        ),
    ] = "",
    root: Root = None,
    base_layers: Annotated[
        BasePolicy | None,
        typer.Option(
            "--base-layers", help="Pull Microsoft's base layers, or leave them to the Wine base."
        ),
    ] = None,
    output: Output = Format.TEXT,
) -> None:
    """Pull a Windows image for a handler: the manifest that its build runs, and its layers."""
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
    credentials: Sequence[CredentialSource] = (),
    quiet: bool = False,
) -> StoredImage:
    """Into the store, with its progress shown. The user's own credentials are asked last."""
    docker = read_docker_config()
    task = asyncio.current_task()
    if task:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with Store(config.root, handlers=config.handlers) as store, _shown(quiet) as progress:
        return await pull(
            store,
            reference,
            handler,
            config.host_build,
            credentials=(*credentials, *((docker,) if docker else ())),
            settings=config.images,
            progress=progress,
        )


@contextmanager
def _shown(quiet: bool) -> Iterator[_Bars | _Nothing]:
    """Bars on a terminal, and lines of the log anywhere else."""
    if quiet:
        yield _Nothing()
        return
    console = Console(stderr=True)
    if console.is_terminal:
        with _Bars(console) as bars:
            yield bars
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)
    try:
        yield _Nothing()
    finally:
        LOG.removeHandler(handler)


class _Nothing:
    def __call__(self, _: LayerProgress) -> None:
        pass


class _Bars:
    """One bar for each layer, and what happens to it."""

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

    def __enter__(self) -> _Bars:
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
