"""`winpod rmi`: take images out of the store."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from winpod.cli.images import image_as_json
from winpod.cli.options import Format, Output, Root, short_id
from winpod.cri.config import read_config
from winpod.images.store import Store
from winpod.images.stored import StoredImage
from winpod.windows.errors import InvalidInput

NOT_FOUND = 1


def command(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="REF|ID...", help="Names or ids of images.")
    ] = None,
    handler: Annotated[
        str | None,
        typer.Option(
            "--handler", metavar="HANDLER", help="Only for a runtime handler; else for all."
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every image there is.")] = False,
    root: Root = None,
    output: Output = Format.TEXT,
) -> None:
    """Remove images with all their names, and the content that no other image needs."""
    if bool(names) == everything:
        raise InvalidInput("No image was named.", "Write REF or ID, or --all and nothing else.")
    gone: list[StoredImage] = []
    missing = False
    config = read_config()
    with Store(root or config.root, handlers=config.handlers) as store:
        if everything:
            names = list(dict.fromkeys(image.id for image in store.images(handler)))
        for name in names or ():
            removed = store.remove(name, handler)
            gone += removed
            if output is Format.TEXT:
                _tell(removed)
            if not removed:
                missing = True
                whose = f" for {handler}" if handler else ""
                print(
                    f'winpod: There is no image "{name}"{whose} here. `winpod images` lists them.',
                    file=sys.stderr,
                )
    if output is Format.JSON:
        print(json.dumps([image_as_json(image) for image in gone], indent=2))
    if missing:
        raise typer.Exit(NOT_FOUND)


def _tell(removed: list[StoredImage]) -> None:
    for image in removed:
        for tag in image.tags:
            print(f"untagged {tag} ({image.handler}, host {image.host})")
        print(f"removed {short_id(image.id)} ({image.handler}, host {image.host})")
