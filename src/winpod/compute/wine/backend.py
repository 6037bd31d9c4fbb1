"""Wine containers: each a program in a silo, with its own C:, supervised by conmon.

All state of a container is in one directory, created first and removed last. Containers run without
the daemon, which finds them again by their files. An invalid container is refused before anything
is created.

An isolation driver runs the silos: on the host, or in the pod's microVM. A created container is
complete, but its Windows may still boot; its program starts when that is up.

Named pipes are relayed to Unix sockets of the host by `wproxy relay`, because Wine has no AF_UNIX.
The relay outlives the daemon and ends with the silo. The host's `\\\\.\\pipe\\NAME` is the socket
NAME in winpod's `pipes` directory.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import struct
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from shutil import disk_usage
from typing import Any

from winpod.compute import idmapped_mounts
from winpod.compute.agent.client import (
    AgentClient,
    Program,
    RunningProgram,
    TerminalSize,
    pipe_request,
    registry_frames,
)
from winpod.compute.backend import (
    ContainerConfig,
    ContainerUsage,
    ExecOutput,
    ExitStatus,
    SandboxSpec,
)
from winpod.compute.cgroups import in_own_cgroup
from winpod.compute.errors import (
    LogNotReopened,
    NamedPipeFailed,
    PrerequisiteMissing,
    SiloFailed,
    WindowsError,
    program_start_reason,
)
from winpod.compute.guest_identity import hostname_values, registry_changes, resolv_conf
from winpod.compute.isolation_driver import IsolationDriver
from winpod.compute.native import WPROXY, native_program
from winpod.compute.resources import ResourceLimits
from winpod.compute.rootfs import check_mounts, refuse_unsupported_binary
from winpod.compute.spec import Mount, MountSourceKind, container_program, exec_program
from winpod.compute.wine import conmon
from winpod.compute.wine.conmon import AttachedStreams
from winpod.concurrency import run_to_completion
from winpod.errors import InvalidInput, WinpodError
from winpod.files import remove_tree
from winpod.images.base.builder import Base
from winpod.subprocesses import read_pid, run
from winpod.windows.isolation import Isolation
from winpod.windows.paths import named_pipe_name

_REOPEN_POLL_SECONDS = 0.01
_REOPEN_POLLS = 500


async def reopen_log(path: str, writer: int | None) -> None:
    """Make wproxy reopen its log at `path`, and wait until it has.

    wproxy gets a signal and then holds the file at that path. Until then it writes to the file that
    was moved, so a failure loses nothing.
    """
    if not path:
        return
    if not Path(path).parent.is_dir():
        raise LogNotReopened(path, "its directory is gone")
    if writer is not None and _is_running_wproxy(writer):
        os.kill(writer, signal.SIGUSR1)
    for _ in range(_REOPEN_POLLS):
        if writer is None or not _is_running_wproxy(writer):
            raise LogNotReopened(path, "its container does not run")
        if _holds(writer, path):
            return
        await asyncio.sleep(_REOPEN_POLL_SECONDS)
    raise LogNotReopened(path, "the file cannot be created")


def _is_running_wproxy(process: int) -> bool:
    try:
        name, state = Path(f"/proc/{process}/stat").read_text().split()[1:3]
    except OSError:
        return False
    return name == "(wproxy)" and state != "Z"


def _holds(process: int, path: str) -> bool:
    with contextlib.suppress(OSError):
        log = Path(path).stat()
        for descriptor in Path(f"/proc/{process}/fd").iterdir():
            with contextlib.suppress(OSError):
                if os.path.samestat(descriptor.stat(), log):
                    return True
    return False


_LOW_SPACE = 64 << 20
_log = logging.getLogger(__name__)


class DeferredDelete:
    """Deletes directories in the background.

    A directory is deleted by moving it to `root`, so after a crash the next start deletes the rest.
    `clear` removes one directory with its mounts and cgroups.
    """

    def __init__(self, root: Path, clear: Callable[[Path], Awaitable[None]]) -> None:
        self._root = root
        self._clear = clear
        self._clearing: asyncio.Task[None] | None = None

    async def open(self) -> None:
        self._root.mkdir(parents=True, exist_ok=True)
        self._start_clearing()
        await self.close()

    async def add(self, folder: Path) -> None:
        """Delete a directory if it exists. Waits for it if the disk is almost full."""
        self._move(folder)
        self._start_clearing()
        if disk_usage(self._root).free < _LOW_SPACE:
            await self.close()

    def _move(self, folder: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            folder.rename(self._root / folder.name)

    def _start_clearing(self) -> None:
        if self._clearing is None or self._clearing.done():
            self._clearing = asyncio.create_task(self._clear_all())

    async def close(self) -> None:
        if self._clearing:
            await asyncio.shield(self._clearing)

    async def _clear_all(self) -> None:
        failed: set[Path] = set()
        while pending := set(self._root.iterdir()) - failed:
            for folder in pending:
                try:
                    await self._clear(folder)
                except (WinpodError, OSError) as error:
                    failed.add(folder)
                    _log.warning("Failed to delete %s, retrying at next start: %s", folder, error)


MAX_PIPES = 16
_PIPES_FILE = "pipes"
_RELAY_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class NamedPipe:
    r"""A pipe `\\.\pipe\name` in the container, relayed to the socket at `path`."""

    name: str
    path: Path


def find_named_pipes(mounts: Iterable[Mount], directory: Path) -> tuple[NamedPipe, ...]:
    """Return the pipes among the mounts; `directory` has the sockets of the host's pipes."""
    found = []
    for mount in mounts:
        if mount.kind is MountSourceKind.PIPE:
            found.append(
                NamedPipe(
                    named_pipe_name(mount.destination), directory / named_pipe_name(mount.source)
                )
            )
        elif mount.kind is MountSourceKind.SOCKET:
            found.append(
                NamedPipe(named_pipe_name(mount.destination), Path(mount.source).absolute())
            )
    if len(found) > MAX_PIPES:
        raise InvalidInput(f"{len(found)} named pipes are mounted, but at most {MAX_PIPES} can be.")
    return tuple(found)


