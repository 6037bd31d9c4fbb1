"""Supervision of a container's program by conmon, which outlives the daemon and runs wproxy.

All state is in the container's folder: `start`, the program; `stdio`, which streams it has;
`log_path`; then the pids, and the exit status.

Clients attach at conmon's socket in the folder. The first byte of a packet is the stream. conmon
blocks on a client that does not read, and the program on conmon, so a client has to keep reading or
detach. Earlier output is only in the log. A client that attaches before the start misses nothing,
because wproxy does not start the program while the folder's `hold` is locked.

With stdinOnce, stdin is closed when the client detaches, and conmon treats any client as that one.
So a client without stdin stays connected until the end, and its output is dropped.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path

from winpod.compute.agent.client import Stream, TerminalSize, short_socket_path
from winpod.compute.backend import ExitStatus
from winpod.compute.cgroups import in_own_cgroup
from winpod.compute.errors import ProgramStartFailed
from winpod.compute.native import WPROXY, native_program
from winpod.errors import Unavailable
from winpod.subprocesses import is_process_of, read_pid, wait_for_orphans, wait_process_exit

_STREAMS = {2: Stream.OUTPUT, 3: Stream.ERRORS}
_MAX_PACKET = 64 << 10
_INPUT_PACKET = 8 << 10
_POLL_SECONDS = 0.005


class AttachFailed(Unavailable):
    """The container's conmon has ended, or has not started yet."""

    def __init__(self, error: OSError) -> None:
        super().__init__(
            f"cannot attach to the container: {error.strerror}.",
            "Read its log instead.",
        )


class AttachedStreams:
    def __init__(self, connection: socket.socket, control: Path, *, keep_open: bool) -> None:
        self._connection = connection
        self._control = control
        self._keep_open = keep_open

    @classmethod
    async def open_before_start(cls, folder: Path, *, stdin: bool) -> AttachedStreams:
        """Wait for the container's start, and hold back its program until attached."""
        hold = os.open(folder / "hold", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(hold, fcntl.LOCK_SH)
            while True:
                try:
                    return await cls.connect(folder, stdin=stdin)
                except AttachFailed:
                    if not os.fstat(hold).st_nlink:
                        raise
                await asyncio.sleep(_POLL_SECONDS)
        finally:
            os.close(hold)

    @classmethod
    async def connect(cls, folder: Path, *, stdin: bool) -> AttachedStreams:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.setblocking(False)
        try:
            with short_socket_path(folder / "attach") as name:
                await asyncio.get_running_loop().sock_connect(connection, name)
        except OSError as error:
            connection.close()
            raise AttachFailed(error) from None
        stdin_once = "stdin_stays" not in (folder / "stdio").read_text().split()
        return cls(connection, folder / "ctl", keep_open=stdin_once and not stdin)

    async def __aenter__(self) -> AttachedStreams:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._keep_open:
            asyncio.get_running_loop().add_reader(self._connection, self._drop)
        else:
            self._connection.close()

    def _drop(self) -> None:
        if not self._connection.recv(_MAX_PACKET):
            asyncio.get_running_loop().remove_reader(self._connection)
            self._connection.close()

    async def output(self) -> AsyncIterator[tuple[Stream, bytes]]:
        while packet := await self._receive():
            if stream := _STREAMS.get(packet[0]):
                yield stream, packet[1:]

    async def _receive(self) -> bytes:
        loop = asyncio.get_running_loop()
        try:
            return await loop.sock_recv(self._connection, _MAX_PACKET)
        except ConnectionResetError:  # unread input; the last output is still queued
            return await loop.sock_recv(self._connection, _MAX_PACKET)

    async def write(self, data: bytes) -> None:
        """Send input; blocks while the program does not read."""
        for start in range(0, len(data), _INPUT_PACKET):
            packet = data[start : start + _INPUT_PACKET]
            await asyncio.get_running_loop().sock_sendall(self._connection, packet)

    async def close_stdin(self) -> None:
        """Stop sending. The program's stdin is closed if the container has stdinOnce."""
        self._connection.shutdown(socket.SHUT_WR)

    async def resize(self, size: TerminalSize) -> None:
        control = os.open(self._control, os.O_WRONLY | os.O_NONBLOCK)
        try:
            os.write(control, f"1 {size.rows} {size.columns}\n".encode())
        finally:
            os.close(control)


KILLED = 0xC000013A
_UNKNOWN = 255
_START_SECONDS = 30.0
_STDIO_OPTIONS = {"tty": "--terminal", "stdin": "--stdin", "stdin_stays": "--leave-stdin-open"}


async def start_conmon(folder: Path) -> None:
    """Return when Windows has started the program. Raises ProgramStartFailed."""
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
    command += [option for word, option in _STDIO_OPTIONS.items() if word in stdio]
    answer = json.loads(await _start(command, folder / "answer") or "{}")
    if int(answer.get("data", answer.get("pid", -1))) <= 0:
        raise ProgramStartFailed(
            str(answer.get("message", "")).strip() or "conmon reported no error"
        )


async def _start(command: list[str], answer: Path) -> str:
    read_end, write_end = _persistent_pipe(answer)
    try:
        process = await asyncio.create_subprocess_exec(
            *in_own_cgroup(command),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            pass_fds=(write_end,),
            env={"PATH": os.environ["PATH"], "_OCI_SYNCPIPE": str(write_end)},
        )
        os.close(write_end)
        write_end = -1
        await process.wait()
        return await asyncio.to_thread(_read_line, read_end)
    finally:
        os.close(read_end)
        if write_end >= 0:
            os.close(write_end)


def _persistent_pipe(path: Path) -> tuple[int, int]:
    """Open a pipe whose writer survives the reader's exit, because conmon outlives the daemon."""
    path.unlink(missing_ok=True)
    os.mkfifo(path, 0o600)
    try:
        write_end = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC), write_end
    finally:
        path.unlink()


def _read_line(descriptor: int) -> str:
    with os.fdopen(os.dup(descriptor), "r") as pipe:
        return pipe.readline()


def was_started(folder: Path) -> bool:
    """Report whether conmon was started, also by a daemon that has ended since."""
    wait_for_orphans(
        folder, ("conmon", "wproxy enter"), _START_SECONDS, unless=folder / "conmon.pid"
    )
    return (folder / "conmon.pid").exists()


def is_running(folder: Path) -> bool:
    ended = (folder / "exit" / folder.name).exists()
    return not ended and is_process_of(read_pid(folder / "conmon.pid"), folder)


async def wait_exit(folder: Path) -> None:
    pid = read_pid(folder / "conmon.pid")
    if pid is not None and is_process_of(pid, folder):
        await wait_process_exit(pid)


def has_exit_record(folder: Path) -> bool:
    """Report whether the program exited by itself, or was killed on request."""
    return (folder / "exit32").exists() or (folder / "killed").exists()


def read_exit_status(folder: Path) -> ExitStatus:
    """Return how the program ended, as far as it was recorded."""
    exit_file = folder / "exit" / folder.name
    finished = int(exit_file.stat().st_mtime * 1e9) if exit_file.exists() else time.time_ns()
    if (folder / "exit32").exists():
        return ExitStatus(int((folder / "exit32").read_text()), finished)
    if (folder / "killed").exists():
        return ExitStatus(KILLED, finished)
    if exit_file.exists():
        return ExitStatus(int(exit_file.read_text() or _UNKNOWN), finished)
    return ExitStatus(_UNKNOWN, finished, "Unknown", "the container's exit was not observed")
