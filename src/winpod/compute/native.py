"""The native programs that containers run with; they are part of the package.

`winit` is the first process of a silo, `wagent.exe` its Windows side, `wguest` the first process of
a microVM. conmon uses `wproxy` as its OCI runtime; it also relays a container's named pipes. Their
sources and build script are in the repository's native/.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import winpod
from winpod.compute.errors import NativeMissing

WINIT, WAGENT, WPROXY, WGUEST = "winit", "wagent.exe", "wproxy", "wguest"


def native_program(name: str) -> Path:
    """Return the path of a native program."""
    path = Path(winpod.__file__).parent / "native" / name
    if not os.access(path, os.R_OK):
        raise NativeMissing(
            f"This winpod was installed without {name}.",
            "Reinstall it with pip, or run: python native/build.py",
        )
    return path


def with_agent_socket(path: Path, command: Sequence[str]) -> list[str]:
    """Prefix a command so that descriptor 3 is a silo's agent socket, which winit inherits.

    Clients may connect and send requests before the silo is up. The socket has no path in the
    container, so the programs in it cannot connect to it.
    """
    return [str(native_program(WPROXY)), "listen", str(path), *command]
