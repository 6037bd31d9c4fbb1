"""Silos: booted ahead of time, handed over by renaming, and destroyed with everything in them.

A silo is a directory, named `shell` in its owner's: the OCI bundle, the Wine prefix, the agent's
socket and the scratch disk. The directory's location determines its owner, so a crash leaves a silo
with exactly one. Idle silos are in `warm`, and are destroyed at the next start.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import secrets
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from winpod.compute import cgroups, scratch_disk
from winpod.compute.agent.client import AgentClient
from winpod.compute.errors import SiloFailed
from winpod.compute.native import with_agent_socket
from winpod.compute.preflight import has_user_namespaces, is_reachable_by_mapped_user
from winpod.compute.silo import IDS_PER_SILO, SiloConfig, silo_oci_spec
from winpod.concurrency import run_to_completion
from winpod.errors import WinpodError
from winpod.files import remove_tree
from winpod.images.base.build_container import OCI_RUNTIMES, find_oci_runtime
from winpod.images.base.builder import Base, prepare_prefix
from winpod.images.errors import ToolMissing
from winpod.subprocesses import read_pid, run, wait_for_orphans, wait_process_exit
from winpod.windows.builds import Build
from winpod.windows.users import ADMINISTRATOR, User

BOOT_SECONDS = 60.0
QUIET_SECONDS = 1.0
BOOTS_PER_CPU = 2
_FIRST_RANGE, _LAST_RANGE = 0x6000, 0x7FFF
_ORPHANS = ("wproxy listen", *OCI_RUNTIMES, "mkfs.ext4", "mount")
_OCI_STATE = "oci"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Silo:
    """The directory of a silo, and what is in it."""

    folder: Path

    @property
    def prefix(self) -> Path:
        return self.folder / "prefix"

    @property
    def agent(self) -> AgentClient:
        return AgentClient(self.folder / "run/agent.sock")

    @property
    def id(self) -> str:
        """The OCI container id; empty if the silo was never created."""
        file = self.folder / "id"
        return file.read_text() if file.exists() else ""

    @property
    def first_id(self) -> int:
        """The host's uid of root; 0 without a user namespace, or if it was never created."""
        file = self.folder / "first_id"
        return int(file.read_text() or 0) if file.exists() else 0

    @property
    def pid(self) -> int | None:
        """The pid of the silo's first process, while it lives."""
        pid = read_pid(self.folder / "shell.pid")
        return pid if pid and self.id and cgroups.is_running_in(pid, self.id) else None

    @property
    def is_complete(self) -> bool:
        """Whether the silo runs and its creation was not interrupted."""
        return (self.folder / "whole").exists() and self.pid is not None

    def mark_complete(self) -> None:
        (self.folder / "whole").touch()


