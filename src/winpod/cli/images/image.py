"""`winpod image`: build and inspect Windows images."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table

from winpod.cli.options import human_size, with_options
from winpod.errors import InvalidInput
from winpod.images.layout import write_image
from winpod.images.manifests import ImageBundle
from winpod.images.pack import (
    Compression,
    DirectoryContent,
    PackConfig,
    pack,
    parse_pack_config,
    read_content,
)
from winpod.images.pack import Progress as Advance
from winpod.images.references import Reference, parse_reference
from winpod.images.registry.push import push_image
from winpod.images.resolver import ImageResolver, parse_layout_name
from winpod.windows.builds import DEFAULT_HOST, Build, parse_build
from winpod.windows.platforms import Image, Manifest

app = typer.Typer(help="Build and inspect Windows images.", no_args_is_help=True)

Target = Reference | tuple[Path, str]


class ShowFormat(StrEnum):
    TABLE = "table"
    JSON = "json"


class PackFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


@app.callback()
def _image() -> None:
    """Build and inspect Windows images."""


@app.command("show")
def show(
    image: Annotated[
        str,
        typer.Argument(
            metavar="REF", help="Image reference, oci:DIR[:NAME] or oci-archive:FILE[:NAME]."
        ),
    ],
    offline: Annotated[
        bool, typer.Option("--offline", help="Do not contact registries; use the cache.")
    ] = False,
    output: Annotated[
        ShowFormat, typer.Option("-o", "--output", help="Output format.")
    ] = ShowFormat.TABLE,
) -> None:
    """Show the platforms of an image: digest, OS, architecture, variant, build and size."""
    found = asyncio.run(_describe(image, offline))
    if output is ShowFormat.JSON:
        print(json.dumps(_image_as_json(found), indent=2))
    else:
        _print_image(found)


async def _describe(text: str, offline: bool) -> Image:
    async with ImageResolver(offline=offline) as sources:
        return await sources.describe(text)


def _image_as_json(image: Image) -> dict[str, Any]:
    return {
        "reference": image.reference,
        "digest": image.digest,
        "index": image.is_index,
        "manifests": [_manifest_as_json(manifest) for manifest in image.manifests],
    }


def _manifest_as_json(manifest: Manifest) -> dict[str, Any]:
    platform = manifest.platform
    release = platform.build.release if platform.build else None
    return {
        "digest": manifest.digest,
        "os": platform.os,
        "architecture": platform.architecture,
        "variant": platform.variant,
        "osVersion": platform.os_version,
        "product": release.name if release and platform.os == "windows" else "",
        "size": manifest.size,
    }


COLUMNS = ("digest", "os", "architecture", "variant", "build", "size")


def _rows(image: Image) -> list[tuple[str, ...]]:
    return [
        (
            manifest.digest,
            manifest.platform.os,
            manifest.platform.architecture,
            manifest.platform.variant,
            _build_shown(manifest),
            human_size(manifest.size),
        )
        for manifest in image.manifests
    ]


def _build_shown(manifest: Manifest) -> str:
    build = manifest.platform.build
    if build is None or manifest.platform.os != "windows":
        return manifest.platform.os_version
    return build.describe()


def _print_image(image: Image) -> None:
    kind = f"index {image.digest}" if image.is_index else "one manifest"
    heading = f"{image.reference} ({kind})"
    if not sys.stdout.isatty():
        print(heading)
        _print_aligned([COLUMNS, *_rows(image)])
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in COLUMNS:
        table.add_column(
            column, no_wrap=column == "digest", justify="right" if column == "size" else "left"
        )
    for row in _rows(image):
        table.add_row(*row)
    console = Console(highlight=False)
    console.print(heading, markup=False, soft_wrap=True)
    console.print(table)


def _print_aligned(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(map(str.ljust, row, widths)).rstrip())


@dataclass(frozen=True, slots=True)
class ImageConfigOptions:
    """Options that become the configuration of the packed image."""

    entrypoint: Annotated[
        str, typer.Option("--entrypoint", help="Entrypoint: a JSON array, or a command line.")
    ] = ""
    cmd: Annotated[str, typer.Option("--cmd", help="Command: a JSON array, or a command line.")] = (
        ""
    )
    env: Annotated[
        list[str] | None,
        typer.Option("-e", "--env", metavar="NAME=VALUE", help="Environment variable."),
    ] = None
    workdir: Annotated[str, typer.Option("-w", "--workdir", help="Working directory.")] = ""
    user: Annotated[str, typer.Option("-u", "--user", help="User to run as.")] = ""
    ports: Annotated[
        list[str] | None, typer.Option("-p", "--port", metavar="80/tcp", help="Exposed port.")
    ] = None
    labels: Annotated[
        list[str] | None, typer.Option("-l", "--label", metavar="NAME=VALUE", help="Image label.")
    ] = None

    def parse(self) -> PackConfig:
        return parse_pack_config(
            entrypoint=self.entrypoint,
            cmd=self.cmd,
            env=self.env or (),
            workdir=self.workdir,
            user=self.user,
            ports=self.ports or (),
            labels=self.labels or (),
        )


@app.command("pack")
@with_options
def pack_directory(
    *,
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Directory with the content of the C: drive.")
    ],
    tags: Annotated[
        list[str],
        typer.Option(
            "-t",
            "--tag",
            metavar="REF",
            help="Destination: oci:DIR[:NAME], or a reference to push to.",
        ),
    ],
    os_versions: Annotated[
        list[str] | None,
        typer.Option(
            "--os-version",
            metavar="BUILD",
            help="Windows build, such as 10.0.17763.805, 2019 or ltsc2022. May be repeated.",
        ),
    ] = None,
    arch: Annotated[str, typer.Option("--arch", help="Architecture: amd64 or arm64.")] = "amd64",
    options: ImageConfigOptions,
    compression: Annotated[
        Compression, typer.Option("--compression", help="Layer compression.")
    ] = Compression.GZIP,
    output: Annotated[
        PackFormat, typer.Option("-o", "--output", help="Output format.")
    ] = PackFormat.TEXT,
) -> None:
    """Pack a directory into a Windows image, for one build or several.

    Builds are reproducible: the same input gives the same digest. SOURCE_DATE_EPOCH sets the
    timestamps in the image. With several builds the image is an index.
    """
    targets = [_parse_target(tag, directory) for tag in tags]
    builds = [parse_build(version) for version in os_versions or ()] or [DEFAULT_HOST]
    settings = options.parse()
    content = read_content(directory)
    with tempfile.TemporaryDirectory(prefix="winpod-pack-") as workspace:
        image = _pack(content, builds, settings, Path(workspace), arch, compression)
        for tag, target in zip(tags, targets, strict=True):
            _store(tag, target, image)
    if output is PackFormat.JSON:
        print(json.dumps(_bundle_as_json(tags, image), indent=2))
    else:
        _print_bundle(tags, image)


def _parse_target(tag: str, directory: Path) -> Target:
    if tag.startswith("oci-archive:"):
        raise InvalidInput(f'"{tag}" is an archive, which is read-only.', "Write oci:DIR:NAME.")
    location = parse_layout_name(tag)
    if location is None:
        reference = parse_reference(tag)
        if reference.digest:
            raise InvalidInput(
                f'"{tag}" contains a digest, which cannot be chosen.', "Write a tag."
            )
        return reference
    if location[0].resolve().is_relative_to(directory.resolve()):
        raise InvalidInput(
            f"The layout {location[0]} is inside {directory} and would be packed into itself.",
            "Choose a layout outside of it.",
        )
    return location


def _pack(
    content: DirectoryContent,
    builds: Sequence[Build],
    settings: PackConfig,
    workspace: Path,
    architecture: str,
    compression: Compression,
) -> ImageBundle:
    with _progress_bar("packing", content.size) as advance:
        return pack(
            content,
            builds,
            settings,
            workspace,
            architecture=architecture,
            compression=compression,
            progress=advance,
        )


def _store(tag: str, target: Target, image: ImageBundle) -> None:
    if isinstance(target, Reference):
        with _progress_bar(f"pushing {tag}", sum(d.size for d, _ in image.blobs)) as advance:
            asyncio.run(push_image(target, image, advance))
    else:
        write_image(*target, image)


@contextmanager
def _progress_bar(what: str, total: int) -> Iterator[Advance]:
    """Show a progress bar on stderr if it is a terminal."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    console = Console(stderr=True)
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(what, total=total)
        yield lambda count: bar.advance(task, count)


def _bundle_as_json(tags: Sequence[str], image: ImageBundle) -> dict[str, Any]:
    return {
        "references": list(tags),
        "mediaType": image.root.media_type,
        "digest": image.root.digest,
        "manifests": [
            {
                "digest": d.digest,
                "osVersion": d.platform.os_version,
                "arch": d.platform.architecture,
            }
            for d, _ in image.manifests
            if d.platform
        ],
    }


def _print_bundle(tags: Sequence[str], image: ImageBundle) -> None:
    for tag in tags:
        print(f"{tag}  {image.root.digest}")
    rows = [
        (f"  {d.digest}", f"{d.platform.os}/{d.platform.architecture}", d.platform.build.describe())
        for d, _ in image.manifests
        if d.platform and d.platform.build
    ]
    _print_aligned(rows)
