"""Client of the `winpod play` daemon; starts the daemon if none serves the root."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import ClientError, ClientResponse, ClientSession, ClientTimeout, UnixConnector

from winpod.config import ComputeKind, Config
from winpod.cri.daemonize import start_daemon
from winpod.errors import InvalidInput, PermissionDenied, Unavailable, WinpodError
from winpod.files import FileLock
from winpod.play.apiserver.objects import Document
from winpod.play.server import play_directory, socket_path

_MAX_SOCKET_PATH = 90
_REQUEST_TIMEOUT_SECONDS = 600.0
_EXIT_SECONDS = 20.0
_MAX_LINE_BYTES = 64 * 1024 * 1024


class PlayRequestFailed(WinpodError):
    """An error returned by the play daemon, with its reason, message and hint."""

    def __init__(self, reply: Document) -> None:
        super().__init__(
            reply.get("message", "The request failed."),
            reply.get("hint", ""),
            reason=reply.get("reason", ""),
        )


class PlayClient:
    def __init__(self, root: Path) -> None:
        self._http = ClientSession(
            connector=UnixConnector(str(socket_path(root))),
            timeout=ClientTimeout(total=_REQUEST_TIMEOUT_SECONDS),
        )

    async def close(self) -> None:
        await self._http.close()

    async def get(self, path: str, **query: str) -> Any:
        return await self._request("GET", path, params=query)

    async def post(self, path: str, body: Document) -> Any:
        return await self._request("POST", path, json=body)

    async def apply(self, body: Document, on_progress: Callable[[Document], None]) -> Document:
        """Apply objects and return the result; lines before it go to `on_progress`.

        The daemon cancels the apply if this client disconnects.
        """
        try:
            async with self._http.post(
                "http://play/apply",
                json=body,
                timeout=ClientTimeout(total=None),
                read_bufsize=_MAX_LINE_BYTES,
            ) as response:
                if response.status >= 400:
                    raise PlayRequestFailed(await _read_json(response))
                async for text in response.content:
                    line: Document = json.loads(text)
                    match line.get("type"):
                        case "error":
                            raise PlayRequestFailed(line)
                        case "applied" | None:  # a daemon of an older version sends only this line
                            return line
                        case _:
                            on_progress(line)
        except (ClientError, OSError) as error:
            raise Unavailable(f"The play daemon does not answer: {error}.") from None
        raise Unavailable("The play daemon exited before it applied the objects.")

    async def _request(self, method: str, path: str, **options: Any) -> Any:
        try:
            async with self._http.request(method, f"http://play/{path}", **options) as response:
                reply = await _read_json(response)
                if response.status >= 400:
                    raise PlayRequestFailed(reply)
                return reply
        except (ClientError, OSError) as error:
            raise Unavailable(f"The play daemon does not answer: {error}.") from None


async def _read_json(response: ClientResponse) -> Any:
    return await response.json() if response.content_type.endswith("json") else {}


async def connect_existing(root: Path) -> PlayClient | None:
    """Connect to a running daemon; None if there is none."""
    if not socket_path(root).exists():
        return None
    client = PlayClient(root)
    try:
        await client.get("process")
    except WinpodError:
        await client.close()
        return None
    except BaseException:
        await client.close()
        raise
    return client


@asynccontextmanager
async def connect_or_start(
    root: Path, config: Config, *, emulation: bool = False, arguments: Sequence[str] = ()
) -> AsyncIterator[PlayClient]:
    """Connect to the daemon, starting it if necessary.

    With `emulation`, a daemon that may not emulate is replaced by one that may. A new daemon gets
    the additional command line `arguments`.
    """
    client = await connect_existing(root)
    if client and emulation:
        client = await _stop_without_emulation(client, root)
    client = client or await _start(root, config, arguments)
    try:
        yield client
    finally:
        await client.close()


async def _stop_without_emulation(client: PlayClient, root: Path) -> PlayClient | None:
    """Return the client if its daemon allows emulation; otherwise stop the daemon.

    Pods keep running.
    """
    process = await client.get("process")
    if process.get("emulation"):
        return client
    await client.close()
    with contextlib.suppress(ProcessLookupError):
        os.kill(process["id"], signal.SIGTERM)
    await _wait_unlocked(root)
    return None


async def _start(root: Path, config: Config, arguments: Sequence[str]) -> PlayClient:
    simulated = config.runtime.compute is ComputeKind.SIMULATED
    if os.geteuid() != 0 and not simulated:
        if socket_path(root).exists():
            raise PermissionDenied(
                f"The play daemon of {root} belongs to another user.", "Use sudo."
            )
        raise PermissionDenied(
            f"No play daemon runs for {root}, and only root can start it.", "Use sudo."
        )
    directory, socket = play_directory(root), socket_path(root)
    if len(os.fsencode(socket)) > _MAX_SOCKET_PATH:
        raise InvalidInput(
            f"The socket path {socket} is too long.", "Use a shorter --root, or a symbolic link."
        )
    directory.mkdir(parents=True, exist_ok=True)
    with await FileLock.acquire_async(directory / "starting"):
        if client := await connect_existing(root):
            return client
        await _wait_unlocked(root)
        return await start_daemon(
            ["play", "--serve", "--root", str(root), *arguments],
            directory / "play.log",
            lambda _: connect_existing(root),
        )


async def _wait_unlocked(root: Path) -> None:
    """Wait until a daemon that is shutting down has released its lock."""
    directory = play_directory(root)
    try:
        async with asyncio.timeout(_EXIT_SECONDS):
            lock = await FileLock.acquire_async(directory / "lock")
    except TimeoutError:
        raise Unavailable(
            f"The play daemon of {root} does not answer and did not exit in {_EXIT_SECONDS:g} s.",
            f"See {directory / 'play.log'}, and try again.",
        ) from None
    lock.release()
