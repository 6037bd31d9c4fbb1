"""Shells: booted ahead of time, handed over whole, and ended with everything in them.

A shell is a directory: its runtime's bundle, the prefix of its Windows, the socket of its agent and
its disk. Whoever has the directory has the shell, and hands it over by renaming it, so a crash
leaves it with one owner. Those that wait are in `warm`, and are ended at the next start.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import secrets
import shutil
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from winpod.compute import cgroups, disks
from winpod.compute.agent import Agent
from winpod.compute.errors import ShellFailed
from winpod.compute.machine import has_user_namespaces, within_reach
from winpod.compute.native import with_socket
from winpod.compute.processes import read_pid, to_its_end, until_gone, wait_for_orphans
from winpod.compute.shell import IDS, Shell, shell_spec
from winpod.images.base import Base, prepare_prefix
from winpod.windows.builds import Build
from winpod.windows.errors import WinpodError
from winpod.windows.users import ADMINISTRATOR, User

BOOT_SECONDS = 60.0
QUIET_SECONDS = 1.0
AT_ONCE = 2
_FIRST_RANGE, _LAST_RANGE = 0x6000, 0x7FFF
_ORPHANS = ("wproxy listen", "runc", "mkfs.ext4", "mount")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Room:
    """The directory of a shell, and what is in it."""

    folder: Path

    @property
    def prefix(self) -> Path:
        return self.folder / "prefix"

    @property
    def agent(self) -> Agent:
        return Agent(self.folder / "run/agent.sock")

    @property
    def id(self) -> str:
        """Empty for one that was never begun."""
        file = self.folder / "id"
        return file.read_text() if file.exists() else ""

    @property
    def first_id(self) -> int:
        """0 for one that was never begun, or has no user namespace."""
        file = self.folder / "first_id"
        return int(file.read_text() or 0) if file.exists() else 0

    @property
    def pid(self) -> int | None:
        """Of the shell's first process, while it lives."""
        pid = read_pid(self.folder / "shell.pid")
        return pid if pid and self.id and _is_shell(pid, self.id) else None

    @property
    def is_whole(self) -> bool:
        """Whether it lives, and nothing of it was still to be made when its maker died."""
        return (self.folder / "whole").exists() and self.pid is not None

    def mark_whole(self) -> None:
        (self.folder / "whole").touch()


