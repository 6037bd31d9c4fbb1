"""`winpod instance trust` and `replace-key`: who an instance is, and who may come in."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import asyncssh
import typer

from winpod.instances.errors import LoginRefused
from winpod.instances.remote.host_keys import KeysInFile
from winpod.instances.remote.keys import add_line, public_line, remove_line
from winpod.instances.remote.ssh import Host
from winpod.windows.errors import InvalidInput, NotFound

Names = Annotated[
    list[str], typer.Argument(metavar="ADDRESS...", help="Instances that were made anew.")
]
NewKey = Annotated[
    Path, typer.Option("--new-key", metavar="FILE", help="The private key that is to open them.")
]


def trust(names: Names) -> None:
    """Forget the host keys of instances: who answers there next is trusted, and pinned anew."""
    keys = KeysInFile()
    forgotten = {name: keys.forget(name.lower()) for name in names}
    for name in (name for name, key in forgotten.items() if key):
        print(f"{name}: its host key is forgotten")
    if unknown := [name for name, key in forgotten.items() if not key]:
        raise NotFound(
            f"no host key of {', '.join(unknown)} is known in {keys.file}.",
            "Give the address, or the name, by which winpod has spoken to it.",
        )


def refuse_same(old: asyncssh.SSHKey, new: asyncssh.SSHKey) -> None:
    """The old key's line is removed in the end: of a key that is both, none would be left."""
    if public_line(old) == public_line(new):
        raise InvalidInput("the new key is the old one.", "Make another: ssh-keygen -N '' -f FILE")


async def replace_key(host: Host, old: asyncssh.SSHKey, new: asyncssh.SSHKey) -> str:
    """The old one goes only after the new one has opened the instance."""
    async with host.opened_with(new) as after:
        try:
            await after.connect()
        except LoginRefused:
            await add_line(host, public_line(new))
            await after.connect()
        was_there = await remove_line(after, public_line(old))
    return "the new key opens it" + (", and the old one no longer does" if was_there else "")
