r"""An instance over SSH: scripts run there, and files put and got.

One connection each, made when it is first needed and again after it was lost. Keys only, no
passwords. Nothing is waited for without an end. Whatever goes wrong on the way is a sentence that
begins with the instance's name.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import asyncssh

from winpod.instances.errors import Unreachable
from winpod.instances.remote.host_keys import HostKeys
from winpod.instances.remote.login import Login, log_in
from winpod.instances.remote.patience import Patience
from winpod.instances.remote.scripts import (
    Section,
    batch,
    decode,
    in_sections,
    last_line,
    read_sections,
)
from winpod.instances.remote.transfers import TransferFailed, to_sftp
from winpod.windows.errors import WinpodError

CONNECT_SECONDS = 20.0
TIDY_SECONDS = 5.0
SWEEP_SECONDS = 86400.0
TEMPORARY = r"C:\Windows\Temp"
SCRIPT = "winpod-"
NEW = ".winpod-new"


class TookTooLong(Unreachable):
    """A command did not end in its time; `output` is what it had printed by then."""

    def __init__(self, instance: str, seconds: float, doing: str, output: str) -> None:
        super().__init__(
            f"{instance}: `{doing[:120]}` had not ended after {seconds:.0f} seconds.",
            "See what the machine is busy with, and try again.",
        )
        self.output = output


@dataclass(frozen=True, slots=True)
class Answer:
    """What a script printed; a code of 0 proves nothing."""

    code: int
    output: str
    errors: str

    @property
    def last_line(self) -> str:
        return last_line(f"{self.output}\n{self.errors}")


class Host:
    """An instance that is spoken to. Used in `async with`, which closes the connection."""

    def __init__(
        self,
        login: Login,
        key: asyncssh.SSHKey,
        host_keys: HostKeys,
        patience: Patience | None = None,
    ) -> None:
        self.login = login
        self.patience = patience or Patience()
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

    def opened_with(self, key: asyncssh.SSHKey) -> Host:
        """The same instance, for whoever has another key."""
        return Host(self.login, key, self._host_keys, self.patience)

    async def close(self) -> None:
        connection, self._connection, self._sftp = self._connection, None, None
        if connection is None:
            return
        connection.close()
        try:
            async with asyncio.timeout(TIDY_SECONDS):
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
                self._connection = await log_in(self.login, self._key, self._host_keys, seconds)
            return self._connection

    async def run(self, lines: Sequence[str], seconds: float | None = None) -> Answer:
        """Run a batch file of these lines, and forget it."""
        return await self._run(batch(lines), seconds or self.patience.run, lines[0])

    async def ask(
        self, parts: Iterable[Sequence[str]], seconds: float | None = None
    ) -> list[Section]:
        """Run several parts in one go, and tell what each printed."""
        listed, seconds = list(parts), seconds or self.patience.run
        script, mark = in_sections(listed)
        try:
            answer = await self._run(script, seconds, "")
        except TookTooLong as late:
            doing = listed[late.output.count(mark)][0]
            raise TookTooLong(self.name, seconds, doing, late.output) from late
        try:
            return read_sections(answer.output, mark, len(listed))
        except WinpodError as error:
            more = f" {last_line(answer.errors)}." if answer.errors.strip() else ""
            raise type(error)(f"{self.name}: {error.sentence}{more}", error.advice) from error

    async def put(self, path: str, content: bytes | Path) -> None:
        """Write a file as it is; `path` is a Windows path in a directory that exists."""
        limit = asyncio.timeout(self.patience.file)
        async with self._files(f"{path} could not be written", limit) as sftp:
            if isinstance(content, bytes):
                async with sftp.open(to_sftp(path), "wb") as file:
                    await file.write(content)
            else:
                await sftp.put(
                    content,
                    to_sftp(path),
                    sparse=False,
                    progress_handler=_put_off(limit, self.patience.file),
                )

    async def rewrite(self, path: str, content: bytes) -> None:
        """Write over a file where it is: its rights stay, and it is at no moment empty."""
        failure = f"{path} could not be written"
        async with self._files(failure) as sftp, sftp.open(to_sftp(path), "r+b") as file:
            await file.write(content, 0)
            await file.truncate(len(content))

    async def create(self, path: str, content: bytes) -> bool:
        """Whether the file was made; where there is one already, it stays as it is."""
        async with self._files(f"{path} could not be made") as sftp:
            try:
                async with sftp.open(to_sftp(path), "xb") as file:
                    await file.write(content)
            except asyncssh.SFTPError:
                if await sftp.exists(to_sftp(path)):
                    return False
                raise
        return True

    async def get(self, path: str, last: int = -1) -> bytes | None:
        """The content of a file, or its last bytes, or None where there is no file."""
        async with self._files(f"{path} could not be read") as sftp:
            try:
                async with sftp.open(to_sftp(path), "rb") as file:
                    size = (await file.stat()).size or 0
                    content: bytes = await file.read(last, max(0, size - last) if last > 0 else 0)
                    return content
            except asyncssh.SFTPNoSuchFile:
                return None

    async def modified(self, path: str) -> float | None:
        """When a file was written last, by the instance's clock; None where there is none."""
        async with self._files(f"{path} could not be read") as sftp:
            try:
                return (await sftp.stat(to_sftp(path))).mtime
            except asyncssh.SFTPNoSuchFile:
                return None

    async def names_in(self, path: str) -> list[str]:
        """The names in a directory; none where there is no directory."""
        async with self._files(f"{path} could not be listed") as sftp:
            try:
                names = await sftp.listdir(to_sftp(path))
            except asyncssh.SFTPNoSuchFile:
                return []
            return sorted(str(name) for name in names if name not in (".", ".."))

    async def sweep(self, older_than: float = SWEEP_SECONDS) -> None:
        """Remove scripts that somebody left who was killed, or who restarted the host."""
        async with self._files(f"{TEMPORARY} could not be swept") as sftp:
            found = await sftp.readdir(to_sftp(TEMPORARY))
        for entry in found:
            name = str(entry.filename)
            is_old = (entry.attrs.mtime or 0) < time.time() - older_than
            if name.startswith(SCRIPT) and is_old:
                await self.remove(rf"{TEMPORARY}\{name}")

    async def remove(self, path: str) -> None:
        """Remove a file, if it is there."""
        async with self._files(f"{path} could not be removed") as sftp:
            with suppress(asyncssh.SFTPNoSuchFile):
                await sftp.remove(to_sftp(path))

    async def _run(self, script: bytes, seconds: float, doing: str) -> Answer:
        path = rf"{TEMPORARY}\{SCRIPT}{secrets.token_hex(8)}.cmd"
        try:
            await self.put(path, script)
            return await self._execute(f"cmd.exe /d /c {path}", seconds, doing)
        finally:
            await self.tidy(path)

    async def _execute(self, command: str, seconds: float, doing: str) -> Answer:
        connection = await self.connect()
        said = b""
        try:
            async with asyncio.timeout(seconds), _process(connection, command) as process:
                try:
                    output, errors = await process.communicate()
                except asyncio.CancelledError:
                    said, _ = process.collect_output()
                    raise
        except TimeoutError as error:
            raise TookTooLong(self.name, seconds, doing, decode(said)) from error
        except (OSError, asyncssh.Error) as error:
            raise self._lost(error) from error
        code = process.returncode
        if code is None:
            raise self._lost(EOFError("the connection ended before the command did"))
        return Answer(code, decode(output or b""), decode(errors or b""))

    async def tidy(self, path: str) -> None:
        """Remove a file even when the caller is cancelled; a host that is lost keeps it."""
        if self._connection is None or self._connection.is_closed():
            return
        removal = asyncio.ensure_future(asyncio.wait_for(self.remove(path), TIDY_SECONDS))
        with suppress(WinpodError, TimeoutError):
            await asyncio.shield(removal)

    @asynccontextmanager
    async def _files(
        self, failure: str, limit: asyncio.Timeout | None = None
    ) -> AsyncIterator[asyncssh.SFTPClient]:
        connection = await self.connect()
        try:
            async with limit or asyncio.timeout(self.patience.file):
                if self._sftp is None:
                    self._sftp = await connection.start_sftp_client()
                yield self._sftp
        except TimeoutError as error:
            raise self._lost(
                f"{failure}: nothing was heard for {self.patience.file:.0f} seconds"
            ) from error
        except (asyncssh.SFTPConnectionLost, asyncssh.SFTPNoConnection) as error:
            raise self._lost(error) from error
        except asyncssh.SFTPError as error:
            raise TransferFailed(self.name, failure, error) from error
        except (OSError, asyncssh.Error) as error:
            raise self._lost(error) from error

    def _lost(self, error: Exception | str) -> Unreachable:
        if self._connection is not None:
            self._connection.abort()
        self._connection, self._sftp = None, None
        return Unreachable(
            f"{self.name}: the connection to {self.login.address} was lost: {error}.",
            "What was done stays done; run the same again to go on.",
        )


def _put_off(limit: asyncio.Timeout, seconds: float) -> asyncssh.sftp.SFTPProgressHandler:
    """As long as a file moves on, it may take any time."""
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
