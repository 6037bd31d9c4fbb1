r"""One at a time on an instance: a file there says who works on it, and since when.

Whoever comes first makes it, and renews it while the work goes on. What nobody renews counts no
longer after two minutes, by the instance's own clock; what a process of this machine left that has
ended, at once. Who finds that another has taken over stops.
"""

from __future__ import annotations

import asyncio
import getpass
import json
import os
import secrets
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from winpod.instances.errors import Busy
from winpod.instances.remote.ssh import SCRIPT, TEMPORARY, TIDY_SECONDS, Host
from winpod.windows.errors import WinpodError

LOCK = rf"{TEMPORARY}\winpod.lock"
STALE_SECONDS = 120.0
_held: set[str] = set()


@dataclass(frozen=True, slots=True)
class Holder:
    """`machine` and `process` tell whether it still runs, to whoever is on the same machine."""

    id: str
    who: str
    since: str
    machine: str
    process: str

    @property
    def written(self) -> bytes:
        return json.dumps(asdict(self)).encode()


@asynccontextmanager
async def holding(host: Host) -> AsyncIterator[None]:
    """Nobody else works on the instance meanwhile; `Busy` where somebody does."""
    mine, task = _myself(), asyncio.current_task()
    await _take(host, mine)
    _held.add(mine.id)
    taken: list[Busy] = []

    async def renew() -> None:
        while not taken:
            await asyncio.sleep(host.patience.renew)
            if host.is_connected and (other := await _renewed(host, mine)):
                taken.append(other)
                if task:
                    task.cancel()

    renewing = asyncio.create_task(renew())
    try:
        yield
    except asyncio.CancelledError:
        if not taken:
            raise
        if task:
            task.uncancel()
        raise taken[0] from None
    finally:
        renewing.cancel()
        _held.discard(mine.id)
        await _give_back(host, mine)


async def _take(host: Host, mine: Holder) -> None:
    if await host.create(LOCK, mine.written):
        return
    holder = _read(await host.get(LOCK))
    if not await _is_over(host, holder):
        raise _busy(host, holder)
    await host.remove(LOCK)
    if await host.create(LOCK, mine.written):
        await asyncio.sleep(host.patience.settle)
    holder = _read(await host.get(LOCK))
    if holder != mine:
        raise _busy(host, holder)


async def _renewed(host: Host, mine: Holder) -> Busy | None:
    """Who has taken over, if somebody has. A connection that is lost is somebody else's trouble."""
    with suppress(WinpodError):
        found = await host.get(LOCK)
        if found is None:
            await host.create(LOCK, mine.written)
        elif _read(found) == mine:
            await host.rewrite(LOCK, mine.written)
        else:
            return _busy(host, _read(found))
    return None


async def _give_back(host: Host, mine: Holder) -> None:
    """Also when the caller is cancelled; on a host that is lost it stays, and grows old."""

    async def remove() -> None:
        if _read(await host.get(LOCK)) == mine:
            await host.remove(LOCK)

    if host.is_connected:
        removal = asyncio.ensure_future(asyncio.wait_for(remove(), TIDY_SECONDS))
        with suppress(WinpodError, TimeoutError):
            await asyncio.shield(removal)


async def _is_over(host: Host, holder: Holder | None) -> bool:
    if holder and holder.machine == _machine():
        return not _runs(holder)
    written = await host.modified(LOCK)
    return written is None or await _now(host) - written > STALE_SECONDS


def _runs(holder: Holder) -> bool:
    if holder.process == _process(str(os.getpid())):
        return holder.id in _held
    return holder.process == _process(holder.process.partition(" ")[0])


async def _now(host: Host) -> float:
    """By the instance's clock: when a file is written there that is written now."""
    path = rf"{TEMPORARY}\{SCRIPT}{secrets.token_hex(8)}.now"
    await host.put(path, b"")
    try:
        return await host.modified(path) or 0.0
    finally:
        await host.tidy(path)


def _myself() -> Holder:
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return Holder(secrets.token_hex(8), _who(), since, _machine(), _process(str(os.getpid())))


def _who() -> str:
    """In a container a user may have no name."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):
        return socket.gethostname()


def _machine() -> str:
    """This boot of this machine, and whom its numbers of processes are among."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {Path('/proc/self/ns/pid').readlink()}"


def _process(number: str) -> str:
    """With when it began: numbers are given again. Nothing of one that has ended."""
    try:
        stat = Path("/proc", number, "stat").read_text()
    except OSError:
        return ""
    return f"{number} {stat.rpartition(')')[2].split()[19]}"


def _read(found: bytes | None) -> Holder | None:
    """None where nobody can say whose it is, as of one that is just being written."""
    try:
        said = json.loads(found or b"")
        return Holder(**{name: str(said[name]) for name in Holder.__dataclass_fields__})
    except (ValueError, KeyError, TypeError):
        return None


def _busy(host: Host, holder: Holder | None) -> Busy:
    who, since = (holder.who, holder.since) if holder else ("somebody", "a moment ago")
    return Busy(host.name, who, since)