class Shells:
    """`warm` is how many wait ahead of time, for the administrator and with the usual disk;
    `with_users` tells that each has users of its own, who are nobody on the machine.

    A boot keeps a processor busy most of its time, so two are under way for each processor: of
    many that are asked for at once, the first are there early, and none is so slow that it fails.
    """

    def __init__(self, root: Path, base: Base, host: Build, warm: int = 0) -> None:
        self.base = base
        self._root = root
        self._host = host
        self.wanted = warm
        self._ready: list[Room] = []
        self._filling: asyncio.Task[None] | None = None
        self._taken_at = 0.0
        self._turns = asyncio.Semaphore(AT_ONCE * len(os.sched_getaffinity(0)))
        self._booting: dict[str, asyncio.Task[bool]] = {}
        wait_for_orphans(root, _ORPHANS, BOOT_SECONDS)
        self.with_users = has_user_namespaces(root)
        self._rootfs, self._within_reach = base.rootfs, list[str]()
        if self.with_users:
            self._rootfs, self._within_reach = within_reach(base.rootfs)
        self._ranges = {room.first_id // IDS for room in self._rooms()}

    def _rooms(self) -> list[Room]:
        found = (self._root.glob(f"{kind}/*/shell") for kind in ("containers", "sandboxes"))
        return [Room(folder) for each in found for folder in each]

    @property
    def waiting(self) -> Sequence[Room]:
        return self._ready

    async def start(self) -> None:
        """End what an earlier process had waiting, and what lost its directory; begin anew."""
        for folder in (self._root / "warm").glob("*"):
            await self.end(folder)
        known = {room.id for room in self._rooms()}
        for state in (self._root / "runc").glob("*"):
            if state.name not in known:
                await asyncio.to_thread(cgroups.remove_group, state.name)
                await asyncio.to_thread(shutil.rmtree, state, ignore_errors=True)
        self.refill()

    async def stop(self) -> None:
        if self._filling:
            self._filling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._filling
        for folder in (self._root / "warm").glob("*"):
            await self.end(folder)

    def take(self, folder: Path) -> Room | None:
        """One that waits, if one does; it is in the given directory from now on."""
        while self._ready:
            room = self._ready.pop(0)
            if room.pid:
                self._taken_at = time.monotonic()
                folder.parent.mkdir(parents=True, exist_ok=True)
                room.folder.rename(folder)
                return Room(folder)
        return None

    def refill(self) -> None:
        """In the background, one after the other, and not while pods begin."""
        if len(self._ready) < self.wanted and (self._filling is None or self._filling.done()):
            self._filling = asyncio.create_task(self._fill())

    async def _fill(self) -> None:
        while len(self._ready) < self.wanted:
            if (rest := self._taken_at + QUIET_SECONDS - time.monotonic()) > 0:
                await asyncio.sleep(rest)
                continue
            folder = self._root / "warm" / secrets.token_hex(4)
            try:
                self._ready.append(await self.boot(folder))
            except (WinpodError, OSError) as error:
                _log.warning("a shell could not be booted ahead of time: %s", error)
                return

    async def boot(self, folder: Path) -> Room:
        """A shell in this directory that is up; where that fails, nothing is left."""
        room = await self.begin(folder)
        try:
            await self.until_up(room)
        except BaseException:
            await to_its_end(self.end(folder))
            raise
        return room

    async def begin(
        self,
        folder: Path,
        user: User = ADMINISTRATOR,
        netns: Path | None = None,
        disk_bytes: int | None = None,
    ) -> Room:
        """A shell that can be furnished and asked for programs, while its Windows still boots.

        Its disk has the usual size, or what the machine has left of it, where none is given.
        Where that fails, nothing is left.
        """
        await self._turns.acquire()
        try:
            room = await to_its_end(self._make(folder, user, netns, disk_bytes))
        except BaseException:
            self._turns.release()
            await to_its_end(self.end(folder))
            raise
        id_ = room.id
        self._booting[id_] = asyncio.create_task(_answer_of(room))
        self._booting[id_].add_done_callback(lambda _: self._turns.release())
        self._booting[id_].add_done_callback(lambda _: self._booting.pop(id_))
        return room

    async def until_up(self, room: Room) -> None:
        """Until its Windows takes programs."""
        booting = self._booting.get(room.id)
        answers = await (asyncio.shield(booting) if booting else _answer_of(room))
        if not answers:
            raise ShellFailed(_tail(room.folder / "shell.log"))

    async def give_disk(self, room: Room, disk_bytes: int | None) -> None:
        """One that waited has a disk from a time when more may have been left, and nobody known.

        Nothing is on it, so one that does not fit is made anew.
        """
        if not disks.fits(room.folder, disk_bytes):
            await to_its_end(asyncio.to_thread(_replace_disk, room, disk_bytes))

    async def _make(
        self, folder: Path, user: User, netns: Path | None, disk_bytes: int | None
    ) -> Room:
        room = await asyncio.to_thread(self._prepare, folder, user, netns)
        size = disk_bytes or disks.size_that_fits(folder)
        disk = asyncio.to_thread(disks.make_disk, folder, size, room.first_id)
        outcomes = await asyncio.gather(self._run(room), disk, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        room.mark_whole()
        return room

    def _prepare(self, folder: Path, user: User, netns: Path | None) -> Room:
        (folder / "run").mkdir(parents=True)
        first_id = self._claim_range() * IDS if self.with_users else 0
        id_ = f"winpod-{secrets.token_hex(8)}"
        (folder / "id").write_text(id_)
        (folder / "first_id").write_text(str(first_id))
        room = Room(folder)
        prepare_prefix(self.base, self._host, (), room.prefix)
        (room.prefix / "resolv.conf").touch()
        owner = first_id + user.uid
        for path in (room.prefix, *room.prefix.iterdir()):
            os.chown(path, owner, owner, follow_symlinks=False)
        shell = Shell(
            id=id_,
            rootfs=self._rootfs,
            prefix=room.prefix,
            drive_c=self.base.drive_c,
            user=user,
            first_id=first_id,
            netns=netns,
            with_32bit=self.base.with_32bit,
        )
        (folder / "config.json").write_text(json.dumps(shell_spec(shell)))
        return room

    def _claim_range(self) -> int:
        """Users of the machine that no other shell has, of another runtime neither, most likely."""
        free = [n for n in range(_FIRST_RANGE, _LAST_RANGE) if n not in self._ranges]
        number = secrets.choice(free)
        self._ranges.add(number)
        return number

    async def _run(self, room: Room) -> None:
        folder = room.folder
        runc = self._runc("run", "--detach", "--preserve-fds", "1", "--bundle", str(folder))
        runc += ["--pid-file", str(folder / "shell.pid"), room.id]
        log = folder / "shell.log"
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *with_socket(folder / "run/agent.sock", [*self._within_reach, *runc]),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
            code = await process.wait()
        if code:
            raise ShellFailed(_tail(log))

    async def kill(self, folder: Path) -> None:
        """End all that runs in it, and return when it has."""
        if pid := Room(folder).pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            await until_gone(pid)

    async def end(self, folder: Path) -> None:
        """All of a shell, however much of it there is."""
        if not _is_there(folder):
            return
        room = Room(folder)
        if id_ := room.id:
            await self.kill(folder)
            await self._make_runc_forget(room)
            await asyncio.to_thread(cgroups.remove_group, id_)
        await asyncio.to_thread(disks.remove_disk, folder)
        number = room.first_id // IDS
        await asyncio.to_thread(shutil.rmtree, folder)
        self._ranges.discard(number)

    async def _make_runc_forget(self, room: Room) -> None:
        """One that was whole has nothing left but notes; of another, only runc knows what is."""
        if _is_there(room.folder / "shell.pid"):
            await asyncio.to_thread(shutil.rmtree, self._root / "runc" / room.id, True)
            return
        with contextlib.suppress(FileNotFoundError):  # where runc is not, it has made nothing
            process = await asyncio.create_subprocess_exec(
                *self._runc("delete", "--force", room.id),
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
            )
            await process.wait()

    def _runc(self, *arguments: str) -> list[str]:
        return ["runc", "--root", str(self._root / "runc"), *arguments]


def _replace_disk(room: Room, disk_bytes: int | None) -> None:
    disks.remove_disk(room.folder)
    size = disk_bytes or disks.size_that_fits(room.folder)
    disks.make_disk(room.folder, size, room.first_id)


async def _answer_of(room: Room) -> bool:
    """Whether its Windows comes up."""
    try:
        async with asyncio.timeout(BOOT_SECONDS):
            await room.agent.ping()
    except (TimeoutError, WinpodError):
        return False
    return True


def _is_there(path: Path) -> bool:
    return path.exists()


def _is_shell(pid: int, id_: str) -> bool:
    """Whether a number that was written down is still the process it was written for."""
    try:
        return id_ in Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return False


def _tail(file: Path) -> str:
    return file.read_text(errors="replace")[-1000:].strip() if file.exists() else ""
