"""The runtime of a root, found by its clients, who start one in the background where there is none.

A root has one runtime and one host build. A runtime that serves says so in a file; one that was
killed leaves the file behind, so whoever reads it asks at the socket. Two clients that find nobody
start one runtime: the second waits for the first.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from winpod.cri.background import start_in_background
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import Client, RemoteError
from winpod.images.store_lock import FileLock
from winpod.windows.builds import Build, parse_build
from winpod.windows.errors import InvalidInput, PermissionDenied, Unavailable, WinpodError

IDLE_SECONDS = 120
_ANSWER_SECONDS = 60
_END_SECONDS = 60
_LONGEST_SOCKET = 107
_NOBODY = "Nobody serves Windows containers for {}"


def own_directory(root: Path) -> Path:
    return root / "runtime"


def log_directory(root: Path) -> Path:
    """Where the containers of `winpod run` have their logs."""
    return own_directory(root) / "logs"


@dataclass(frozen=True, slots=True)
class Serving:
    """What a runtime says of itself; `background` tells that a client started it."""

    socket: str
    host: str
    process: int
    background: bool
    emulation: bool = False
    """Whether it was let emulate processors, where there is no KVM."""

    def write(self, root: Path) -> None:
        file = _file(root)
        new = file.with_suffix(f".{self.process}")
        new.write_text(json.dumps(asdict(self)))
        new.replace(file)

    def withdraw(self, root: Path) -> None:
        if read_serving(root) == self:
            _file(root).unlink(missing_ok=True)
            Path(self.socket).unlink(missing_ok=True)

    @property
    def build(self) -> Build:
        return parse_build(self.host)


def read_serving(root: Path) -> Serving | None:
    try:
        return Serving(**json.loads(_file(root).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _file(root: Path) -> Path:
    return own_directory(root) / "serving.json"


class OtherHostBuild(WinpodError):
    code = "FAILED_PRECONDITION"

    def __init__(self, root: Path, serving: Serving, wanted: Build) -> None:
        super().__init__(
            f"The runtime of {root} is {serving.build.describe()} and runs containers; "
            f"{wanted.describe()} was asked for, and a runtime has one host build.",
            f"Use --host-build {serving.host}, or another --root.",
        )


class NoEmulation(WinpodError):
    code = "FAILED_PRECONDITION"

    def __init__(self, root: Path) -> None:
        super().__init__(
            f"The runtime of {root} was started without leave to emulate, and runs containers.",
            "End them first (winpod ps), or use another --root.",
        )


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a client needs of a runtime. One that somebody set up stays what it is: a client that
    insists on its host build gets an error, and whether it emulates is its own affair."""

    host: Build | None = None
    insist: bool = False
    emulation: bool = False

    def is_met_by(self, serving: Serving) -> bool:
        is_of_build = self.host is None or serving.build == self.host.base
        if not serving.background:
            return is_of_build or not self.insist
        return is_of_build and (serving.emulation or not self.emulation)

    def refusal(self, root: Path, serving: Serving) -> WinpodError:
        if self.host and serving.build != self.host.base:
            return OtherHostBuild(root, serving, self.host)
        return NoEmulation(root)


ANY = Wanted()


@dataclass(frozen=True, slots=True)
class Found:
    client: Client
    serving: Serving


@asynccontextmanager
async def runtime_of(root: Path, wanted: Wanted = ANY) -> AsyncIterator[Found]:
    """The runtime of this root, started if need be."""
    found = await _answering(root)
    if found is None or not wanted.is_met_by(found.serving):
        if found:
            await found.client.close()
        found = await _started(root, wanted)
    try:
        yield found
    finally:
        await found.client.close()


async def _answering(root: Path) -> Found | None:
    serving = read_serving(root)
    if serving is None:
        return None
    client = Client(f"unix:{serving.socket}")
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            await _until_ready(client)
    except (Unavailable, TimeoutError):
        await client.close()
        return None
    return Found(client, serving)


async def _until_ready(client: Client) -> None:
    """Until it answers; one that is just starting says that it is not ready yet."""
    while True:
        try:
            await client.call("Version", api.VersionRequest())
        except RemoteError as error:
            if error.status.name != Unavailable.code:
                raise
        else:
            return
        await asyncio.sleep(0.05)


async def _started(root: Path, wanted: Wanted) -> Found:
    try:
        own_directory(root).mkdir(parents=True, exist_ok=True)
        lock = await FileLock.wait_for(own_directory(root) / "starting")
    except PermissionError:
        what = "The runtime of {} is another user's" if read_serving(root) else _NOBODY
        raise PermissionDenied(
            f"{what.format(root)}, and this user may not write there.",
            "Use sudo, or have root start `winpod runtime`.",
        ) from None
    try:
        found = await _answering(root)
        if found and wanted.is_met_by(found.serving):
            return found
        if found:
            await _make_way(root, found, wanted)
        return await _start(root, wanted.host)
    finally:
        lock.release()


async def end_idle(root: Path) -> None:
    """What waits in the background for commands to come has ended, unless containers run."""
    found = await _answering(root)
    if found and await _is_ending(found):
        await _until_ended(root)


async def _make_way(root: Path, found: Found, wanted: Wanted) -> None:
    if not await _is_ending(found):
        raise wanted.refusal(root, found.serving)
    await _until_ended(root)


async def _until_ended(root: Path) -> None:
    """What was told to end has, as far as it does so in time."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_END_SECONDS):
            (await FileLock.wait_for(own_directory(root) / "lock")).release()


async def _is_ending(found: Found) -> bool:
    """Whether it was told to: a runtime of the background that has nothing running."""
    running = api.ContainerFilter(state=api.ContainerStateValue(state=api.CONTAINER_RUNNING))
    listed = await found.client.call("ListContainers", api.ListContainersRequest(filter=running))
    await found.client.close()
    if listed.containers or not found.serving.background:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(found.serving.process, signal.SIGTERM)
    return True


async def _start(root: Path, host: Build | None) -> Found:
    own = own_directory(root)
    socket, log = own / "run.sock", own / "runtime.log"
    if len(os.fsencode(socket)) > _LONGEST_SOCKET:
        raise InvalidInput(
            f"{socket} is too long a path for a socket.", "Use a shorter --root, or a link to it."
        )
    arguments = ["runtime", "--root", str(root), "--socket", str(socket)]
    arguments += ["--idle-exit", str(IDLE_SECONDS)]
    arguments += ["--host-build", str(host)] if host else []

    async def answering(process: int) -> Found | None:
        serving = read_serving(root)
        return await _answering(root) if serving and serving.process == process else None

    return await start_in_background(arguments, log, answering)
