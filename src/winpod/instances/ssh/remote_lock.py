"""Lock file on an instance, so that only one process changes it at a time.

The holder creates the file and renews it while it works. A lock that is not renewed for two
minutes, by the instance's clock, is stale; one of a process of this machine that has exited is
stale at once. A holder that finds another one in its file stops.
"""

from __future__ import annotations

import asyncio
import getpass
import json
import os
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from winpod.clock import format_timestamp, utc_now
from winpod.concurrency import run_to_completion
from winpod.errors import WinpodError
from winpod.instances.errors import InstanceBusy
from winpod.instances.ssh.host import CLEANUP_SECONDS, SCRIPT, TEMPORARY, SshHost

LOCK = rf"{TEMPORARY}\winpod.lock"
STALE_SECONDS = 120.0
_held: set[str] = set()


@dataclass(frozen=True, slots=True)
class LockHolder:
    """The content of the lock.

    `machine` and `process` show on the same machine whether the holder still runs.
    """

    id: str
    who: str
    since: str
    machine: str
    process: str

    @property
    def serialized(self) -> bytes:
        return json.dumps(asdict(self)).encode()


@asynccontextmanager
async def remote_lock(host: SshHost) -> AsyncIterator[None]:
    """Hold the lock of an instance; raise InstanceBusy if another process holds it."""
    own, task = _own_holder(), asyncio.current_task()
    await _acquire(host, own)
    _held.add(own.id)
    takeover: list[InstanceBusy] = []

    async def renew() -> None:
        while not takeover:
            await asyncio.sleep(host.timeouts.renew)
            if host.is_connected and (other := await _renew(host, own)):
                takeover.append(other)
                if task:
                    task.cancel()

    renewing = asyncio.create_task(renew())
    try:
        yield
    except asyncio.CancelledError:
        if not takeover:
            raise
        if task:
            task.uncancel()
        raise takeover[0] from None
    finally:
        renewing.cancel()
        _held.discard(own.id)
        await _release(host, own)


async def _acquire(host: SshHost, own: LockHolder) -> None:
    if await host.create(LOCK, own.serialized):
        return
    holder = _read(await host.get(LOCK))
    if not await _is_stale(host, holder):
        raise _busy(host, holder)
    await host.remove(LOCK)
    if await host.create(LOCK, own.serialized):
        await asyncio.sleep(host.timeouts.settle)
    holder = _read(await host.get(LOCK))
    if holder != own:
        raise _busy(host, holder)


async def _renew(host: SshHost, own: LockHolder) -> InstanceBusy | None:
    """Renew the lock; return the error if another process has taken it over.

    Connection errors are ignored.
    """
    with suppress(WinpodError):
        content = await host.get(LOCK)
        if content is None:
            await host.create(LOCK, own.serialized)
        elif _read(content) == own:
            await host.overwrite(LOCK, own.serialized)
        else:
            return _busy(host, _read(content))
    return None


async def _release(host: SshHost, own: LockHolder) -> None:
    """Remove the lock, also if the caller is cancelled; without a connection it becomes stale."""

    async def remove() -> None:
        if _read(await host.get(LOCK)) == own:
            await host.remove(LOCK)

    if host.is_connected:
        with suppress(WinpodError, TimeoutError):
            await run_to_completion(asyncio.wait_for(remove(), CLEANUP_SECONDS))


async def _is_stale(host: SshHost, holder: LockHolder | None) -> bool:
    if holder and holder.machine == _machine():
        return not _is_running(holder)
    written = await host.modified(LOCK)
    return written is None or await _remote_time(host) - written > STALE_SECONDS


def _is_running(holder: LockHolder) -> bool:
    if holder.process == _process(str(os.getpid())):
        return holder.id in _held
    return holder.process == _process(holder.process.partition(" ")[0])


async def _remote_time(host: SshHost) -> float:
    """Return the time of the instance's clock, as the modification time of a new file."""
    path = rf"{TEMPORARY}\{SCRIPT}{secrets.token_hex(8)}.now"
    await host.put(path, b"")
    try:
        return await host.modified(path) or 0.0
    finally:
        await host.remove_quietly(path)


def _own_holder() -> LockHolder:
    since = format_timestamp(utc_now())
    return LockHolder(secrets.token_hex(8), _who(), since, _machine(), _process(str(os.getpid())))


def _who() -> str:
    """Return user and host; in a container the user may have no name."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):
        return socket.gethostname()


def _machine() -> str:
    """Return the boot ID and PID namespace of this machine."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {Path('/proc/self/ns/pid').readlink()}"


def _process(number: str) -> str:
    """Return PID and start time, as PIDs are reused; empty if it has exited."""
    try:
        stat = Path("/proc", number, "stat").read_text()
    except OSError:
        return ""
    return f"{number} {stat.rpartition(')')[2].split()[19]}"


def _read(content: bytes | None) -> LockHolder | None:
    """Parse the lock; None if it cannot be parsed, e.g. because it is just being written."""
    try:
        document = json.loads(content or b"")
        return LockHolder(**{name: str(document[name]) for name in LockHolder.__dataclass_fields__})
    except (ValueError, KeyError, TypeError):
        return None


def _busy(host: SshHost, holder: LockHolder | None) -> InstanceBusy:
    who, since = (holder.who, holder.since) if holder else ("an unknown process", "a moment ago")
    return InstanceBusy(host.name, who, since)