def write_named_pipes(folder: Path, pipes: Iterable[NamedPipe]) -> None:
    """Write the file from which `wproxy relay` reads a container's pipes."""
    parts = (part for pipe in pipes for part in (pipe_request(pipe.name), bytes(pipe.path)))
    (folder / _PIPES_FILE).write_bytes(
        b"".join(struct.pack("<I", len(part)) + part for part in parts)
    )


async def start_pipe_relay(folder: Path) -> None:
    """Start the relay and wait until programs can open the pipes; no-op without pipes."""
    if not (folder / _PIPES_FILE).exists() or not (folder / _PIPES_FILE).stat().st_size:
        return
    command = in_own_cgroup([str(native_program(WPROXY)), "relay", str(folder)])
    try:
        async with asyncio.timeout(_RELAY_SECONDS):
            done = await run(command)
    except TimeoutError:
        raise NamedPipeFailed(f"not created within {_RELAY_SECONDS:.0f} s") from None
    if done.code:
        raise NamedPipeFailed(done.error_text)


_OUT_OF_MEMORY = 137
"""Wine reports exit code 0 for a program that the kernel killed."""
_MEMORY_EXHAUSTED = "the container exceeded its memory limit"
_MICROVM_ENDED = "the pod's microVM has ended"
_ISOLATION = "isolation"
"""The file with the isolation of a sandbox or a container."""


