"""A program that this base cannot run is refused with the reason.

A container's own is looked at before it fails, a further one when it has.

Wine has numbers for such a program at best, and some end without a word. Only a program that is
found is looked at; what is not there, Windows itself says.
"""

from __future__ import annotations

import ntpath
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from winpod.compute import mounts
from winpod.compute.agent import Program
from winpod.images.base import Base, refuse_foreign_program
from winpod.windows.command_line import split

_ENDING = ".exe"


def refuse_foreign(
    base: Base, drive: Path, program: Program, apart: Mapping[str, Path] | None = None
) -> None:
    """`drive` is where the container's C: is on this machine, but for what is mounted `apart`."""
    with mounts.opened(drive) as root:
        for path in _places(program):
            file = _find(root, path, apart or {})
            if file is not None:
                try:
                    name = path.rpartition("\\")[2]
                    refuse_foreign_program(base, Path(f"/proc/self/fd/{file}"), name)
                finally:
                    os.close(file)
                return


def _places(program: Program) -> Iterator[str]:
    """Where Windows looks for the program, in its order."""
    path = split(program.command_line)[0].replace("/", "\\")
    name = path.rpartition("\\")[2]
    if "." not in name:
        path += _ENDING
    if not path.lower().endswith(_ENDING):
        return
    if path[1:2] == ":" or path.startswith("\\"):
        yield path
        return
    search = next((v for key, v in program.environment.items() if key.upper() == "PATH"), "")
    for folder in (program.directory, *search.split(";")):
        yield f"{folder.rstrip(chr(92))}\\{path}"


def _find(root: int, path: str, apart: Mapping[str, Path]) -> int | None:
    """The file at a path of C:, open, whatever the case of its name."""
    drive, colon, rest = ntpath.normpath(path).rpartition(":")
    if colon and drive.upper() != "C":
        return None
    try:
        return _open(root, [name for name in rest.split("\\") if name], apart)
    except OSError:
        return None


def _open(root: int, names: Sequence[str], apart: Mapping[str, Path]) -> int | None:
    here = ""
    for depth, name in enumerate(names, 1):
        folder = mounts.open_below(root, here, os.O_RDONLY | os.O_DIRECTORY)
        try:
            found = mounts.name_in(folder, name)
        finally:
            os.close(folder)
        if found is None:
            return None
        here = f"{here}/{found}" if here else found
        if here in apart and depth == len(names):
            return os.open(apart[here], os.O_RDONLY | os.O_CLOEXEC)
        if here in apart:
            with mounts.opened(apart[here]) as other:
                return _open(other, names[depth:], {})
    return mounts.open_below(root, here, os.O_RDONLY)
