"""SSH server in this process, for a user with a key, with a folder as drive C:.

The test provides the output of scripts: there is no Windows behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import asyncssh

from winpod.instances.ssh.host import SshHost, Timeouts
from winpod.instances.ssh.login import HostKeys, MemoryHostKeys, SshLogin

USER = "Administrator"
SHORT = Timeouts(poll=0.01, poll_restart=0.02, progress=0.1, renew=0.05, settle=0.01)
"""Short delays; timeouts are those of production."""
AUTHORIZED = r"C:\ProgramData\ssh\administrators_authorized_keys"
Reply = Callable[[str], Awaitable[tuple[bytes, bytes, int]]]


@dataclass
class SshServer:
    folder: Path
    key: asyncssh.SSHKey
    host_key: asyncssh.SSHKey
    port: int = 0
    commands: list[str] = field(default_factory=list)
    scripts: list[str] = field(default_factory=list)
    connections: list[asyncssh.SSHServerConnection] = field(default_factory=list)
    printing: list[asyncssh.SSHWriter[bytes]] = field(default_factory=list)

    def host(
        self,
        *,
        host_keys: HostKeys | None = None,
        key: asyncssh.SSHKey | None = None,
        user: str = USER,
        port: int = 0,
        timeouts: Timeouts = SHORT,
    ) -> SshHost:
        login = SshLogin("win-1", "127.0.0.1", user, port or self.port)
        return SshHost(login, key or self.key, host_keys or MemoryHostKeys(), timeouts)

    def local(self, path: str) -> Path:
        return self.folder / path.replace("\\", "/")

    def opens(self, key: asyncssh.SSHKey) -> bool:
        """Return whether the key is authorized, by the authorized keys file if it exists."""
        listed = self.local(AUTHORIZED)
        if not listed.exists():
            return key == self.key.convert_to_public()
        return key.export_public_key().split()[1] in listed.read_bytes().split()


async def empty_reply(script: str) -> tuple[bytes, bytes, int]:
    del script
    return b"", b"", 0


@asynccontextmanager
async def ssh_server(
    folder: Path,
    reply: Reply = empty_reply,
    *,
    address: str = "127.0.0.1",
    port: int = 0,
    host_key: asyncssh.SSHKey | None = None,
    files: type[asyncssh.SFTPServer] = asyncssh.SFTPServer,
) -> AsyncIterator[SshServer]:
    (folder / "C:" / "Windows" / "Temp").mkdir(parents=True, exist_ok=True)
    key, new = (asyncssh.generate_private_key("ssh-ed25519") for _ in range(2))
    server = SshServer(folder, key, host_key or new)

    async def run(process: asyncssh.SSHServerProcess[bytes]) -> None:
        command = process.command or ""
        script = server.local(command.rpartition(" ")[2]).read_text()
        server.commands.append(command)
        server.scripts.append(script)
        server.printing.append(process.stdout)
        output, errors, code = await reply(script)
        process.stdout.write(output)
        process.stderr.write(errors)
        process.exit(code)

    class Authentication(asyncssh.SSHServer):
        def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
            server.connections.append(conn)

        def begin_auth(self, username: str) -> bool:
            del username
            return True

        def public_key_auth_supported(self) -> bool:
            return True

        def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
            return username == USER and server.opens(key)

    listener = await asyncssh.listen(
        address,
        port,
        server_factory=Authentication,
        server_host_keys=[server.host_key],
        process_factory=run,
        sftp_factory=lambda chan: files(chan, chroot=bytes(folder)),
        encoding=None,
    )
    server.port = listener.get_port()
    try:
        yield server
    finally:
        listener.close()
        for connection in server.connections:
            connection.abort()
        await asyncio.wait_for(listener.wait_closed(), 60)
