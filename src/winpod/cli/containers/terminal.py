"""Connecting stdin, stdout and stderr of this process to a container.

With a terminal, stdin is raw (Ctrl-C goes to the program), the window size is forwarded, and
Ctrl-P Ctrl-Q detaches. Without one, Ctrl-C stops the container.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import termios
import threading
import tty
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import typer

from winpod.cli.containers.targets import exit_code
from winpod.compute.errors import PROGRAM_NOT_EXECUTABLE, PROGRAM_NOT_FOUND
from winpod.concurrency import cancel_and_wait
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import CriClient
from winpod.cri.streaming.api import CHUNK, StreamTerminalSize
from winpod.cri.streaming.client import STDERR, STDOUT, Session, open_session
from winpod.errors import InvalidInput, WinpodError

_DESCRIPTORS = {STDOUT: 1, STDERR: 2}
_BACKLOG = 1024
DETACH = b"\x10\x11"


def check_terminal() -> None:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InvalidInput(
            "-t requires a terminal, but stdin or stdout is not one.", "Leave -t out."
        )


async def attach_terminal(
    session: Session, *, stdin: bool, terminal: bool, detachable: bool = True
) -> bool:
    """Copy the streams until the output ends. Returns False if the user detached first."""
    detached = asyncio.Event()
    with _raw() if terminal else contextlib.nullcontext():
        tasks = [asyncio.create_task(_print(session))]
        if terminal:
            tasks.append(asyncio.create_task(_forward_size(session)))
        if stdin:
            detach_keys = DETACH if terminal and detachable else b""
            tasks.append(asyncio.create_task(_forward_stdin(session, detach_keys, detached)))
        detach_task = asyncio.create_task(detached.wait())
        try:
            await asyncio.wait((tasks[0], detach_task), return_when=asyncio.FIRST_COMPLETED)
            if tasks[0].done():
                tasks[0].result()
            return tasks[0].done()
        finally:
            await cancel_and_wait(*tasks, detach_task)


@contextmanager
def _raw() -> Iterator[None]:
    before = termios.tcgetattr(0)
    tty.setraw(0)
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


async def _print(session: Session) -> None:
    """Print the output. The buffer keeps a slow reader from blocking the program too early."""
    queue: asyncio.Queue[tuple[int, bytes] | None] = asyncio.Queue(_BACKLOG)
    writing = asyncio.create_task(_write_queue(queue))
    try:
        async for chunk in session.output():
            if writing.done():
                break
            await queue.put(chunk)
        await queue.put(None)
        await writing
    finally:
        await cancel_and_wait(writing)


async def _write_queue(queue: asyncio.Queue[tuple[int, bytes] | None]) -> None:
    while chunk := await queue.get():
        channel, data = chunk
        await asyncio.to_thread(_write_all, _DESCRIPTORS[channel], data)


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


async def _forward_size(session: Session) -> None:
    changed = asyncio.Event()
    changed.set()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGWINCH, changed.set)
    try:
        while True:
            await changed.wait()
            changed.clear()
            columns, lines = os.get_terminal_size(0)
            await session.resize(StreamTerminalSize(columns, lines))
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)


async def _forward_stdin(session: Session, detach_keys: bytes, detached: asyncio.Event) -> None:
    """Forward stdin. The reader thread blocks in read() and ends with the process."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[bytes] = asyncio.Queue(4)

    def read() -> None:
        with contextlib.suppress(RuntimeError, OSError):
            while True:
                data = os.read(0, CHUNK)
                asyncio.run_coroutine_threadsafe(queue.put(data), loop).result()
                if not data:
                    return

    threading.Thread(target=read, daemon=True).start()
    before = b""
    while data := await queue.get():
        if detach_keys and detach_keys in before + data:
            detached.set()
            return
        before = data[-1:]
        await session.write(data)
    await session.close_stdin()


STOP_SECONDS = 10
DETACHED = 0
_FAILED = 125
_EXIT_CODES = {PROGRAM_NOT_EXECUTABLE: 126, PROGRAM_NOT_FOUND: 127}


async def run_in_foreground(
    client: CriClient,
    container: str,
    *,
    stdin: bool,
    terminal: bool,
    start: Callable[[], Awaitable[object]] | None = None,
) -> int:
    """Attach, call `start` (so that no output is lost), and return the exit code."""
    request = api.AttachRequest(
        container_id=container, stdin=stdin, stdout=True, stderr=not terminal, tty=terminal
    )
    url = (await client.call("Attach", request)).url
    async with open_session(url) as session:
        ending = asyncio.create_task(exit_code(client, container))
        try:
            async with _stop_on_interrupt(client, container):
                if start:
                    await start()
                if not await attach_terminal(session, stdin=stdin, terminal=terminal):
                    return DETACHED
                session.exit_code  # noqa: B018 - raises if the session failed
                return await ending
        finally:
            await cancel_and_wait(ending)


@asynccontextmanager
async def _stop_on_interrupt(client: CriClient, container: str) -> AsyncIterator[None]:
    """Stop the container on Ctrl-C with a grace period; kill it on the second Ctrl-C."""
    loop = asyncio.get_running_loop()
    stops: list[asyncio.Task[object]] = []

    def stop() -> None:
        grace = 0 if stops else STOP_SECONDS
        request = api.StopContainerRequest(container_id=container, timeout=grace)
        stops.append(asyncio.create_task(client.call("StopContainer", request)))

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
        await cancel_and_wait(*stops)


@contextmanager
def docker_exit_codes() -> Iterator[None]:
    """Exit as docker does: 125 if winpod failed, 126 or 127 if the program cannot be started."""
    try:
        yield
    except WinpodError as error:
        print(f"winpod: {error}", file=sys.stderr)
        raise typer.Exit(_EXIT_CODES.get(error.reason, _FAILED)) from None


def to_shell_exit_code(code: int) -> int:
    """Reduce a 32-bit exit code to its lowest 8 bits, but never a failure to 0."""
    return (code & 0xFF or 1) if code else 0
