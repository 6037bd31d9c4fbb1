"""Connection to an instance: batch scripts over SSH, files over SFTP.

One connection per instance, opened on first use and again after it was lost. Authentication is by
key only. Every wait has a timeout. Errors start with the name of the instance.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from types import TracebackType
from typing import Self

import asyncssh

from winpod.concurrency import run_to_completion
from winpod.errors import WinpodError
from winpod.instances.errors import InstanceUnreachable
from winpod.instances.ssh.login import HostKeys, SshLogin, open_connection
from winpod.instances.ssh.scripts import (
    ScriptSection,
    batch_file,
    decode_output,
    last_line,
    read_sections,
    sectioned_batch,
)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Timeouts and polling intervals, in seconds.

    `run` is the default for a script, `answer` that of a diagnostic command, `file` the time
    without progress of a file transfer. Of a reboot: `shutdown` until the host is down, `boot`
    until it is back, `progress` between two progress messages. `renew` is the renewal interval of
    the remote lock, `settle` the wait after taking over a stale one.
    """

    run: float = 300.0
    file: float = 120.0
    answer: float = 60.0
    poll: float = 1.0
    poll_restart: float = 2.0
    shutdown: float = 300.0
    boot: float = 1800.0
    progress: float = 60.0
    renew: float = 20.0
    settle: float = 1.0


class TransferFailed(WinpodError):
    """A file could not be copied to or from the instance."""

    code = "ABORTED"

    def __init__(self, instance: str, failure: str, error: asyncssh.SFTPError) -> None:
        why = error.reason.rstrip(".") or "no reason given"
        super().__init__(f"{instance}: {failure}: {why}.", _transfer_hint(error))


def to_sftp(path: str) -> str:
    r"""Convert `C:\k\bin` to the form of OpenSSH for Windows: `/C:/k/bin`."""
    return f"/{PureWindowsPath(path).as_posix()}"


def _transfer_hint(error: asyncssh.SFTPError) -> str:
    if isinstance(error, asyncssh.SFTPPermissionDenied):
        return "Check that the user is an administrator, and that no program has the file open."
    if isinstance(error, asyncssh.SFTPNoSpaceOnFilesystem | asyncssh.SFTPQuotaExceeded):
        return "Free space on drive C:, and run the command again."
    if isinstance(error, asyncssh.SFTPNoSuchFile):
        return "Check that its directory exists."
    return "Check that drive C: has free space and that no program has the file open."


CONNECT_SECONDS = 20.0
CLEANUP_SECONDS = 5.0
SWEEP_SECONDS = 86400.0
TEMPORARY = r"C:\Windows\Temp"
SCRIPT = "winpod-"
NEW_FILE_SUFFIX = ".winpod-new"


class CommandTimeout(InstanceUnreachable):
    """A command timed out; `output` is what it had printed until then."""

    reason = InstanceUnreachable.reason

    def __init__(self, instance: str, seconds: float, command_line: str, output: str) -> None:
        super().__init__(
            f"{instance}: `{command_line[:120]}` timed out after {seconds:.0f} seconds.",
            "Check the load of the machine, and try again.",
        )
        self.output = output


@dataclass(frozen=True, slots=True)
class CommandResult:
    """Output of a script. Exit code 0 does not prove success."""

    code: int
    output: str
    errors: str

    @property
    def last_line(self) -> str:
        return last_line(f"{self.output}\n{self.errors}")