class WineBackend:
    def __init__(
        self, root: Path, base: Base, drivers: Mapping[Isolation, IsolationDriver]
    ) -> None:
        self._root = root
        self._base = base
        self._drivers = drivers
        self._deleted = DeferredDelete(root / "leavings", self._clear)

    async def open(self, known_ids: Collection[str]) -> None:
        await self._deleted.open()
        for kind in ("containers", "sandboxes"):
            for folder in (self._root / kind).glob("*"):
                if folder.name not in known_ids:
                    await self._clear(folder)
        (self._root / "pipes").mkdir(parents=True, exist_ok=True)
        for driver in self._drivers.values():
            await driver.open()

    async def close(self) -> None:
        await self._deleted.close()
        for driver in self._drivers.values():
            await driver.close()

    def describe(self) -> dict[str, object]:
        packages = self._base.packages
        wine = {name: version for name, version in packages.items() if "wine" in name}
        facts: dict[str, object] = {"kind": "wine", "base": self._base.id, "packages": wine}
        for driver in self._drivers.values():
            facts |= driver.describe()
        return facts

    def unavailable_reason(self, isolation: Isolation = Isolation.PROCESS) -> str:
        driver = self._drivers.get(isolation)
        return (
            driver.unavailable_reason() if driver else f"this runtime has no {isolation} isolation."
        )

    async def create_sandbox(self, spec: SandboxSpec) -> Path | None:
        folder = self._sandbox(spec.id)
        folder.mkdir(parents=True)
        (folder / _ISOLATION).write_text(spec.isolation)
        (folder / "asked.json").write_text(json.dumps(asdict(spec)))
        return await self._driver(folder).create_sandbox(spec, folder)

    def netns_ready(self, sandbox: str) -> None:
        folder = self._sandbox(sandbox)
        self._driver(folder).netns_ready(folder)

    async def network_ready(self, sandbox: str, interface: str, result: Mapping[str, Any]) -> None:
        folder = self._sandbox(sandbox)
        await self._driver(folder).network_ready(folder, interface, result)

    async def wait_sandbox_exit(self, sandbox: str) -> None:
        folder = self._sandbox(sandbox)
        await self._driver(folder).wait_dead(folder)

    async def cpu_count(self, sandbox: str) -> int:
        folder = self._sandbox(sandbox)
        return await self._driver(folder).cpu_count(folder)

    async def dial(
        self, sandbox: str, port: int, addresses: Sequence[str]
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        folder = self._sandbox(sandbox)
        return await self._driver(folder).dial(folder, port, addresses)

    async def remove_sandbox(self, sandbox: str) -> None:
        folder = self._sandbox(sandbox)
        await self._driver(folder).remove_sandbox(folder)
        await self._deleted.add(folder)

    async def resize_sandbox(self, sandbox: str, memory_bytes: int, processors: int) -> None:
        folder = self._sandbox(sandbox)
        await self._driver(folder).resize_sandbox(folder, memory_bytes, processors)

    async def create_container(self, config: ContainerConfig) -> None:
        sandbox_folder, folder = self._sandbox(config.sandbox), self._folder(config.id)
        driver = self._driver(sandbox_folder)
        if reason := driver.unavailable_reason():
            raise PrerequisiteMissing(reason)
        sandbox = self._sandbox_spec(config.sandbox)
        check_mounts(config.spec.mounts, sandbox.isolation)
        pipes = find_named_pipes(config.spec.mounts, self._root / "pipes")
        _write_container(folder, config, pipes, sandbox.isolation)
        silo = await driver.create_silo(config, sandbox_folder, folder / "shell")
        await driver.attach_rootfs(silo, config, sandbox, folder)
        build = registry_changes(self._base.prefix, driver.boot_build, config.build, config.layers)
        (folder / "registry").write_bytes(registry_frames([*build, *hostname_values(sandbox)]))
        (folder / "resolver").write_text(resolv_conf(sandbox))
        if pipes:
            await driver.wait_ready(silo)
            await start_pipe_relay(folder)

    async def start(self, container: str) -> None:
        folder = self._folder(container)
        driver = self._driver(folder)
        silo = driver.silo(folder / "shell")
        if silo.pid is None:
            raise SiloFailed("the silo ended after the container was created")
        try:
            await driver.wait_ready(silo)
            await driver.write_resolv_conf(silo, (folder / "resolver").read_text())
            await conmon.start_conmon(folder)
        except BaseException:
            await run_to_completion(driver.kill(folder / "shell"))
            raise

    async def signal(self, container: str, *, kill: bool) -> None:
        folder = self._folder(container)
        if kill:
            driver = self._driver(folder)
            if driver.is_alive(folder / "shell"):
                (folder / "killed").touch()
            await driver.kill(folder / "shell")
        elif pid := read_pid(folder / "program.pid"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    async def wait(self, container: str) -> ExitStatus:
        folder = self._folder(container)
        driver = self._driver(folder)
        await conmon.wait_exit(folder)
        end = conmon.read_exit_status(folder)
        if not conmon.has_exit_record(folder) and not driver.is_alive(folder / "shell"):
            end = replace(end, message=_MICROVM_ENDED)
        if (await driver.usage(driver.silo(folder / "shell"))).out_of_memory_kills:
            end = replace(
                end, code=end.code or _OUT_OF_MEMORY, reason="OOMKilled", message=_MEMORY_EXHAUSTED
            )
        await driver.kill(folder / "shell")
        return end

    async def was_started(self, container: str) -> bool:
        return await asyncio.to_thread(conmon.was_started, self._folder(container))

    async def is_running(self, container: str) -> bool:
        return conmon.is_running(self._folder(container))

    async def remove(self, container: str) -> None:
        folder = self._folder(container)
        await self._driver(folder).kill(folder / "shell")
        await conmon.wait_exit(folder)
        await asyncio.to_thread(idmapped_mounts.unmount, folder / "c")
        await self._deleted.add(folder)

    async def _clear(self, folder: Path) -> None:
        """Remove a container or a sandbox, also a partially created one."""
        driver = self._driver(folder)
        await driver.remove_sandbox(folder)
        await driver.destroy(folder / "shell")
        await asyncio.to_thread(idmapped_mounts.unmount, folder / "c")
        await asyncio.to_thread(remove_tree, folder)

    async def update(self, container: str, limits: ResourceLimits) -> None:
        folder = self._folder(container)
        driver = self._driver(folder)
        await driver.set_limits(driver.silo(folder / "shell"), limits)

    async def usage(self, container: str) -> ContainerUsage:
        folder = self._folder(container)
        driver = self._driver(folder)
        return await driver.usage(driver.silo(folder / "shell"))

    async def reopen_log(self, container: str) -> None:
        folder = self._folder(container)
        await reopen_log((folder / "log_path").read_text(), read_pid(folder / "program.pid"))

    async def exec_sync(self, container: str, command: Sequence[str], seconds: float) -> ExecOutput:
        folder = self._folder(container)
        program = exec_program(folder, command)
        async with asyncio.timeout(seconds or None):
            with self._explaining_failure(folder, program):
                finished = await self._agent(folder).run(program)
        return ExecOutput(finished.code, finished.output, finished.errors)

    async def exec(
        self, container: str, command: Sequence[str], *, terminal: TerminalSize | None, stdin: bool
    ) -> RunningProgram:
        folder = self._folder(container)
        program = replace(exec_program(folder, command), terminal=terminal, stdin=stdin)
        with self._explaining_failure(folder, program):
            return await self._agent(folder).start(program)

    @contextlib.contextmanager
    def _explaining_failure(self, folder: Path, program: Program) -> Iterator[None]:
        """If Windows refuses a program, check whether the base cannot run it, and say why."""
        try:
            yield
        except WindowsError as error:
            if drive := self._driver(folder).rootfs_path(folder):
                refuse_unsupported_binary(self._base, drive, program)
            error.reason = program_start_reason(error.number)
            raise

    async def attach(self, container: str, *, stdin: bool) -> AttachedStreams:
        folder = self._folder(container)
        started = (folder / "conmon.pid").exists()
        attach = AttachedStreams.connect if started else AttachedStreams.open_before_start
        return await attach(folder, stdin=stdin)

    def _agent(self, folder: Path) -> AgentClient:
        return self._driver(folder).silo(folder / "shell").agent

    def _driver(self, folder: Path) -> IsolationDriver:
        """Return the driver; without the file nothing was started, so process isolation does."""
        try:
            return self._drivers[Isolation((folder / _ISOLATION).read_text())]
        except (OSError, ValueError, KeyError):
            return self._drivers[Isolation.PROCESS]

    def _folder(self, container: str) -> Path:
        return self._root / "containers" / container

    def _sandbox(self, sandbox: str) -> Path:
        return self._root / "sandboxes" / sandbox

    def _sandbox_spec(self, sandbox: str) -> SandboxSpec:
        fields = json.loads((self._sandbox(sandbox) / "asked.json").read_text())
        return SandboxSpec(**{**fields, "isolation": Isolation(fields["isolation"])})


def _write_container(
    folder: Path, config: ContainerConfig, pipes: Sequence[NamedPipe], isolation: Isolation
) -> None:
    """Write the files that conmon, wproxy and a restarted daemon read."""
    for name in ("scratch", "exit", "c"):
        (folder / name).mkdir(parents=True)
    (folder / "run").symlink_to("shell/run")
    spec = config.spec
    stdio = {"tty": spec.tty, "stdin": spec.stdin, "stdin_stays": not spec.stdin_once}
    (folder / _ISOLATION).write_text(isolation)
    (folder / "start").write_bytes(container_program(spec).encode())
    (folder / "log_path").write_text(config.log_path)
    (folder / "log_limit").write_text(str(config.log_limit))
    write_named_pipes(folder, pipes)
    (folder / "stdio").write_text(" ".join(name for name, is_set in stdio.items() if is_set))
