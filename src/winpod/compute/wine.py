"""Real containers: each a shell in an OCI runtime, its program supervised by conmon.

Everything of a container is in one directory, named before it is made and removed last. What runs
does so without this process: wproxy keeps the log, conmon the exit code; both are found again by
the files they leave. A container that asks for what cannot be is refused before anything is made.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from winpod.compute.agent import Agent, Program, Running, Size
from winpod.compute.attach import Attached
from winpod.compute.backend import ContainerParts, Exit, Output, SandboxAsked, Usage
from winpod.compute.errors import AgentGone, ShellFailed, StartRefused
from winpod.compute.logs import reopen_log
from winpod.compute.native import WPROXY, native_program, with_socket
from winpod.compute.plan import Mount, Plan, SourceKind
from winpod.compute.resources import Enforced
from winpod.compute.shell import CGROUP_PARENT, Shell, shell_spec, update_arguments
from winpod.images.base import Base, prepare_prefix
from winpod.images.layers import lower_directories
from winpod.windows.command_line import join
from winpod.windows.errors import InvalidInput
from winpod.windows.users import USER

BOOT_SECONDS = 60.0
_KILLED = 0xC000013A
_UNKNOWN = 255
_CGROUPS = Path("/sys/fs/cgroup")


class WineBackend:
    """`netns` tells where a sandbox's network namespace is."""

    def __init__(self, root: Path, base: Base, netns: Callable[[str], Path]) -> None:
        self._root = root
        self._base = base
        self._netns = netns
        self._sandboxes: dict[str, SandboxAsked] = {}

    async def make_sandbox(self, asked: SandboxAsked) -> None:
        self._sandboxes[asked.id] = asked

    async def remove_sandbox(self, sandbox: str) -> None:
        self._sandboxes.pop(sandbox, None)

    async def make(self, asked: ContainerParts) -> None:
        await asyncio.to_thread(self._make, asked)

    def _make(self, asked: ContainerParts) -> None:
        _refuse_what_cannot_be(asked.plan.mounts)
        folder = self._folder(asked.id)
        for name in ("upper", "work", "scratch", "run", "exit", "c"):
            (folder / name).mkdir(parents=True)
        prepare_prefix(self._base, asked.build, asked.layers, folder / "prefix")
        self._mount_drive(asked.layers, folder)
        _make_mount_points(asked.plan.mounts, folder / "c")
        _own(folder, asked.plan)
        shell = Shell(
            id=asked.id,
            rootfs=self._base.rootfs,
            prefix=folder / "prefix",
            drive_c=folder / "c",
            hostname=self._hostname(asked.sandbox),
            netns=self._netns(asked.sandbox),
            user=asked.plan.user,
            limits=asked.plan.limits,
            mounts=asked.plan.mounts,
        )
        (folder / "config.json").write_text(json.dumps(shell_spec(shell)))
        (folder / "start").write_bytes(_program(asked.plan).encode())
        (folder / "log_path").write_text(asked.log_path)
        (folder / "stdio").write_text(
            " ".join(name for name in ("tty", "stdin", "stdin_once") if getattr(asked.plan, name))
        )

    def _hostname(self, sandbox: str) -> str:
        asked = self._sandboxes.get(sandbox)
        return asked.hostname if asked else ""

    def _mount_drive(self, layers: Sequence[Path], folder: Path) -> None:
        lower = lower_directories(layers, folder / "scratch", base=self._base.drive_c)
        options = f"lowerdir={':'.join(map(str, lower))}"
        options += f",upperdir={folder / 'upper'},workdir={folder / 'work'}"
        _run("mount", "-t", "overlay", "overlay", "-o", options, str(folder / "c"))

    async def start(self, container: str) -> None:
        folder = self._folder(container)
        await self._boot(container, folder)
        try:
            await self._supervise(container, folder)
        except BaseException:
            await asyncio.shield(self._end_shell(container))
            raise

    async def _boot(self, container: str, folder: Path) -> None:
        runc = self._runc("run", "--detach", "--preserve-fds", "1", "--bundle", str(folder))
        runc += ["--pid-file", str(folder / "shell.pid"), container]
        with (folder / "shell.log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *with_socket(folder / "run/agent.sock", runc),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
            code = await process.wait()
        if code:
            raise ShellFailed(_tail(folder / "shell.log"))
        try:
            async with asyncio.timeout(BOOT_SECONDS):
                await Agent(folder / "run/agent.sock").ping()
        except (TimeoutError, AgentGone):
            await self._end_shell(container)
            raise ShellFailed(_tail(folder / "shell.log")) from None

    async def _supervise(self, container: str, folder: Path) -> None:
        stdio = (folder / "stdio").read_text().split()
        log_path = (folder / "log_path").read_text()
        if log_path:
            Path(log_path).parent.mkdir(parents=True, exist_ok=True)
        command = ["conmon", "--api-version", "1", "--cid", container, "--cuuid", container]
        command += ["--bundle", str(folder), "--runtime", str(native_program(WPROXY))]
        command += ["--exit-dir", str(folder / "exit"), "--log-level", "warning"]
        command += ["--container-pidfile", str(folder / "program.pid")]
        command += ["--conmon-pidfile", str(folder / "conmon.pid")]
        command += ["--log-path", "none", "--full-attach"]
        command += ["--terminal"] if "tty" in stdio else []
        command += ["--stdin"] if "stdin" in stdio else []
        command += ["--leave-stdin-open"] if "stdin_once" not in stdio else []
        reading, writing = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
                pass_fds=(writing,),
                env={"PATH": os.environ["PATH"], "_OCI_SYNCPIPE": str(writing)},
            )
            os.close(writing)
            writing = -1
            await process.wait()
            told = await asyncio.to_thread(_read_line, reading)
        finally:
            os.close(reading)
            if writing >= 0:
                os.close(writing)
        answer = json.loads(told or "{}")
        if int(answer.get("data", answer.get("pid", -1))) <= 0:
            raise StartRefused(
                str(answer.get("message", "")).strip() or _tail(folder / "shell.log")
            )

    async def signal(self, container: str, *, kill: bool) -> None:
        folder = self._folder(container)
        if kill:
            (folder / "killed").touch()
            await self._end_shell(container)
        elif pid := _pid(folder / "program.pid"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    async def wait(self, container: str) -> Exit:
        folder = self._folder(container)
        await _until_gone(_pid(folder / "conmon.pid"))
        end = _exit(folder)
        await self._end_shell(container)
        return end

    async def is_running(self, container: str) -> bool:
        folder = self._folder(container)
        return not (folder / "exit" / container).exists() and _is_conmon(
            _pid(folder / "conmon.pid")
        )

    async def _end_shell(self, container: str) -> None:
        process = await asyncio.create_subprocess_exec(
            *self._runc("delete", "--force", container),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        await process.wait()

    async def remove(self, container: str) -> None:
        folder = self._folder(container)
        if not folder.exists():
            return
        await self._end_shell(container)
        await _until_gone(_pid(folder / "conmon.pid"))
        await asyncio.to_thread(_discard, folder)

    async def update(self, container: str, limits: Enforced) -> None:
        arguments = self._runc("update", *update_arguments(limits), container)
        await asyncio.to_thread(_run, *arguments)

    async def usage(self, container: str) -> Usage:
        return await asyncio.to_thread(_usage, container, self._folder(container) / "upper")

    async def reopen_log(self, container: str) -> None:
        folder = self._folder(container)
        await reopen_log((folder / "log_path").read_text(), _pid(folder / "program.pid"))

    async def run(self, container: str, command: Sequence[str], seconds: float) -> Output:
        folder = self._folder(container)
        async with asyncio.timeout(seconds or None):
            finished = await Agent(folder / "run/agent.sock").run(_further(folder, command))
        return Output(finished.code, finished.output, finished.errors)

    async def exec(
        self, container: str, command: Sequence[str], *, terminal: Size | None, stdin: bool
    ) -> Running:
        folder = self._folder(container)
        program = replace(_further(folder, command), terminal=terminal, stdin=stdin)
        return await Agent(folder / "run/agent.sock").start(program)

    async def attach(self, container: str) -> Attached:
        return await Attached.to(self._folder(container))

    def _folder(self, container: str) -> Path:
        return self._root / "containers" / container

    def _runc(self, *arguments: str) -> list[str]:
        return ["runc", "--root", str(self._root / "runc"), *arguments]


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


def _refuse_what_cannot_be(mounts: Sequence[Mount]) -> None:
    for mount in mounts:
        if mount.kind in (SourceKind.PIPE, SourceKind.SOCKET):
            raise InvalidInput(
                f"{mount.source} cannot be mounted: named pipes and sockets of this machine do not "
                "reach into Wine.",
                "Use a port of the pod instead.",
            )
        if mount.kind is SourceKind.MISSING:
            Path(mount.source).mkdir(parents=True, exist_ok=True)
        if not mount.destination.upper().startswith("C:"):
            raise InvalidInput(
                f"{mount.source} cannot be mounted on {mount.destination}: there is only drive C:."
            )


def _make_mount_points(mounts: Sequence[Mount], drive: Path) -> None:
    for mount in mounts:
        place = _spelled(drive, mount.destination[3:].split("\\"))
        if mount.kind is SourceKind.FILE:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch()
        else:
            place.mkdir(parents=True, exist_ok=True)


def _spelled(drive: Path, names: Sequence[str]) -> Path:
    """The place of a path in the drive, in the spelling it has there."""
    here = drive
    for name in names:
        found = {entry.name.upper(): entry for entry in here.iterdir()} if here.is_dir() else {}
        here = found.get(name.upper(), here / name)
    return here


def _own(folder: Path, plan: Plan) -> None:
    """Wine takes a prefix only from its owner; another user than the administrator has a home."""
    uid = plan.user.uid
    for path in (folder / "prefix", *(folder / "prefix").iterdir()):
        os.chown(path, uid, uid, follow_symlinks=False)
    if plan.user == USER:
        home = _spelled(folder / "c", ("users", plan.user.name))
        home.mkdir(parents=True, exist_ok=True)
        os.chown(home, uid, uid)


def _exit(folder: Path) -> Exit:
    written = folder / "exit" / folder.name
    finished = int(written.stat().st_mtime * 1e9) if written.exists() else time.time_ns()
    if (folder / "exit32").exists():
        return Exit(int((folder / "exit32").read_text()), finished)
    if (folder / "killed").exists():
        return Exit(_KILLED, finished)
    if written.exists():
        return Exit(int(written.read_text() or _UNKNOWN), finished)
    return Exit(_UNKNOWN, finished, "Unknown", "nobody saw how the container ended")


def _usage(container: str, upper: Path) -> Usage:
    def number(controller: str, name: str) -> int:
        for path in (
            _CGROUPS / controller / CGROUP_PARENT / container / name,
            _CGROUPS / CGROUP_PARENT / container / name,
        ):
            if path.exists():
                return int(path.read_text().split()[0])
        return 0

    memory = number("memory", "memory.usage_in_bytes") or number("", "memory.current")
    disk = sum(p.lstat().st_size for p in upper.rglob("*") if p.is_file())
    return Usage(
        time.time_ns(),
        number("cpuacct", "cpuacct.usage"),
        memory,
        memory,
        number("pids", "pids.current"),
        disk,
    )


def _discard(folder: Path) -> None:
    if os.path.ismount(folder / "c"):
        _run("umount", "--lazy", str(folder / "c"))
    shutil.rmtree(folder, ignore_errors=True)


def _is_conmon(pid: int | None) -> bool:
    """Whether a number that was written down is still the process it was written for."""
    try:
        return pid is not None and Path(f"/proc/{pid}/comm").read_text().strip() == "conmon"
    except OSError:
        return False


async def _until_gone(pid: int | None) -> None:
    """Until the conmon of this number has ended; at once if it has."""
    if pid is None or not _is_conmon(pid):
        return
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    loop = asyncio.get_running_loop()
    ended = loop.create_future()
    loop.add_reader(descriptor, _settle, ended)
    try:
        await ended
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def _settle(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)


def _pid(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (FileNotFoundError, ValueError):
        return None


def _tail(file: Path) -> str:
    return file.read_text(errors="replace")[-1000:].strip() if file.exists() else ""


def _read_line(descriptor: int) -> str:
    with os.fdopen(os.dup(descriptor), "r") as pipe:
        return pipe.readline()


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise ShellFailed(f"{command[0]}: {done.stderr.strip()}")
