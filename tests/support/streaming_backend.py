"""Runtime for tests whose containers are local processes, and whose pod network is loopback."""

import asyncio
import contextlib
import fcntl
import os
import pty
import signal
import struct
import termios
from collections.abc import AsyncIterator, Sequence

from winpod.cri.streaming import ByteReader, ByteWriter, ClientStreams
from winpod.errors import NotFound, Unavailable

EXIT_WITH = "exit-with"
"""Stand-in for a Windows process: `exit-with N` exits with a code that Linux processes cannot."""


class LocalBackend:
    def __init__(self) -> None:
        self.ended_by_hangup: asyncio.Queue[int] = asyncio.Queue()
        self.attached = 0

    async def exec(
        self, container_id: str, command: Sequence[str], io: ClientStreams, *, tty: bool
    ) -> int:
        if container_id != "container":
            raise NotFound(f"There is no container {container_id}.")
        if command[0] == EXIT_WITH:
            return int(command[1])
        if command[0] == "fail":
            raise ZeroDivisionError("a secret detail")
        return await (self._in_terminal if tty else self._with_pipes)(command, io)

    async def attach(self, container_id: str, io: ClientStreams, *, tty: bool) -> None:
        self.attached += 1
        try:
            await self.exec(container_id, ["cat"], io, tty=tty)
        finally:
            self.attached -= 1

    async def connect(
        self, sandbox_id: str, port: int
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if sandbox_id != "sandbox":
            raise NotFound(f"There is no pod {sandbox_id}.")
        try:
            return await asyncio.open_connection("127.0.0.1", port)
        except OSError as error:
            raise Unavailable(f"Nothing listens on port {port} of the pod.") from error

    async def _with_pipes(self, command: Sequence[str], io: ClientStreams) -> int:
        wanted = (io.stdin, io.stdout, io.stderr)
        pipes = [
            asyncio.subprocess.PIPE if stream else asyncio.subprocess.DEVNULL for stream in wanted
        ]
        async with self._process(command, *pipes) as process:
            copies = []
            if io.stdout and process.stdout:
                copies.append(copy_out(process.stdout, io.stdout))
            if io.stderr and process.stderr:
                copies.append(copy_out(process.stderr, io.stderr))
            feeding = None
            if io.stdin and process.stdin:
                feeding = asyncio.create_task(copy_in(io.stdin, process.stdin))
            try:
                await asyncio.gather(*copies)
                return await process.wait()
            finally:
                if feeding is not None:
                    feeding.cancel()

    async def _in_terminal(self, command: Sequence[str], io: ClientStreams) -> int:
        ours, theirs = pty.openpty()
        with open(ours, "r+b", buffering=0) as terminal:  # noqa: ASYNC230, PTH123
            async with self._process(
                ["setsid", "--ctty", "--wait", *command], theirs, theirs, theirs
            ) as process:
                os.close(theirs)
                helpers = [asyncio.create_task(follow_sizes(ours, io, process.pid))]
                if io.stdin:
                    helpers.append(asyncio.create_task(type_in(io.stdin, ours)))
                try:
                    while data := await _read_terminal(terminal.fileno()):
                        if io.stdout:
                            await io.stdout.write(data)
                    return await process.wait()
                finally:
                    for helper in helpers:
                        helper.cancel()

    @contextlib.asynccontextmanager
    async def _process(
        self, command: Sequence[str], stdin: int, stdout: int, stderr: int
    ) -> AsyncIterator[asyncio.subprocess.Process]:
        """Run a process in its own group, which gets SIGHUP if the block is left early."""
        process = await asyncio.create_subprocess_exec(
            *command, stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=True
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGHUP)
                await process.wait()
                self.ended_by_hangup.put_nowait(process.pid)


async def copy_out(source: asyncio.StreamReader, target: ByteWriter) -> None:
    while data := await source.read(65536):
        await target.write(data)


async def copy_in(source: ByteReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await source.read():
            target.write(data)
            await target.drain()
    target.close()


async def type_in(source: ByteReader, terminal: int) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await source.read():
            await asyncio.to_thread(os.write, terminal, data)


async def follow_sizes(terminal: int, io: ClientStreams, pid: int) -> None:
    async for size in io.resize:
        fcntl.ioctl(
            terminal, termios.TIOCSWINSZ, struct.pack("HHHH", size.height, size.width, 0, 0)
        )
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGWINCH)


async def _read_terminal(terminal: int) -> bytes:
    """Read from a terminal; empty once the other side is closed, which is reported as an error."""
    try:
        return await asyncio.to_thread(os.read, terminal, 65536)
    except OSError:
        return b""
