"""`winpod images`: what is in the store."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from winpod.cli.image import human_size
from winpod.cri.config import read_config
from winpod.images.references import parse_reference
from winpod.images.store import Store, StoredImage
from winpod.windows.builds import parse_build, parse_version

_NO_NAME = "<none>"


class Format(StrEnum):
    TEXT = "text"
    JSON = "json"


def command(
    handler: Annotated[
        str | None,
        typer.Option("--handler", metavar="HANDLER", help="Only those of a runtime handler."),
    ] = None,
    host_build: Annotated[
        str, typer.Option("--host-build", metavar="BUILD", help="Only those of nodes of a build.")
    ] = "",
    digests: Annotated[bool, typer.Option("--digests", help="Show digests too.")] = False,
    root: Annotated[
        Path | None,
        typer.Option("--root", metavar="DIR", help="Where images are kept, else $WINPOD_ROOT."),
    ] = None,
    output: Annotated[Format, typer.Option("-o", "--output", help="How to print them.")] = (
        Format.TEXT
    ),
) -> None:
    """List the images that were pulled: each name, for each handler."""
    host = parse_build(host_build) if host_build else None
    config = read_config()
    with Store(root or config.root, host=host, handlers=config.handlers) as store:
        images = store.images(handler)
    if output is Format.JSON:
        print(json.dumps([image_as_json(image) for image in images], indent=2))
    else:
        _print_images(images, digests)


def image_as_json(image: StoredImage) -> dict[str, Any]:
    pulled = datetime.fromtimestamp(image.pulled_at, UTC)
    return {
        "id": image.id,
        "repoTags": list(image.tags),
        "repoDigests": list(image.digests),
        "handler": image.handler,
        "hostBuild": image.host,
        "manifest": image.manifest,
        "architecture": image.architecture,
        "osVersion": image.os_version,
        "size": image.size,
        "pinned": image.pinned,
        "pulledAt": pulled.isoformat(timespec="seconds"),
        "layers": [
            {
                "digest": layer.digest,
                "diffId": layer.diff_id,
                "base": layer.base,
                "kept": layer.kept,
            }
            for layer in image.layers
        ],
    }


def short_id(digest: str) -> str:
    return digest.partition(":")[2][:12]


def _rows(images: list[StoredImage], digests: bool) -> list[tuple[str, ...]]:
    rows = []
    for image in images:
        build = parse_version(image.os_version)
        rest = (
            short_id(image.id),
            image.handler,
            image.host,
            build.describe() if build else image.os_version,
            human_size(image.size),
        )
        for name in image.tags or image.digests:
            reference = parse_reference(name)
            repository = reference.familiar.partition("@")[0].removesuffix(f":{reference.tag}")
            digest = image.digests[0].partition("@")[2]
            shown = (repository, reference.tag or _NO_NAME)
            rows.append((*shown, *((digest,) if digests else ()), *rest))
    return rows


def _print_images(images: list[StoredImage], digests: bool) -> None:
    columns = ("repository", "tag", *(("digest",) if digests else ()))
    columns += ("id", "handler", "host", "build", "size")
    rows = _rows(images, digests)
    if not sys.stdout.isatty():
        widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
        for row in (columns, *rows):
            print("  ".join(map(str.ljust, row, widths)).rstrip())
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column == "size" else "left")
    for row in rows:
        table.add_row(*row)
    Console(highlight=False).print(table)