class SshHost:
    """Connection to an instance. Use it with `async with`, which closes the connection."""

    def __init__(
        self,
        login: SshLogin,
        key: asyncssh.SSHKey,
        host_keys: HostKeys,
        timeouts: Timeouts | None = None,
    ) -> None:
        self.login = login
        self.timeouts = timeouts or Timeouts()
        self.name = login.name
        self._key = key
        self._host_keys = host_keys
        self._connection: asyncssh.SSHClientConnection | None = None
        self._sftp: asyncssh.SFTPClient | None = None
        self._connecting = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def with_key(self, key: asyncssh.SSHKey) -> SshHost:
        """Return a host object for the same instance with another key."""
        return SshHost(self.login, key, self._host_keys, self.timeouts)

    async def close(self) -> None:
        connection, self._connection, self._sftp = self._connection, None, None
        if connection is None:
            return
        connection.close()
        try:
            async with asyncio.timeout(CLEANUP_SECONDS):
                await connection.wait_closed()
        except (TimeoutError, OSError, asyncssh.Error):
            connection.abort()

    @property
    def is_connected(self) -> bool:
        return self._connection is not None and not self._connection.is_closed()

    async def connect(self, seconds: float = CONNECT_SECONDS) -> asyncssh.SSHClientConnection:
        async with self._connecting:
            if self._connection is None or self._connection.is_closed():
                self._sftp = None
                self._connection = await open_connection(
                    self.login, self._key, self._host_keys, seconds
                )
            return self._connection

    async def run(self, lines: Sequence[str], seconds: float | None = None) -> CommandResult:
        """Run these lines as a temporary batch file."""
        return await self._run(batch_file(lines), seconds or self.timeouts.run, lines[0])

    async def run_sections(
        self, parts: Iterable[Sequence[str]], seconds: float | None = None
    ) -> list[ScriptSection]:
        """Run several parts in one script, and return the output of each."""
        sections, seconds = list(parts), seconds or self.timeouts.run
        script, marker = sectioned_batch(sections)
        try:
            answer = await self._run(script, seconds, "")
        except CommandTimeout as timeout:
            command_line = sections[timeout.output.count(marker)][0]
            raise CommandTimeout(self.name, seconds, command_line, timeout.output) from timeout
        try:
            return read_sections(answer.output, marker, len(sections))
        except WinpodError as error:
            stderr = f" {last_line(answer.errors)}." if answer.errors.strip() else ""
            raise type(error)(f"{self.name}: {error.message}{stderr}", error.hint) from error

    async def put(self, path: str, content: bytes | Path) -> None:
        """Write a file; `path` is a Windows path in an existing directory."""
        limit = asyncio.timeout(self.timeouts.file)
        async with self._files(f"{path} could not be written", limit) as sftp:
            if isinstance(content, bytes):
                async with sftp.open(to_sftp(path), "wb") as file:
                    await file.write(content)
            else:
                await sftp.put(
                    content,
                    to_sftp(path),
                    sparse=False,
                    progress_handler=_extend_on_progress(limit, self.timeouts.file),
                )

    async def overwrite(self, path: str, content: bytes) -> None:
        """Overwrite a file in place: its ACL stays, and it is never empty."""
        failure = f"{path} could not be written"
        async with self._files(failure) as sftp, sftp.open(to_sftp(path), "r+b") as file:
            await file.write(content, 0)
            await file.truncate(len(content))

    async def create(self, path: str, content: bytes) -> bool:
        """Create a file if it does not exist; report whether it was created."""
        async with self._files(f"{path} could not be created") as sftp:
            try:
                async with sftp.open(to_sftp(path), "xb") as file:
                    await file.write(content)
            except asyncssh.SFTPError:
                if await sftp.exists(to_sftp(path)):
                    return False
                raise
        return True

    async def get(self, path: str, last: int = -1) -> bytes | None:
        """Return the content of a file, or its last bytes; None if it does not exist."""
        async with self._files(f"{path} could not be read") as sftp:
            try:
                async with sftp.open(to_sftp(path), "rb") as file:
                    size = (await file.stat()).size or 0
                    content: bytes = await file.read(last, max(0, size - last) if last > 0 else 0)
                    return content
            except asyncssh.SFTPNoSuchFile:
                return None

    async def modified(self, path: str) -> float | None:
        """Return the modification time by the instance's clock; None if the file does not exist."""
        async with self._files(f"{path} could not be read") as sftp:
            try:
                return (await sftp.stat(to_sftp(path))).mtime
            except asyncssh.SFTPNoSuchFile:
                return None

    async def list_directory(self, path: str) -> list[str]:
        """List the names in a directory; empty if it does not exist."""
        async with self._files(f"{path} could not be listed") as sftp:
            try:
                names = await sftp.listdir(to_sftp(path))
            except asyncssh.SFTPNoSuchFile:
                return []
            return sorted(str(name) for name in names if name not in (".", ".."))

    async def remove_stale_scripts(self, older_than: float = SWEEP_SECONDS) -> None:
        """Remove scripts left by processes that were killed, or by a reboot."""
        async with self._files(f"{TEMPORARY} could not be cleaned") as sftp:
            entries = await sftp.readdir(to_sftp(TEMPORARY))
        for entry in entries:
            name = str(entry.filename)
            is_old = (entry.attrs.mtime or 0) < time.time() - older_than
            if name.startswith(SCRIPT) and is_old:
                await self.remove(rf"{TEMPORARY}\{name}")

    async def remove(self, path: str) -> None:
        """Remove a file if it exists."""
        async with self._files(f"{path} could not be removed") as sftp:
            with suppress(asyncssh.SFTPNoSuchFile):
                await sftp.remove(to_sftp(path))

    async def _run(self, script: bytes, seconds: float, command_line: str) -> CommandResult:
        path = rf"{TEMPORARY}\{SCRIPT}{secrets.token_hex(8)}.cmd"
        try:
            await self.put(path, script)
            return await self._execute(f"cmd.exe /d /c {path}", seconds, command_line)
        finally:
            await self.remove_quietly(path)

    async def _execute(self, command: str, seconds: float, command_line: str) -> CommandResult:
        connection = await self.connect()
        partial_output = b""
        try:
            async with asyncio.timeout(seconds), _process(connection, command) as process:
                try:
                    output, errors = await process.communicate()
                except asyncio.CancelledError:
                    partial_output, _ = process.collect_output()
                    raise
        except TimeoutError as error:
            raise CommandTimeout(
                self.name, seconds, command_line, decode_output(partial_output)
            ) from error
        except (OSError, asyncssh.Error) as error:
            raise self._lost(error) from error
        code = process.returncode
        if code is None:
            raise self._lost(EOFError("the connection ended before the command did"))
        return CommandResult(code, decode_output(output or b""), decode_output(errors or b""))

    async def remove_quietly(self, path: str) -> None:
        """Remove a file even if the caller is cancelled; do nothing if the connection is lost."""
        if self._connection is None or self._connection.is_closed():
            return
        with suppress(WinpodError, TimeoutError):
            await run_to_completion(asyncio.wait_for(self.remove(path), CLEANUP_SECONDS))

    @asynccontextmanager
    async def _files(
        self, failure: str, limit: asyncio.Timeout | None = None
    ) -> AsyncIterator[asyncssh.SFTPClient]:
        connection = await self.connect()
        try:
            async with limit or asyncio.timeout(self.timeouts.file):
                if self._sftp is None:
                    self._sftp = await connection.start_sftp_client()
                yield self._sftp
        except TimeoutError as error:
            raise self._lost(
                f"{failure}: no progress for {self.timeouts.file:.0f} seconds"
            ) from error
        except (asyncssh.SFTPConnectionLost, asyncssh.SFTPNoConnection) as error:
            raise self._lost(error) from error
        except asyncssh.SFTPError as error:
            raise TransferFailed(self.name, failure, error) from error
        except (OSError, asyncssh.Error) as error:
            raise self._lost(error) from error

    def _lost(self, error: Exception | str) -> InstanceUnreachable:
        if self._connection is not None:
            self._connection.abort()
        self._connection, self._sftp = None, None
        return InstanceUnreachable(
            f"{self.name}: the connection to {self.login.address} was lost: {error}.",
            "Completed steps are kept; run the command again to continue.",
        )


def _extend_on_progress(
    limit: asyncio.Timeout, seconds: float
) -> asyncssh.sftp.SFTPProgressHandler:
    """Extend the time limit with every chunk: a file that makes progress may take any time."""
    loop = asyncio.get_running_loop()
    return lambda *_: limit.reschedule(loop.time() + seconds)


@asynccontextmanager
async def _process(
    connection: asyncssh.SSHClientConnection, command: str
) -> AsyncIterator[asyncssh.SSHClientProcess[bytes]]:
    process = await connection.create_process(command, stdin=asyncssh.DEVNULL, encoding=None)
    try:
        yield process
    finally:
        process.close()
