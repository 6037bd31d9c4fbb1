"""The client's end: the process that plays a root, found, or started where there is none."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import ClientError, ClientSession, ClientTimeout, UnixConnector

from winpod.cri.background import start_in_background
from winpod.cri.config import Config
from winpod.cri.settings import Compute
from winpod.images.store_lock import FileLock
from winpod.node.play.objects import Document
from winpod.node.play.server import play_directory, socket_path
from winpod.windows.errors import InvalidInput, PermissionDenied, Unavailable, WinpodError

_LONGEST_SOCKET = 90
_ANSWER_SECONDS = 600.0


class Refused(WinpodError):
    """What the playing process says no to, in its own words."""

    def __init__(self, told: Document) -> None:
        super().__init__(told.get("sentence", "It was refused."), told.get("advice", ""))


class PlayClient:
    def __init__(self, root: Path) -> None:
        self._http = ClientSession(
            connector=UnixConnector(str(socket_path(root))),
            timeout=ClientTimeout(total=_ANSWER_SECONDS),
        )

    async def close(self) -> None:
        await self._http.close()

    async def get(self, what: str, **query: str) -> Any:
        return await self._ask("GET", what, params=query)

    async def post(self, what: str, body: Document) -> Any:
        return await self._ask("POST", what, json=body)

    async def _ask(self, method: str, what: str, **more: Any) -> Any:
        try:
            async with self._http.request(method, f"http://play/{what}", **more) as response:
                told = await response.json() if response.content_type.endswith("json") else {}
                if response.status >= 400:
                    raise Refused(told)
                return told
        except (ClientError, OSError) as error:
            raise Unavailable(f"The process that plays does not answer: {error}.") from None


async def answering(root: Path) -> PlayClient | None:
    """The client of a process that is there already."""
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
async def play_of(
    root: Path, config: Config, *, emulation: bool = False
) -> AsyncIterator[PlayClient]:
    """With `emulation`, a process that may not emulate makes way for one that may."""
    client = await answering(root)
    if client and emulation:
        client = await _unless_without(client, root)
    client = client or await _started(root, config)
    try:
        yield client
    finally:
        await client.close()


async def _unless_without(client: PlayClient, root: Path) -> PlayClient | None:
    """The client of a process with leave to emulate; one without ends, and its pods go on."""
    process = await client.get("process")
    if process.get("emulation"):
        return client
    await client.close()
    with contextlib.suppress(ProcessLookupError):
        os.kill(process["id"], signal.SIGTERM)
    await _until_free(play_directory(root) / "lock")
    return None


async def _started(root: Path, config: Config) -> PlayClient:
    simulated = config.runtime.compute is Compute.SIMULATED
    if os.geteuid() != 0 and not simulated:
        if socket_path(root).exists():
            raise PermissionDenied(f"What is played in {root} is another user's.", "Use sudo.")
        raise PermissionDenied(
            f"Nobody runs pods for {root}, and only root can start it.", "Use sudo."
        )
    folder, socket = play_directory(root), socket_path(root)
    if len(os.fsencode(socket)) > _LONGEST_SOCKET:
        raise InvalidInput(
            f"{socket} is too long a path for a socket.", "Use a shorter --root, or a link to it."
        )
    folder.mkdir(parents=True, exist_ok=True)
    lock = await FileLock.wait_for(folder / "starting")
    try:
        if found := await answering(root):
            return found
        await _until_free(folder / "lock")
        return await start_in_background(
            ["play", "--serve", "--root", str(root)],
            folder / "play.log",
            lambda _: answering(root),
        )
    finally:
        lock.release()


async def _until_free(file: Path) -> None:
    """One that is just ending has to have ended."""
    for _ in range(400):
        if lock := FileLock.try_take(file):
            lock.release()
            return
        await asyncio.sleep(0.05)
