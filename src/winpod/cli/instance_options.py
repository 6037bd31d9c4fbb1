"""Which instances a command is about, and how they are reached: options that all of them share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import asyncssh
import typer
import yaml

from winpod.instances.cluster.inputs import Entries, read_entries
from winpod.instances.remote.login import read_key
from winpod.windows.errors import InvalidInput

Address = Annotated[
    str, typer.Option("--address", metavar="ADDRESS", help="One instance: its address or name.")
]
User = Annotated[
    str, typer.Option("--user", metavar="NAME", help="Who logs in there, an administrator.")
]
Port = Annotated[int, typer.Option("--port", metavar="PORT", help="Where its SSH server is.")]
Instances = Annotated[
    Path | None,
    typer.Option(
        "--instances",
        metavar="FILE",
        help="Several: the ConfigMap windows-instances, or lines of `address: username=NAME`.",
    ),
]
Key = Annotated[
    Path, typer.Option("--key", metavar="FILE", help="The private key that opens them.")
]
AtOnce = Annotated[
    int, typer.Option("--at-once", metavar="NUMBER", min=1, help="So many at the same time.")
]
PayloadDirectory = Annotated[
    Path,
    typer.Option(
        "--payload", metavar="DIR", help="The files to install: see `winpod instance payload`."
    ),
]
SettingsFile = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="The operator's settings: networks, mirrors."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def read_asked(address: str, user: str, port: int, instances: Path | None) -> Entries:
    """Those that are named; what is wrong with one entry of a file is said of that one."""
    if bool(address) == bool(instances):
        raise InvalidInput("one of --address and --instances names instances.", "Give one of them.")
    if instances:
        return read_entries(_entries(instances))
    found = read_entries({address: f"username={user} port={port}"})
    if found.bad:
        raise InvalidInput(found.bad[0].problem)
    return found


def read_private_key(file: Path, option: str) -> asyncssh.SSHKey:
    return read_key(_read(file, option), str(file))


def _read(file: Path, option: str) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise InvalidInput(
            f"{file} cannot be read: {error.strerror}.", f"{option} names it."
        ) from None


def _entries(file: Path) -> dict[str, str]:
    try:
        document: Any = yaml.safe_load(_read(file, "--instances"))
    except yaml.YAMLError as error:
        raise InvalidInput(f"{file} is not YAML: {' '.join(str(error).split())}.") from None
    if isinstance(document, Mapping) and document.get("kind") == "ConfigMap":
        document = document.get("data") or {}
    if not isinstance(document, Mapping) or not document:
        raise InvalidInput(
            f"{file} names no instances.", "Write lines such as: 10.1.2.3: username=Administrator"
        )
    return {str(key): str(value) for key, value in document.items()}
