"""A container's program that this base cannot run is refused with the reason, before it fails.

Wine has numbers for such a program at best, and some end without a word. Only a program that is
found is looked at; what is not there, Windows itself says.
"""

from __future__ import annotations

import ntpath
import os
from collections.abc import Iterator
from pathlib import Path

from winpod.compute import mounts
from winpod.compute.plan import Plan
from winpod.images.base import Base, refuse_foreign_program
from winpod.windows.command_line import split

_ENDING = ".exe"


def refuse_foreign(base: Base, drive: Path, plan: Plan) -> None:
    """`drive` is where the container's C: is on this machine."""
    with mounts.opened(drive) as root:
        for path in _places(plan):
            program = _find(root, path)
            if program is not None:
                try:
                    name = path.rpartition("\\")[2]
                    refuse_foreign_program(base, Path(f"/proc/self/fd/{program}"), name)
                finally:
                    os.close(program)
                return


def _places(plan: Plan) -> Iterator[str]:
    """Where Windows looks for the program, in its order."""
    program = split(plan.command_line)[0].replace("/", "\\")
    name = program.rpartition("\\")[2]
    if "." not in name:
        program += _ENDING
    if not program.lower().endswith(_ENDING):
        return
    if program[1:2] == ":" or program.startswith("\\"):
        yield program
        return
    search = next((value for key, value in plan.env if key.upper() == "PATH"), "")
    for folder in (plan.cwd, *search.split(";")):
        yield f"{folder.rstrip(chr(92))}\\{program}"


def _find(root: int, path: str) -> int | None:
    """The file at a path of C:, open, whatever the case of its name."""
    drive, colon, rest = ntpath.normpath(path).rpartition(":")
    if colon and drive.upper() != "C":
        return None
    here = ""
    for name in filter(None, rest.split("\\")):
        try:
            folder = mounts.open_below(root, here, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            return None
        try:
            found = mounts.name_in(folder, name)
        finally:
            os.close(folder)
        if found is None:
            return None
        here = f"{here}/{found}" if here else found
    try:
        return mounts.open_below(root, here, os.O_RDONLY)
    except OSError:
        return None
