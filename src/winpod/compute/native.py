"""The programs of winpod's own that a container is run with; they come with the package.

`winit` is the first process of a shell, `wagent.exe` its Windows side, `wproxy` what conmon takes
for the OCI runtime, and what carries a container's named pipes. Their sources, and how they are
built, are in the repository's native/. `wguest` is the first process of a microVM.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import winpod
from winpod.compute.errors import NativeMissing

WINIT, WAGENT, WPROXY, WGUEST = "winit", "wagent.exe", "wproxy", "wguest"


def native_program(name: str) -> Path:
    """Where a program is, on a file system that it can be started from and mounted from."""
    path = Path(winpod.__file__).parent / "native" / name
    if not os.access(path, os.R_OK):
        raise NativeMissing(
            f"This winpod was installed without {name}.",
            "Install it again with pip, or run: python native/build.py",
        )
    return path


def with_socket(path: Path, command: Sequence[str]) -> list[str]:
    """A command that has a shell's new socket as its descriptor 3, to hand on to winit.

    Clients may connect, and ask, before the shell is up. No directory of the container leads to the
    socket, so the programs in it have no name to reach it by.
    """
    return [str(native_program(WPROXY)), "listen", str(path), *command]
