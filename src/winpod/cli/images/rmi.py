"""`winpod rmi`: remove images from the store."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from winpod.cli.images.list import image_as_json
from winpod.cli.options import Format, Output, Root, short_id
from winpod.config import read_config
from winpod.errors import InvalidInput
from winpod.images.store.records import StoredImage
from winpod.images.store.store import Store

NOT_FOUND = 1


def command(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="REF|ID...", help="Image references or IDs.")
    ] = None,
    handler: Annotated[
        str | None,
        typer.Option(
            "--handler", metavar="HANDLER", help="Only for this runtime handler (default: all)."
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Remove all images.")] = False,
    root: Root = None,
    output: Output = Format.TEXT,
) -> None:
    """Remove images.

    All names of the image are removed, and the content that no other image uses.
    """
    if bool(names) == everything:
        raise InvalidInput("Give images or --all, not both.", "Write REF or ID, or only --all.")
    all_removed: list[StoredImage] = []
    missing = False
    config = read_config()
    with Store(root or config.root, handlers=config.handlers) as store:
        if everything:
            names = list(dict.fromkeys(image.id for image in store.images(handler)))
        for name in names or ():
            removed = store.remove(name, handler)
            all_removed += removed
            if output is Format.TEXT:
                _print_removed(removed)
            if not removed:
                missing = True
                scope = f" for {handler}" if handler else ""
                print(
                    f'winpod: No such image: "{name}"{scope}. List images with `winpod images`.',
                    file=sys.stderr,
                )
    if output is Format.JSON:
        print(json.dumps([image_as_json(image) for image in all_removed], indent=2))
    if missing:
        raise typer.Exit(NOT_FOUND)


def _print_removed(removed: list[StoredImage]) -> None:
    for image in removed:
        for tag in image.tags:
            print(f"untagged {tag} ({image.handler}, host {image.host})")
        print(f"removed {short_id(image.id)} ({image.handler}, host {image.host})")
