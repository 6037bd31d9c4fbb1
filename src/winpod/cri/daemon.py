"""Connecting to the runtime daemon of a root, and starting it in the background if needed.

A root has one runtime with one host build. The runtime writes its socket to serving.json. A killed
runtime leaves the file behind, so clients also check that the socket answers. A lock ensures that
concurrent clients start only one runtime.
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

from winpod.cri.daemonize import start_daemon
from winpod.cri.proto import api_pb2 as api
from winpod.cri.rpc import ConnectionLost, CriClient, NotInitialized, RemoteError
from winpod.errors import InvalidInput, PermissionDenied, Unavailable, WinpodError
from winpod.files import FileLock
from winpod.windows.builds import Build, parse_build

IDLE_SECONDS = 120
_READY_TIMEOUT = 60
_STOP_TIMEOUT = 60
_MAX_SOCKET_PATH = 107
_NOT_RUNNING = "No runtime is running for {}"


def daemon_directory(root: Path) -> Path:
    return root / "runtime"


def log_directory(root: Path) -> Path:
    """Return the directory for the logs of `winpod run`."""
    return daemon_directory(root) / "logs"


@dataclass(frozen=True, slots=True)
class DaemonInfo:
    """Contents of serving.json. `background` is set if a client started the daemon."""

    socket: str
    host: str
    process: int
    background: bool
    emulation: bool = False
    """Whether CPU emulation is allowed where KVM is unavailable."""

    def write(self, root: Path) -> None:
        file = _file(root)
        new = file.with_suffix(f".{self.process}")
        new.write_text(json.dumps(asdict(self)))
        new.replace(file)

    def remove(self, root: Path) -> None:
        if read_daemon_info(root) == self:
            _file(root).unlink(missing_ok=True)
            Path(self.socket).unlink(missing_ok=True)

    @property
    def build(self) -> Build:
        return parse_build(self.host)


def read_daemon_info(root: Path) -> DaemonInfo | None:
    try:
        return DaemonInfo(**json.loads(_file(root).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _file(root: Path) -> Path:
    return daemon_directory(root) / "serving.json"


class HostBuildMismatch(WinpodError):
    code = "FAILED_PRECONDITION"

    def __init__(self, root: Path, info: DaemonInfo, requested: Build) -> None:
        super().__init__(
            f"The runtime of {root} has the host build {info.build.describe()} and running "
            f"containers; {requested.describe()} was requested.",
            f"Use --host-build {info.host}, or another --root.",
        )


class EmulationNotAllowed(WinpodError):
    code = "FAILED_PRECONDITION"

    def __init__(self, root: Path) -> None:
        super().__init__(
            f"The runtime of {root} was started without CPU emulation and has running containers.",
            "Stop them first (winpod ps), or use another --root.",
        )


@dataclass(frozen=True, slots=True)
class DaemonRequirements:
    """Requirements of a client. A runtime that was not started by a client is never replaced:
    with `insist` a different host build is an error, and its emulation setting is accepted."""

    host: Build | None = None
    insist: bool = False
    emulation: bool = False

    def is_met_by(self, info: DaemonInfo) -> bool:
        has_build = self.host is None or info.build == self.host.base
        if not info.background:
            return has_build or not self.insist
        return has_build and (info.emulation or not self.emulation)

    def mismatch_error(self, root: Path, info: DaemonInfo) -> WinpodError:
        if self.host and info.build != self.host.base:
            return HostBuildMismatch(root, info, self.host)
        return EmulationNotAllowed(root)


ANY = DaemonRequirements()


@dataclass(frozen=True, slots=True)
class ConnectedDaemon:
    client: CriClient
    info: DaemonInfo


@asynccontextmanager
async def connect_daemon(
    root: Path, requirements: DaemonRequirements = ANY
) -> AsyncIterator[ConnectedDaemon]:
    """Connect to the runtime of this root, starting it if needed."""
    daemon = await _find_running(root)
    if daemon is None or not requirements.is_met_by(daemon.info):
        if daemon:
            await daemon.client.close()
        daemon = await _start_locked(root, requirements)
    try:
        yield daemon
    finally:
        await daemon.client.close()


async def _find_running(root: Path) -> ConnectedDaemon | None:
    info = read_daemon_info(root)
    if info is None:
        return None
    client = CriClient(f"unix:{info.socket}")
    try:
        async with asyncio.timeout(_READY_TIMEOUT):
            await _wait_ready(client)
    except (Unavailable, TimeoutError):
        await client.close()
        return None
    return ConnectedDaemon(client, info)


async def _wait_ready(client: CriClient) -> None:
    """Wait until the runtime answers and has recovered its state."""
    while True:
        try:
            await client.call("Version", api.VersionRequest())
        except RemoteError as error:
            if error.reason not in (NotInitialized.reason, ConnectionLost.reason):
                raise
        else:
            return
        await asyncio.sleep(0.05)


async def _start_locked(root: Path, requirements: DaemonRequirements) -> ConnectedDaemon:
    try:
        daemon_directory(root).mkdir(parents=True, exist_ok=True)
        lock = await FileLock.acquire_async(daemon_directory(root) / "starting")
    except PermissionError:
        reason = (
            "The runtime of {} belongs to another user" if read_daemon_info(root) else _NOT_RUNNING
        )
        raise PermissionDenied(
            f"{reason.format(root)}, and the directory is not writable by this user.",
            "Use sudo, or start `winpod runtime` as root.",
        ) from None
    try:
        daemon = await _find_running(root)
        if daemon and requirements.is_met_by(daemon.info):
            return daemon
        if daemon:
            await _replace(root, daemon, requirements)
        return await _start(root, requirements.host)
    finally:
        lock.release()


async def stop_idle_daemon(root: Path) -> None:
    """Stop the background daemon and wait for it, unless containers are running."""
    daemon = await _find_running(root)
    if daemon and await _stop_if_idle(daemon):
        await _wait_stopped(root)


async def _replace(root: Path, daemon: ConnectedDaemon, requirements: DaemonRequirements) -> None:
    if not await _stop_if_idle(daemon):
        raise requirements.mismatch_error(root, daemon.info)
    await _wait_stopped(root)


async def _wait_stopped(root: Path) -> None:
    """Wait for the daemon to release its lock, up to the timeout."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_STOP_TIMEOUT):
            (await FileLock.acquire_async(daemon_directory(root) / "lock")).release()


async def _stop_if_idle(daemon: ConnectedDaemon) -> bool:
    """Terminate a background daemon without running containers. Returns whether it was."""
    running = api.ContainerFilter(state=api.ContainerStateValue(state=api.CONTAINER_RUNNING))
    listed = await daemon.client.call("ListContainers", api.ListContainersRequest(filter=running))
    await daemon.client.close()
    if listed.containers or not daemon.info.background:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(daemon.info.process, signal.SIGTERM)
    return True


async def _start(root: Path, host: Build | None) -> ConnectedDaemon:
    directory = daemon_directory(root)
    socket, log = directory / "run.sock", directory / "runtime.log"
    if len(os.fsencode(socket)) > _MAX_SOCKET_PATH:
        raise InvalidInput(
            f"{socket} is too long for a socket path.", "Use a shorter --root, or a symlink to it."
        )
    arguments = ["runtime", "--root", str(root), "--socket", str(socket)]
    arguments += ["--idle-exit", str(IDLE_SECONDS)]
    arguments += ["--host-build", str(host)] if host else []

    async def find(process: int) -> ConnectedDaemon | None:
        info = read_daemon_info(root)
        return await _find_running(root) if info and info.process == process else None

    return await start_daemon(arguments, log, find)