class SiloPool:
    """Creates silos, and keeps `warm` of them booted for administrators with the default disk.

    `with_users` is whether each has its own range of unprivileged users. An empty `oci_runtime`
    selects the first supported one that is installed.

    A boot keeps a processor busy most of the time, so two run at once for each processor. Of many
    boots the first then finish early, and none is so slow that it times out.
    """

    def __init__(
        self, root: Path, base: Base, host: Build, warm: int = 0, oci_runtime: str = ""
    ) -> None:
        self.base = base
        self._root = root
        self._host = host
        self._configured_runtime = oci_runtime
        self.size = warm
        self._idle: list[Silo] = []
        self._filling: asyncio.Task[None] | None = None
        self._taken_at = 0.0
        self._boot_slots = asyncio.Semaphore(BOOTS_PER_CPU * len(os.sched_getaffinity(0)))
        self._booting: dict[str, asyncio.Task[bool]] = {}
        wait_for_orphans(root, _ORPHANS, BOOT_SECONDS)
        self.with_users = has_user_namespaces(root)
        self._rootfs, self._reach_prefix = base.rootfs, list[str]()
        if self.with_users:
            self._rootfs, self._reach_prefix = is_reachable_by_mapped_user(base.rootfs)
        self._ranges = {silo.first_id // IDS_PER_SILO for silo in self._existing_silos()}

    def _existing_silos(self) -> list[Silo]:
        folders = (self._root.glob(f"{kind}/*/shell") for kind in ("containers", "sandboxes"))
        return [Silo(folder) for group in folders for folder in group]

    @property
    def idle_silos(self) -> Sequence[Silo]:
        return self._idle

    async def start(self) -> None:
        """Destroy idle silos of an earlier process and those without a directory; refill."""
        for folder in (self._root / "warm").glob("*"):
            await self.destroy(folder)
        known = {silo.id for silo in self._existing_silos()}
        for state in (self._root / _OCI_STATE).glob("*"):
            if state.name not in known:
                await asyncio.to_thread(cgroups.remove_cgroup, state.name)
                await asyncio.to_thread(remove_tree, state, ignore_errors=True)
        self.refill()

    async def stop(self) -> None:
        if self._filling:
            self._filling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._filling
        for folder in (self._root / "warm").glob("*"):
            await self.destroy(folder)

    def acquire(self, folder: Path) -> Silo | None:
        """Move an idle silo to a directory and return it, or None if the pool is empty."""
        while self._idle:
            silo = self._idle.pop(0)
            if silo.pid:
                self._taken_at = time.monotonic()
                folder.parent.mkdir(parents=True, exist_ok=True)
                silo.folder.rename(folder)
                return Silo(folder)
        return None

    def refill(self) -> None:
        """Boot silos in the background, one at a time, while no pods are created."""
        if len(self._idle) < self.size and (self._filling is None or self._filling.done()):
            self._filling = asyncio.create_task(self._fill())

    async def _fill(self) -> None:
        while len(self._idle) < self.size:
            if (rest := self._taken_at + QUIET_SECONDS - time.monotonic()) > 0:
                await asyncio.sleep(rest)
                continue
            folder = self._root / "warm" / secrets.token_hex(4)
            try:
                self._idle.append(await self.boot(folder))
            except (WinpodError, OSError) as error:
                _log.warning("Failed to boot warm silo: %s", error)
                return

    async def boot(self, folder: Path) -> Silo:
        """Create a silo and wait until it is ready; destroy it on failure."""
        silo = await self.create(folder)
        try:
            await self.wait_ready(silo)
        except BaseException:
            await run_to_completion(self.destroy(folder))
            raise
        return silo

    async def create(
        self,
        folder: Path,
        user: User = ADMINISTRATOR,
        netns: Path | None = None,
        disk_bytes: int | None = None,
    ) -> Silo:
        """Create a silo that can be configured while its Windows still boots.

        Without `disk_bytes` the disk has the default size, or what the host has left. On failure
        the silo is destroyed.
        """
        await self._boot_slots.acquire()
        try:
            silo = await run_to_completion(self._make(folder, user, netns, disk_bytes))
        except BaseException:
            self._boot_slots.release()
            await run_to_completion(self.destroy(folder))
            raise
        id_ = silo.id
        self._booting[id_] = asyncio.create_task(_is_ready(silo))
        self._booting[id_].add_done_callback(lambda _: self._boot_slots.release())
        self._booting[id_].add_done_callback(lambda _: self._booting.pop(id_))
        return silo

    async def wait_ready(self, silo: Silo) -> None:
        """Wait until the silo's Windows can start programs."""
        booting = self._booting.get(silo.id)
        is_ready = await (asyncio.shield(booting) if booting else _is_ready(silo))
        if not is_ready:
            raise SiloFailed(_tail(silo.folder / "shell.log"))

    async def ensure_disk(self, silo: Silo, disk_bytes: int | None) -> None:
        """Recreate the empty disk of a warm silo if it does not fit.

        The host may have had more free space when the silo was created, before its container was
        known.
        """
        if not scratch_disk.has_disk_size(silo.folder, disk_bytes):
            await run_to_completion(asyncio.to_thread(_replace_disk, silo, disk_bytes))

    async def _make(
        self, folder: Path, user: User, netns: Path | None, disk_bytes: int | None
    ) -> Silo:
        silo = await asyncio.to_thread(self._prepare, folder, user, netns)
        size = disk_bytes or scratch_disk.default_disk_size(folder)
        disk = asyncio.to_thread(scratch_disk.create_disk, folder, size, silo.first_id)
        outcomes = await asyncio.gather(self._run(silo), disk, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        silo.mark_complete()
        return silo

    def _prepare(self, folder: Path, user: User, netns: Path | None) -> Silo:
        (folder / "run").mkdir(parents=True)
        first_id = self._claim_range() * IDS_PER_SILO if self.with_users else 0
        id_ = f"winpod-{secrets.token_hex(8)}"
        (folder / "id").write_text(id_)
        (folder / "first_id").write_text(str(first_id))
        silo = Silo(folder)
        prepare_prefix(self.base, self._host, (), silo.prefix)
        (silo.prefix / "resolv.conf").touch()
        owner = first_id + user.uid
        for path in (silo.prefix, *silo.prefix.iterdir()):
            os.chown(path, owner, owner, follow_symlinks=False)
        config = SiloConfig(
            id=id_,
            rootfs=self._rootfs,
            prefix=silo.prefix,
            drive_c=self.base.drive_c,
            user=user,
            first_id=first_id,
            netns=netns,
            with_32bit=self.base.with_32bit,
        )
        (folder / "config.json").write_text(json.dumps(silo_oci_spec(config)))
        return silo

    def _claim_range(self) -> int:
        """Pick a range of uids that no other silo has, at random to avoid other runtimes'."""
        free = [n for n in range(_FIRST_RANGE, _LAST_RANGE) if n not in self._ranges]
        number = secrets.choice(free)
        self._ranges.add(number)
        return number

    async def _run(self, silo: Silo) -> None:
        folder = silo.folder
        command = self._oci("run", "--detach", "--preserve-fds", "1", "--bundle", str(folder))
        command += ["--pid-file", str(folder / "shell.pid"), silo.id]
        log = folder / "shell.log"
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *with_agent_socket(folder / "run/agent.sock", [*self._reach_prefix, *command]),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
            code = await process.wait()
        if code:
            raise SiloFailed(_tail(log))

    async def kill(self, folder: Path) -> None:
        """Kill everything in a silo and wait until it has ended."""
        if pid := Silo(folder).pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            await wait_process_exit(pid)

    async def destroy(self, folder: Path) -> None:
        """Remove a silo, also a partially created one."""
        if not _exists(folder):
            return
        silo = Silo(folder)
        if id_ := silo.id:
            await self.kill(folder)
            await self._delete_oci_state(silo)
            await asyncio.to_thread(cgroups.remove_cgroup, id_)
        await asyncio.to_thread(scratch_disk.remove_disk, folder)
        number = silo.first_id // IDS_PER_SILO
        await asyncio.to_thread(remove_tree, folder)
        self._ranges.discard(number)

    async def _delete_oci_state(self, silo: Silo) -> None:
        """Remove the OCI runtime's state; a silo without a pid may still have processes."""
        if _exists(silo.folder / "shell.pid"):
            await asyncio.to_thread(
                remove_tree, self._root / _OCI_STATE / silo.id, ignore_errors=True
            )
            return
        with contextlib.suppress(FileNotFoundError, ToolMissing):  # then nothing was created
            await run(self._oci("delete", "--force", silo.id))

    def oci_runtime(self) -> str:
        return find_oci_runtime(self._configured_runtime)

    def _oci(self, *arguments: str) -> list[str]:
        return [self.oci_runtime(), "--root", str(self._root / _OCI_STATE), *arguments]


def _replace_disk(silo: Silo, disk_bytes: int | None) -> None:
    scratch_disk.remove_disk(silo.folder)
    size = disk_bytes or scratch_disk.default_disk_size(silo.folder)
    scratch_disk.create_disk(silo.folder, size, silo.first_id)


async def _is_ready(silo: Silo) -> bool:
    """Report whether the silo's Windows boots in time."""
    try:
        async with asyncio.timeout(BOOT_SECONDS):
            await silo.agent.ping()
    except (TimeoutError, WinpodError):
        return False
    return True


def _exists(path: Path) -> bool:
    return path.exists()


def _tail(file: Path) -> str:
    return file.read_text(errors="replace")[-1000:].strip() if file.exists() else ""
