r"""Named pipes of a container that lead to Unix sockets of this machine.

Wine has no AF_UNIX, so bytes are carried by a process beside the container, `wproxy relay`, which
outlives this one and ends with the container's shell. A pipe `\\.\pipe\NAME` of this machine, which
is no Windows, is the Unix socket NAME in a directory of winpod's.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from winpod.compute.agent import pipe_request
from winpod.compute.errors import PipeRefused
from winpod.compute.native import WPROXY, native_program
from winpod.compute.plan import Mount, SourceKind
from winpod.windows.errors import InvalidInput
from winpod.windows.paths import pipe_name

MOST = 16
_FILE = "pipes"
_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Pipe:
    """`name` to programs in the container, a socket at `path` to this machine."""

    name: str
    path: Path


def find_pipes(mounts: Iterable[Mount], directory: Path) -> tuple[Pipe, ...]:
    """The pipes among the mounts; `directory` has those that are named as pipes here too."""
    found = []
    for mount in mounts:
        if mount.kind is SourceKind.PIPE:
            found.append(Pipe(pipe_name(mount.destination), directory / pipe_name(mount.source)))
        elif mount.kind is SourceKind.SOCKET:
            found.append(Pipe(pipe_name(mount.destination), Path(mount.source).absolute()))
    if len(found) > MOST:
        raise InvalidInput(f"{len(found)} named pipes are mounted, and {MOST} can be.")
    return tuple(found)


def write_pipes(folder: Path, pipes: Iterable[Pipe]) -> None:
    """What `start_relay` is to carry for the container whose directory this is."""
    parts = (part for pipe in pipes for part in (pipe_request(pipe.name), bytes(pipe.path)))
    (folder / _FILE).write_bytes(b"".join(struct.pack("<I", len(part)) + part for part in parts))


async def start_relay(folder: Path) -> None:
    """Returns when programs can open the pipes; at once for a container without any."""
    if not (folder / _FILE).exists() or not (folder / _FILE).stat().st_size:
        return
    process = await asyncio.create_subprocess_exec(
        str(native_program(WPROXY)),
        "relay",
        str(folder),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(_SECONDS):
            _, said = await process.communicate()
    except TimeoutError:
        process.kill()
        raise PipeRefused(f"the container did not make them in {_SECONDS:.0f} s") from None
    if process.returncode:
        raise PipeRefused(said.decode(errors="replace").strip())
