"""A container's own program in the foreground: its streams here, its end, and how to stop it."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import typer

from winpod.cli.containers import exit_code
from winpod.cli.terminal import carry
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import Client
from winpod.cri.streaming.client import open_session
from winpod.windows.errors import WinpodError

STOP_SECONDS = 10
DETACHED = 0
_FAILED, _CANNOT_RUN, _NO_SUCH_PROGRAM = 125, 126, 127


async def in_foreground(
    client: Client,
    container: str,
    *,
    stdin: bool,
    terminal: bool,
    start: Callable[[], Awaitable[object]] | None = None,
) -> int:
    """The program's exit code. With `start`, nothing that it writes from its first byte is lost."""
    request = api.AttachRequest(
        container_id=container, stdin=stdin, stdout=True, stderr=not terminal, tty=terminal
    )
    url = (await client.call("Attach", request)).url
    async with open_session(url) as session:
        ending = asyncio.create_task(exit_code(client, container))
        try:
            with _stopping(client, container):
                if start:
                    await start()
                if not await carry(session, stdin=stdin, terminal=terminal):
                    return DETACHED
                session.exit_code  # noqa: B018 - raises where the session failed
                return await ending
        finally:
            ending.cancel()


@contextmanager
def _stopping(client: Client, container: str) -> Iterator[None]:
    """Ctrl-C asks the program to stop and kills it after a while; again, at once."""
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
        for task in stops:
            task.cancel()


@contextmanager
def failures_as_docker_tells_them() -> Iterator[None]:
    """125 if it is winpod's or the machine's, 126 or 127 if the program's."""
    try:
        yield
    except WinpodError as error:
        print(f"winpod: {error}", file=sys.stderr)
        raise typer.Exit(_code_of(str(error))) from None


def _code_of(sentence: str) -> int:
    if "cannot find the file" in sentence or "cannot find the path" in sentence:
        return _NO_SUCH_PROGRAM
    return _CANNOT_RUN if "CreateProcess" in sentence else _FAILED


def shell_code(code: int) -> int:
    """A code of 32 bits as a shell takes it: its lowest 8, and never 0 for a failure."""
    return (code & 0xFF or 1) if code else 0
