"""Real containers: each a program in a shell, with its own C:, supervised by conmon.

Everything of a container is in one directory, named before it is made and removed last. What runs
does so without this process, and is found again by the files it leaves. A container that asks for
what cannot be is refused before anything is made.

A sandbox takes a shell that waits and gives its network to the pod; where none waits, one is booted
in the pod's network while that is connected. The pod's first container takes it from there; every
other container boots one of its own. A container that was created is ready to the last detail, but
for its Windows, which may still boot, unless there are limits that would hold it up: its program is
asked for already, and starts when it is up.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from shutil import rmtree, which

from winpod.compute import cgroups, conmon, disks, mounts
from winpod.compute.agent import Agent, Program, Running, Size, registry_frames
from winpod.compute.ahead import Ahead
from winpod.compute.attach import Attached
from winpod.compute.backend import ContainerParts, Exit, Output, SandboxAsked, Usage
from winpod.compute.drive import Drive, refuse_what_cannot_be
from winpod.compute.errors import NotReady, ShellFailed, WindowsError
from winpod.compute.foreign import refuse_foreign
from winpod.compute.identity import names_of, registry_of, resolver_file, set_hostname
from winpod.compute.leavings import Leavings
from winpod.compute.logs import reopen_log
from winpod.compute.pipes import Pipe, find_pipes, start_relay, write_pipes
from winpod.compute.plan import Plan
from winpod.compute.processes import read_pid
from winpod.compute.resources import Enforced
from winpod.compute.shell import DRIVE_C
from winpod.compute.shells import Room, Shells
from winpod.images.base import Base
from winpod.windows.builds import Build
from winpod.windows.command_line import join
from winpod.windows.users import ADMINISTRATOR

_NEEDED = {
    "conmon": "conmon",
    "runc": "runc",
    "mkfs.ext4": "e2fsprogs",
    "mount": "mount",
}

_OUT_OF_MEMORY = 137
"""What the kernel has killed, Wine says ended with 0."""
_SPENT = "it used all of its memory limit"


class WineBackend:
    """`netns` tells where a sandbox's network namespace is; `warm` is how many shells wait."""

    def __init__(
        self,
        root: Path,
        base: Base,
        host: Build,
        netns: Callable[[str], Path],
        warm: int = 0,
    ) -> None:
        self._root = root
        self._host = host
        self._netns = netns
        self.shells = Shells(root, base, host, warm)
        self._leavings = Leavings(root / "leavings", self._clear)
        self._ahead = Ahead(self.shells)

    async def open(self, known: Collection[str]) -> None:
        await self._leavings.open()
        for kind in ("containers", "sandboxes"):
            for folder in (self._root / kind).glob("*"):
                if folder.name not in known:
                    await self._clear(folder)
        for folder in self._root.glob("sandboxes/*/shell"):
            if not Room(folder).is_whole:
                await self.shells.end(folder)
        (self._root / "pipes").mkdir(parents=True, exist_ok=True)
        await self.shells.start()

    async def close(self) -> None:
        await self._ahead.close()
        await self._leavings.close()
        await self.shells.stop()

    def describe(self) -> dict[str, object]:
        base = self.shells.base
        wine = {name: version for name, version in base.packages.items() if "wine" in name}
        warm = {"wanted": self.shells.wanted, "waiting": len(self.shells.waiting)}
        return {"kind": "wine", "base": base.id, "packages": wine, "warm_shells": warm}

    def trouble(self) -> str:
        missing = [f"{name} (package {of})" for name, of in _NEEDED.items() if not which(name)]
        if missing:
            return f"this machine has no {', no '.join(missing)}."
        rootfs = self.shells.base.rootfs
        return "" if rootfs.is_dir() else f"the Wine base {rootfs} is gone: winpod base build."

    async def make_sandbox(self, asked: SandboxAsked) -> Path | None:
        folder = self._sandbox(asked.id)
        folder.mkdir(parents=True)
        (folder / "asked.json").write_text(json.dumps(asdict(asked)))
        room = self.shells.take(folder / "shell")
        self.shells.refill()
        return Path(f"/proc/{room.pid}/ns/net") if room else None

    def connecting(self, sandbox: str) -> None:
        place = self._sandbox(sandbox) / "shell"
        if not place.exists() and not self.trouble():
            self._ahead.begin(place, self._netns(sandbox))

    async def remove_sandbox(self, sandbox: str) -> None:
        folder = self._sandbox(sandbox)
        await self._ahead.give_up(folder / "shell")
        await self._discard(folder)

    async def make(self, asked: ContainerParts) -> None:
        if trouble := self.trouble():
            raise NotReady(trouble)
        refuse_what_cannot_be(asked.plan.mounts)
        pipes = find_pipes(asked.plan.mounts, self._root / "pipes")
        folder = self._folder(asked.id)
        _write_down(folder, asked, pipes)
        room = await self._room(asked)
        if _is_limited(asked.plan):  # a boot may need more than that
            await self.shells.until_up(room)
            await asyncio.to_thread(_limit, room, asked.plan.limits)
        sandbox = self._asked(asked.sandbox)
        await asyncio.to_thread(self._furnish, room, asked, sandbox, folder)
        build = registry_of(self.shells.base.prefix, self._host, asked.build, asked.layers)
        (folder / "registry").write_bytes(registry_frames([*build, *names_of(sandbox)]))
        await start_relay(folder)

    async def _room(self, asked: ContainerParts) -> Room:
        """The shell that the sandbox has, for the first who can use it, else a new one."""
        waiting, place = self._sandbox(asked.sandbox) / "shell", self._folder(asked.id) / "shell"
        size = asked.plan.limits.rootfs_bytes or disks.DEFAULT_SIZE
        if asked.plan.user == ADMINISTRATOR and size == disks.DEFAULT_SIZE:
            await self._ahead.until_there(waiting)
            if Room(waiting).is_whole:
                waiting.rename(place)
                return Room(place)
        return await self.shells.begin(place, asked.plan.user, self._netns(asked.sandbox), size)

    def _furnish(
        self, room: Room, asked: ContainerParts, sandbox: SandboxAsked, folder: Path
    ) -> None:
        pid = room.pid
        if pid is None:
            raise ShellFailed("it ended while its container was made")
        plan, owner = asked.plan, room.first_id
        set_hostname(pid, sandbox.hostname)
        (room.prefix / "resolv.conf").write_text(resolver_file(sandbox))
        users = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC) if owner else None
        try:
            drive = Drive(folder / "c", room.folder / "disk", owner, users)
            drive.assemble(self.shells.base.drive_c, asked.layers, folder / "scratch")
            drive.make_directory(f"C:\\Users\\{plan.user.name}", owner + plan.user.uid)
            for volume in plan.volumes:
                drive.make_directory(volume, owner)
            drive.add(plan.mounts, folder / "scratch")
            refuse_foreign(self.shells.base, folder / "c", _program(plan))
            drive.slide_into(pid, DRIVE_C)
        finally:
            if users is not None:
                os.close(users)

    async def start(self, container: str) -> None:
        folder = self._folder(container)
        room = Room(folder / "shell")
        if room.pid is None:
            raise ShellFailed("it has ended since the container was created")
        try:
            await asyncio.gather(self.shells.until_up(room), conmon.supervise(folder))
        except BaseException:
            await asyncio.shield(self.shells.kill(folder / "shell"))
            raise

    async def signal(self, container: str, *, kill: bool) -> None:
        folder = self._folder(container)
        if kill:
            (folder / "killed").touch()
            await self.shells.kill(folder / "shell")
        elif pid := read_pid(folder / "program.pid"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    async def wait(self, container: str) -> Exit:
        folder = self._folder(container)
        await conmon.until_ended(folder)
        end = conmon.read_exit(folder)
        if _ran_out_of_memory(folder / "shell"):
            end = replace(end, code=end.code or _OUT_OF_MEMORY, reason="OOMKilled", message=_SPENT)
        await self.shells.kill(folder / "shell")
        return end

    async def was_started(self, container: str) -> bool:
        return await asyncio.to_thread(conmon.was_begun, self._folder(container))

    async def is_running(self, container: str) -> bool:
        return conmon.is_supervised(self._folder(container))

    async def remove(self, container: str) -> None:
        folder = self._folder(container)
        await self.shells.kill(folder / "shell")
        await conmon.until_ended(folder)
        await self._discard(folder)

    async def _discard(self, folder: Path) -> None:
        """A container or a sandbox: nothing of it runs any more, and its C: is no place."""
        await self.shells.kill(folder / "shell")
        await asyncio.to_thread(mounts.unmount, folder / "c")
        await self._leavings.take(folder)

    async def _clear(self, folder: Path) -> None:
        """However much of it there is."""
        await self.shells.end(folder / "shell")
        await asyncio.to_thread(mounts.unmount, folder / "c")
        await asyncio.to_thread(rmtree, folder)

    async def update(self, container: str, limits: Enforced) -> None:
        room = Room(self._folder(container) / "shell")
        await asyncio.to_thread(_limit, room, limits)

    async def usage(self, container: str) -> Usage:
        return await asyncio.to_thread(_usage, Room(self._folder(container) / "shell"))

    async def reopen_log(self, container: str) -> None:
        folder = self._folder(container)
        await reopen_log((folder / "log_path").read_text(), read_pid(folder / "program.pid"))

    async def run(self, container: str, command: Sequence[str], seconds: float) -> Output:
        folder = self._folder(container)
        program = _further(folder, command)
        async with asyncio.timeout(seconds or None):
            with self._refused_with_reason(folder, program):
                finished = await _agent(folder).run(program)
        return Output(finished.code, finished.output, finished.errors)

    async def exec(
        self, container: str, command: Sequence[str], *, terminal: Size | None, stdin: bool
    ) -> Running:
        folder = self._folder(container)
        program = replace(_further(folder, command), terminal=terminal, stdin=stdin)
        with self._refused_with_reason(folder, program):
            return await _agent(folder).start(program)

    @contextlib.contextmanager
    def _refused_with_reason(self, folder: Path, program: Program) -> Iterator[None]:
        """Where Windows has only a number, the program itself may tell why."""
        try:
            yield
        except WindowsError:
            if pid := Room(folder / "shell").pid:
                drive = Path(f"/proc/{pid}/root{DRIVE_C}")
                refuse_foreign(self.shells.base, drive, program)
            raise

    async def attach(self, container: str, *, stdin: bool) -> Attached:
        folder = self._folder(container)
        started = (folder / "conmon.pid").exists()
        attach = Attached.to if started else Attached.before_start
        return await attach(folder, stdin=stdin)

    def _folder(self, container: str) -> Path:
        return self._root / "containers" / container

    def _sandbox(self, sandbox: str) -> Path:
        return self._root / "sandboxes" / sandbox

    def _asked(self, sandbox: str) -> SandboxAsked:
        words = json.loads((self._sandbox(sandbox) / "asked.json").read_text())
        return SandboxAsked(**words)


def _write_down(folder: Path, asked: ContainerParts, pipes: Sequence[Pipe]) -> None:
    """What the program's supervisor reads, then and after a restart."""
    for name in ("scratch", "exit", "c"):
        (folder / name).mkdir(parents=True)
    (folder / "run").symlink_to("shell/run")
    plan = asked.plan
    wanted = {"tty": plan.tty, "stdin": plan.stdin, "stdin_stays": not plan.stdin_once}
    (folder / "start").write_bytes(_program(plan).encode())
    (folder / "log_path").write_text(asked.log_path)
    write_pipes(folder, pipes)
    (folder / "stdio").write_text(" ".join(name for name, is_so in wanted.items() if is_so))


def _program(plan: Plan) -> Program:
    return Program(
        plan.command_line,
        plan.cwd,
        dict(plan.env),
        terminal=Size() if plan.tty else None,
        stdin=plan.stdin,
        whole=True,
    )


def _further(folder: Path, command: Sequence[str]) -> Program:
    """A program beside the container's own, which has told where and with what it runs."""
    own = Program.decode((folder / "start").read_bytes())
    return Program(join(command), own.directory, own.environment)


def _usage(room: Room) -> Usage:
    if not (id_ := room.id):
        return Usage(time.time_ns())
    counted = cgroups.read_usage(id_)
    disk_bytes, inodes = disks.used(room.folder)
    return Usage(
        time.time_ns(),
        counted.cpu_nanoseconds,
        counted.private_bytes,
        counted.private_bytes + counted.shared_bytes + counted.swapped_bytes,
        counted.processes,
        disk_bytes,
        charged_bytes=counted.memory_bytes,
        threads=counted.threads,
        out_of_memory_kills=counted.out_of_memory_kills,
        disk_inodes=inodes,
        mountpoint=str(room.folder / "disk"),
    )


def _is_limited(plan: Plan) -> bool:
    """Beyond what every shell has been from its start."""
    return plan.limits != Enforced(plan.limits.processors)


def _limit(room: Room, limits: Enforced) -> None:
    if limits.disk_bytes_per_second or limits.disk_operations_per_second:
        disks.write_at_once(room.folder)
    cgroups.set_limits(room.id, limits, disks.device_of(room.folder))


def _agent(folder: Path) -> Agent:
    return Room(folder / "shell").agent


def _ran_out_of_memory(folder: Path) -> bool:
    id_ = Room(folder).id
    return bool(id_) and cgroups.read_usage(id_).out_of_memory_kills > 0
