"""`winpod images`: list the images in the store."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from winpod.cli.options import Format, Output, Root, human_size, print_table, short_id
from winpod.config import read_config
from winpod.images.references import parse_reference
from winpod.images.store.records import StoredImage
from winpod.images.store.store import Store
from winpod.windows.builds import parse_build, parse_version

_NO_NAME = "<none>"


def command(
    handler: Annotated[
        str | None,
        typer.Option("--handler", metavar="HANDLER", help="Only images of this runtime handler."),
    ] = None,
    host_build: Annotated[
        str,
        typer.Option("--host-build", metavar="BUILD", help="Only images for nodes of this build."),
    ] = "",
    digests: Annotated[bool, typer.Option("--digests", help="Show digests.")] = False,
    root: Root = None,
    output: Output = Format.TEXT,
) -> None:
    """List pulled images.

    Each name is listed once per runtime handler.
    """
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
    print_table(columns, _rows(images, digests), right=("size",))
