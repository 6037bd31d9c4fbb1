"""A container's log, which wproxy writes: opened again after somebody has moved it away.

wproxy is told by a signal, and has heard it when the file at the log's path is one that it holds.
Until then it writes on into the one that was moved, so nothing is lost when this fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path

from winpod.compute.errors import LogNotReopened

_LOOK_AGAIN = 0.01
_LOOKS = 500


async def reopen_log(path: str, writer: int | None) -> None:
    """Returns when what the program writes goes to a file at `path`; `writer` is its wproxy."""
    if not path:
        return
    if not Path(path).parent.is_dir():
        raise LogNotReopened(path, "its directory is gone")
    if writer is not None and _is_running_wproxy(writer):
        os.kill(writer, signal.SIGUSR1)
    for _ in range(_LOOKS):
        if writer is None or not _is_running_wproxy(writer):
            raise LogNotReopened(path, "its container does not run")
        if _holds(writer, path):
            return
        await asyncio.sleep(_LOOK_AGAIN)
    raise LogNotReopened(path, "no file can be made there")


def _is_running_wproxy(process: int) -> bool:
    try:
        name, state = Path(f"/proc/{process}/stat").read_text().split()[1:3]
    except OSError:
        return False
    return name == "(wproxy)" and state != "Z"


def _holds(process: int, path: str) -> bool:
    with contextlib.suppress(OSError):
        wanted = Path(path).stat()
        for held in Path(f"/proc/{process}/fd").iterdir():
            with contextlib.suppress(OSError):
                if os.path.samestat(held.stat(), wanted):
                    return True
    return False
