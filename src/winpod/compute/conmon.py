"""The supervision of a container's program: conmon, which outlives the runtime, over wproxy.

All that it needs and leaves is in the container's folder: `start`, the program; `stdio`, what of
its streams is wanted; `log_path`; then the numbers of its processes, and how the program ended.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path

from winpod.compute.backend import Exit
from winpod.compute.errors import StartRefused
from winpod.compute.native import WPROXY, native_program
from winpod.compute.processes import is_about, read_pid, until_gone, wait_for_orphans

KILLED = 0xC000013A
_UNKNOWN = 255
_ON_ITS_WAY = 30.0
_WANTED = {"tty": "--terminal", "stdin": "--stdin", "stdin_stays": "--leave-stdin-open"}


async def supervise(folder: Path) -> None:
    """Returns when Windows has started the program, or says why it has not."""
    stdio = (folder / "stdio").read_text().split()
    if log_path := (folder / "log_path").read_text():
        Path(log_path).parent.mkdir(parents=True, exist_ok=True)
    name = folder.name
    command = ["conmon", "--api-version", "1", "--cid", name, "--cuuid", name]
    command += ["--bundle", str(folder), "--runtime", str(native_program(WPROXY))]
    command += ["--exit-dir", str(folder / "exit"), "--log-level", "warning"]
    command += ["--container-pidfile", str(folder / "program.pid")]
    command += ["--conmon-pidfile", str(folder / "conmon.pid")]
    command += ["--log-path", "none", "--full-attach"]
    command += [option for word, option in _WANTED.items() if word in stdio]
    answer = json.loads(await _start(command, folder / "answer") or "{}")
    if int(answer.get("data", answer.get("pid", -1))) <= 0:
        raise StartRefused(str(answer.get("message", "")).strip() or "the supervisor said nothing")


async def _start(command: list[str], answer: Path) -> str:
    reading, writing = _lasting_pipe(answer)
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            pass_fds=(writing,),
            env={"PATH": os.environ["PATH"], "_OCI_SYNCPIPE": str(writing)},
        )
        os.close(writing)
        writing = -1
        await process.wait()
        return await asyncio.to_thread(_read_line, reading)
    finally:
        os.close(reading)
        if writing >= 0:
            os.close(writing)


def _lasting_pipe(path: Path) -> tuple[int, int]:
    """A pipe whose writer is not ended by the end of its reader: conmon outlives this process."""
    path.unlink(missing_ok=True)
    os.mkfifo(path, 0o600)
    try:
        writing = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC), writing
    finally:
        path.unlink()


def _read_line(descriptor: int) -> str:
    with os.fdopen(os.dup(descriptor), "r") as pipe:
        return pipe.readline()


def was_begun(folder: Path) -> bool:
    """Whether there was a supervisor, who goes on without the process that called for him."""
    wait_for_orphans(folder, ("conmon",), _ON_ITS_WAY, unless=folder / "conmon.pid")
    return (folder / "conmon.pid").exists()


def is_supervised(folder: Path) -> bool:
    ended = (folder / "exit" / folder.name).exists()
    return not ended and is_about(read_pid(folder / "conmon.pid"), folder)


async def until_ended(folder: Path) -> None:
    pid = read_pid(folder / "conmon.pid")
    if pid is not None and is_about(pid, folder):
        await until_gone(pid)


def is_explained(folder: Path) -> bool:
    """Whether the program ended by itself, or was killed because somebody asked for it."""
    return (folder / "exit32").exists() or (folder / "killed").exists()


def read_exit(folder: Path) -> Exit:
    """How the program ended, as far as anybody saw it."""
    written = folder / "exit" / folder.name
    finished = int(written.stat().st_mtime * 1e9) if written.exists() else time.time_ns()
    if (folder / "exit32").exists():
        return Exit(int((folder / "exit32").read_text()), finished)
    if (folder / "killed").exists():
        return Exit(KILLED, finished)
    if written.exists():
        return Exit(int(written.read_text() or _UNKNOWN), finished)
    return Exit(_UNKNOWN, finished, "Unknown", "nobody saw how the container ended")
