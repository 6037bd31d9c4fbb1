"""`winpod instance payload` and `fetch`: the files that instances get."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from winpod.cli.options import Root
from winpod.cri.config import read_config
from winpod.images.credentials import read_docker_config
from winpod.instances.software.payload import LIST, Payload, make_payload
from winpod.instances.software.payload_image import fetch_payload


def payload(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where the programs are.")],
    version: Annotated[
        str,
        typer.Option("--version", metavar="VERSION", help="What this payload is called: 1.2.0."),
    ],
    containerd: Annotated[
        str,
        typer.Option("--containerd", metavar="VERSION", help="That of containerd.exe, if untold."),
    ] = "",
) -> None:
    """List the programs in a directory with their SHA256, so that instances can get them.

    Nothing is downloaded: put containerd, kubelet and the others there first.
    """
    _print(directory, make_payload(directory, version, containerd))


def fetch(
    image: Annotated[
        str,
        typer.Argument(
            metavar="IMAGE",
            help="An image's name, oci:DIR[:NAME] or oci-archive:FILE[:NAME].",
        ),
    ],
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where its files are to be.")],
    root: Root = None,
) -> None:
    """Lay a payload that was packed as an image into a directory, and see that it is whole."""
    docker = read_docker_config()
    credentials = (docker,) if docker else ()
    store = root or read_config().root
    _print(directory, asyncio.run(fetch_payload(image, directory, store, credentials)))


def _print(directory: Path, found: Payload) -> None:
    for name, file in sorted(found.files.items()):
        print(f"{file.sha256}  {name}")
    print(f"{directory / LIST}: version {found.version}, containerd {found.containerd}")
