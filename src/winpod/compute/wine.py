"""Real containers: each a program in a shell, with its own C:, supervised by conmon.

Everything of a container is in one directory, named before it is made and removed last. What runs
does so without this process, and is found again by the files it leaves. A container that asks for
what cannot be is refused before anything is made.

Where a shell is, is the affair of its house: on this machine, or in the pod's microVM. A container
that was created is ready to the last detail, but for its Windows, which may still boot, unless
there are limits that would hold it up: its program is asked for already, and starts when it is up.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from shutil import rmtree
from typing import Any

from winpod.compute import conmon, mounts
from winpod.compute.agent import Agent, Program, Running, Size, registry_frames
from winpod.compute.attach import Attached
from winpod.compute.backend import ContainerParts, Exit, Output, SandboxAsked, Usage
from winpod.compute.drive import refuse_what_cannot_be
from winpod.compute.errors import NotReady, ShellFailed, WindowsError
from winpod.compute.foreign import refuse_foreign
from winpod.compute.house import House
from winpod.compute.identity import names_of, registry_of, resolver_file
from winpod.compute.leavings import Leavings
from winpod.compute.logs import reopen_log
from winpod.compute.pipes import Pipe, find_pipes, start_relay, write_pipes
from winpod.compute.processes import read_pid
from winpod.compute.programs import further_program, program_of
from winpod.compute.resources import Enforced
from winpod.images.base import Base
from winpod.windows.isolation import Isolation

_OUT_OF_MEMORY = 137
"""What the kernel has killed, Wine says ended with 0."""
_SPENT = "it used all of its memory limit"
_CUT_OFF = "the pod's microVM has ended"
_ISOLATION = "isolation"
"""The file that tells which house a sandbox or a container is in."""


class WineBackend:
    def __init__(self, root: Path, base: Base, houses: Mapping[Isolation, House]) -> None:
        self._root = root
        self._base = base
        self._houses = houses
        self._leavings = Leavings(root / "leavings", self._clear)

    async def open(self, known: Collection[str]) -> None:
        await self._leavings.open()
        for kind in ("containers", "sandboxes"):
            for folder in (self._root / kind).glob("*"):
                if folder.name not in known:
                    await self._clear(folder)
        (self._root / "pipes").mkdir(parents=True, exist_ok=True)
        for house in self._houses.values():
            await house.open()

    async def close(self) -> None:
        await self._leavings.close()
        for house in self._houses.values():
            await house.close()

    def describe(self) -> dict[str, object]:
        packages = self._base.packages
        wine = {name: version for name, version in packages.items() if "wine" in name}
        told: dict[str, object] = {"kind": "wine", "base": self._base.id, "packages": wine}
        for house in self._houses.values():
            told |= house.describe()
        return told

    def trouble(self, isolation: Isolation = Isolation.PROCESS) -> str:
        house = self._houses.get(isolation)
        return house.trouble() if house else f"this runtime has no {isolation} isolation."

    async def make_sandbox(self, asked: SandboxAsked) -> Path | None:
        folder = self._sandbox(asked.id)
        folder.mkdir(parents=True)
        (folder / _ISOLATION).write_text(asked.isolation)
        (folder / "asked.json").write_text(json.dumps(asdict(asked)))
        return await self._house(folder).receive(asked, folder)

    def connecting(self, sandbox: str) -> None:
        folder = self._sandbox(sandbox)
        self._house(folder).connecting(folder)

    async def connected(self, sandbox: str, interface: str, result: Mapping[str, Any]) -> None:
        folder = self._sandbox(sandbox)
        await self._house(folder).connected(folder, interface, result)

    async def until_sandbox_dies(self, sandbox: str) -> None:
        folder = self._sandbox(sandbox)
        await self._house(folder).until_dead(folder)

    async def processors(self, sandbox: str) -> int:
        folder = self._sandbox(sandbox)
        return await self._house(folder).processors(folder)

    async def dial(
        self, sandbox: str, port: int, addresses: Sequence[str]
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        folder = self._sandbox(sandbox)
        return await self._house(folder).dial(folder, port, addresses)

    async def remove_sandbox(self, sandbox: str) -> None:
        folder = self._sandbox(sandbox)
        await self._house(folder).leave(folder)
        await self._leavings.take(folder)

    async def resize_sandbox(self, sandbox: str, memory_bytes: int, processors: int) -> None:
        folder = self._sandbox(sandbox)
        await self._house(folder).resize(folder, memory_bytes, processors)

    async def make(self, asked: ContainerParts) -> None:
        sandbox_folder, folder = self._sandbox(asked.sandbox), self._folder(asked.id)
        house = self._house(sandbox_folder)
        if trouble := house.trouble():
            raise NotReady(trouble)
        sandbox = self._asked(asked.sandbox)
        refuse_what_cannot_be(asked.plan.mounts, sandbox.isolation)
        pipes = find_pipes(asked.plan.mounts, self._root / "pipes")
        _write_down(folder, asked, pipes, sandbox.isolation)
        room = await house.begin(asked, sandbox_folder, folder / "shell")
        await house.furnish(room, asked, sandbox, folder)
        build = registry_of(self._base.prefix, house.booted_as, asked.build, asked.layers)
        (folder / "registry").write_bytes(registry_frames([*build, *names_of(sandbox)]))
        (folder / "resolver").write_text(resolver_file(sandbox))
        if pipes:
            await house.until_up(room)
            await start_relay(folder)

    async def start(self, container: str) -> None:
        folder = self._folder(container)
        house = self._house(folder)
        room = house.room(folder / "shell")
        if room.pid is None:
            raise ShellFailed("it has ended since the container was created")
        try:
            await house.until_up(room)
            await house.set_resolver(room, (folder / "resolver").read_text())
            await conmon.supervise(folder)
        except BaseException:
            await asyncio.shield(house.kill(folder / "shell"))
            raise

    async def signal(self, container: str, *, kill: bool) -> None:
        folder = self._folder(container)
        if kill:
            house = self._house(folder)
            if house.stands(folder / "shell"):
                (folder / "killed").touch()
            await house.kill(folder / "shell")
        elif pid := read_pid(folder / "program.pid"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    async def wait(self, container: str) -> Exit:
        folder = self._folder(container)
        house = self._house(folder)
        await conmon.until_ended(folder)
        end = conmon.read_exit(folder)
        if not conmon.is_explained(folder) and not house.stands(folder / "shell"):
            end = replace(end, message=_CUT_OFF)
        if (await house.usage(house.room(folder / "shell"))).out_of_memory_kills:
            end = replace(end, code=end.code or _OUT_OF_MEMORY, reason="OOMKilled", message=_SPENT)
        await house.kill(folder / "shell")
        return end

    async def was_started(self, container: str) -> bool:
        return await asyncio.to_thread(conmon.was_begun, self._folder(container))

    async def is_running(self, container: str) -> bool:
        return conmon.is_supervised(self._folder(container))

    async def remove(self, container: str) -> None:
        folder = self._folder(container)
        await self._house(folder).kill(folder / "shell")
        await conmon.until_ended(folder)
        await asyncio.to_thread(mounts.unmount, folder / "c")
        await self._leavings.take(folder)

    async def _clear(self, folder: Path) -> None:
        """A container or a sandbox, however much of it there is."""
        house = self._house(folder)
        await house.leave(folder)
        await house.end(folder / "shell")
        await asyncio.to_thread(mounts.unmount, folder / "c")
        await asyncio.to_thread(rmtree, folder)

    async def update(self, container: str, limits: Enforced) -> None:
        folder = self._folder(container)
        house = self._house(folder)
        await house.limit(house.room(folder / "shell"), limits)

    async def usage(self, container: str) -> Usage:
        folder = self._folder(container)
        house = self._house(folder)
        return await house.usage(house.room(folder / "shell"))

    async def reopen_log(self, container: str) -> None:
        folder = self._folder(container)
        await reopen_log((folder / "log_path").read_text(), read_pid(folder / "program.pid"))

    async def run(self, container: str, command: Sequence[str], seconds: float) -> Output:
        folder = self._folder(container)
        program = further_program(folder, command)
        async with asyncio.timeout(seconds or None):
            with self._refused_with_reason(folder, program):
                finished = await self._agent(folder).run(program)
        return Output(finished.code, finished.output, finished.errors)

    async def exec(
        self, container: str, command: Sequence[str], *, terminal: Size | None, stdin: bool
    ) -> Running:
        folder = self._folder(container)
        program = replace(further_program(folder, command), terminal=terminal, stdin=stdin)
        with self._refused_with_reason(folder, program):
            return await self._agent(folder).start(program)

    @contextlib.contextmanager
    def _refused_with_reason(self, folder: Path, program: Program) -> Iterator[None]:
        """Where Windows has only a number, the program itself may tell why."""
        try:
            yield
        except WindowsError:
            if drive := self._house(folder).drive(folder):
                refuse_foreign(self._base, drive, program)
            raise

    async def attach(self, container: str, *, stdin: bool) -> Attached:
        folder = self._folder(container)
        started = (folder / "conmon.pid").exists()
        attach = Attached.to if started else Attached.before_start
        return await attach(folder, stdin=stdin)

    def _agent(self, folder: Path) -> Agent:
        return self._house(folder).room(folder / "shell").agent

    def _house(self, folder: Path) -> House:
        """One that was never begun is in the house that needs nothing ended."""
        try:
            return self._houses[Isolation((folder / _ISOLATION).read_text())]
        except (OSError, ValueError, KeyError):
            return self._houses[Isolation.PROCESS]

    def _folder(self, container: str) -> Path:
        return self._root / "containers" / container

    def _sandbox(self, sandbox: str) -> Path:
        return self._root / "sandboxes" / sandbox

    def _asked(self, sandbox: str) -> SandboxAsked:
        words = json.loads((self._sandbox(sandbox) / "asked.json").read_text())
        return SandboxAsked(**{**words, "isolation": Isolation(words["isolation"])})


def _write_down(
    folder: Path, asked: ContainerParts, pipes: Sequence[Pipe], isolation: Isolation
) -> None:
    """What the program's supervisor reads, then and after a restart."""
    for name in ("scratch", "exit", "c"):
        (folder / name).mkdir(parents=True)
    (folder / "run").symlink_to("shell/run")
    plan = asked.plan
    wanted = {"tty": plan.tty, "stdin": plan.stdin, "stdin_stays": not plan.stdin_once}
    (folder / _ISOLATION).write_text(isolation)
    (folder / "start").write_bytes(program_of(plan).encode())
    (folder / "log_path").write_text(asked.log_path)
    (folder / "log_limit").write_text(str(asked.log_limit))
    write_pipes(folder, pipes)
    (folder / "stdio").write_text(" ".join(name for name, is_so in wanted.items() if is_so))
