"""This process's own streams, joined to those of a program in a container.

With a terminal, keys go to the program as they are typed (Ctrl-C too) and its size follows the
window's; Ctrl-P Ctrl-Q lets go of a program and leaves it running.
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
from collections.abc import Iterator
from contextlib import contextmanager

from winpod.cri.streaming.api import CHUNK, Size
from winpod.cri.streaming.client import STDERR, STDOUT, Session
from winpod.windows.errors import InvalidInput

_DESCRIPTORS = {STDOUT: 1, STDERR: 2}
_BACKLOG = 1024
DETACH = b"\x10\x11"


def check_terminal() -> None:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InvalidInput("-t needs a terminal, and this is none.", "Leave -t out.")


async def carry(session: Session, *, stdin: bool, terminal: bool, detachable: bool = True) -> bool:
    """Both ways until the program's output ends; False if the person let go of it first."""
    left = asyncio.Event()
    with _raw() if terminal else contextlib.nullcontext():
        tasks = [asyncio.create_task(_print(session))]
        if terminal:
            tasks.append(asyncio.create_task(_follow_size(session)))
        if stdin:
            keys = DETACH if terminal and detachable else b""
            tasks.append(asyncio.create_task(_feed(session, keys, left)))
        leaving = asyncio.create_task(left.wait())
        try:
            await asyncio.wait((tasks[0], leaving), return_when=asyncio.FIRST_COMPLETED)
            if tasks[0].done():
                tasks[0].result()
            return tasks[0].done()
        finally:
            for task in (*tasks, leaving):
                task.cancel()
            await asyncio.gather(*tasks, leaving, return_exceptions=True)


@contextmanager
def _raw() -> Iterator[None]:
    before = termios.tcgetattr(0)
    tty.setraw(0)
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


async def _print(session: Session) -> None:
    """A slow reader of this process's output holds up the program only after many megabytes."""
    waiting: asyncio.Queue[tuple[int, bytes] | None] = asyncio.Queue(_BACKLOG)
    writing = asyncio.create_task(_write_out(waiting))
    try:
        async for piece in session.output():
            if writing.done():
                break
            await waiting.put(piece)
        await waiting.put(None)
        await writing
    finally:
        writing.cancel()


async def _write_out(waiting: asyncio.Queue[tuple[int, bytes] | None]) -> None:
    while piece := await waiting.get():
        channel, data = piece
        await asyncio.to_thread(_write_all, _DESCRIPTORS[channel], data)


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


async def _follow_size(session: Session) -> None:
    changed = asyncio.Event()
    changed.set()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGWINCH, changed.set)
    try:
        while True:
            await changed.wait()
            changed.clear()
            columns, lines = os.get_terminal_size(0)
            await session.resize(Size(columns, lines))
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)


async def _feed(session: Session, keys: bytes, left: asyncio.Event) -> None:
    """Input to the program. The thread that waits for it dies with the process, not before."""
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
        if keys and keys in before + data:
            left.set()
            return
        before = data[-1:]
        await session.write(data)
    await session.end_input()
