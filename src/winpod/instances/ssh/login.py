"""SSH login with a private key, and pinning of host keys.

A host key is trusted on first use and pinned once the login has succeeded. Keys are stored in
OpenSSH's public key format without a comment: by the CLI in a file, by the operator in the status
of each instance.
"""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import asyncssh

from winpod.errors import InvalidInput, WinpodError
from winpod.files import user_home
from winpod.instances.errors import HostKeyChanged, InstanceUnreachable, LoginRefused


class HostKeys(Protocol):
    def pinned(self, instance: str) -> str | None:
        """Return the pinned key, if any."""

    def pin(self, instance: str, key: str) -> None:
        """Pin a key. Called once, after the first successful login."""


class MemoryHostKeys:
    def __init__(self) -> None:
        self._keys: dict[str, str] = {}

    def pinned(self, instance: str) -> str | None:
        return self._keys.get(instance)

    def pin(self, instance: str, key: str) -> None:
        self._keys[instance] = key


class KnownHostsFile:
    """Lines of instance and key, like OpenSSH's known_hosts."""

    def __init__(self, file: Path | None = None) -> None:
        self.file = file or default_file()

    def pinned(self, instance: str) -> str | None:
        return self._read().get(instance)

    def pin(self, instance: str, key: str) -> None:
        self._write(self._read() | {instance: key})

    def forget(self, instance: str) -> str | None:
        """Remove a pinned key, so that the next one is trusted."""
        keys = self._read()
        forgotten = keys.pop(instance, None)
        if forgotten:
            self._write(keys)
        return forgotten

    def _read(self) -> dict[str, str]:
        try:
            text = self.file.read_text()
        except FileNotFoundError:
            return {}
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInput(
                f"the host keys in {self.file} cannot be read: {error}.",
                "Check the file's permissions, or move it away to trust all hosts again.",
            ) from error
        pairs = (line.partition(" ") for line in text.splitlines())
        return {name: key.strip() for name, _, key in pairs if name and key.strip()}

    def _write(self, keys: dict[str, str]) -> None:
        """Replace the file atomically: a truncated file would trust any host."""
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(
                "w", dir=self.file.parent, prefix=".host_keys", delete=False
            ) as new:
                new.writelines(f"{name} {key}\n" for name, key in sorted(keys.items()))
            Path(new.name).replace(self.file)
        except OSError as error:
            raise InvalidInput(
                f"the host keys in {self.file} cannot be written: {error}.",
                "Check the permissions of the directory, and that the disk has free space.",
            ) from error


def default_file() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME", "")
    home = Path(base) if Path(base).is_absolute() else user_home() / ".config"
    return home / "winpod" / "host_keys"


PORT = 22
KEEPALIVE_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class SshLogin:
    """Address and user of an instance. `name` identifies it in messages."""

    name: str
    address: str
    user: str
    port: int = PORT


def read_key(text: bytes, description: str = "the private key") -> asyncssh.SSHKey:
    try:
        return asyncssh.import_private_key(text)
    except (asyncssh.KeyImportError, asyncssh.KeyEncryptionError) as error:
        raise InvalidInput(
            f"{description} cannot be read: {error}.",
            "Use a private key without a passphrase, as `ssh-keygen -N ''` writes it.",
        ) from error


async def open_connection(
    login: SshLogin, key: asyncssh.SSHKey, host_keys: HostKeys, seconds: float
) -> asyncssh.SSHClientConnection:
    pinned = host_keys.pinned(login.name)
    verifier = _HostKeyVerifier(trust=pinned is None)
    trusted = [_read_pinned(login, pinned)] if pinned else []
    try:
        async with asyncio.timeout(seconds):
            connection = await asyncssh.connect(
                login.address,
                login.port,
                client_factory=lambda: verifier,
                username=login.user,
                client_keys=[key],
                known_hosts=(trusted, [], []),
                agent_path=None,
                config=None,
                preferred_auth="publickey",
                keepalive_interval=KEEPALIVE_SECONDS,
                encoding=None,
            )
    except TimeoutError as error:
        raise _unreachable(login, f"no answer within {seconds:.0f} seconds") from error
    except asyncssh.PermissionDenied as error:
        raise LoginRefused(
            f"{login.name}: {login.address} rejects the user {login.user} with this key.",
            "Add its public key to the user's authorized_keys (for administrators: "
            r"C:\ProgramData\ssh\administrators_authorized_keys), or correct the user.",
        ) from error
    except (asyncssh.HostKeyNotVerifiable, asyncssh.KeyExchangeFailed) as error:
        raise _host_key_error(login, pinned, verifier.seen, error) from error
    except OSError as error:
        raise _unreachable(login, _reason(error)) from error
    except asyncssh.Error as error:
        raise _unreachable(login, str(error)) from error
    if pinned is None and verifier.seen is not None:
        host_keys.pin(login.name, _public_line(verifier.seen))
    return connection


def _reason(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return error.strerror or str(error)
    return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)


class _HostKeyVerifier(asyncssh.SSHClient):
    """Records the key of an unknown host, and accepts it if `trust` is set."""

    def __init__(self, *, trust: bool) -> None:
        self.trust = trust
        self.seen: asyncssh.SSHKey | None = None

    def validate_host_public_key(
        self, host: str, addr: str, port: int, key: asyncssh.SSHKey
    ) -> bool:
        del host, addr, port
        self.seen = key
        return self.trust


def _unreachable(login: SshLogin, why: str) -> InstanceUnreachable:
    return InstanceUnreachable(
        f"{login.name}: {login.address} port {login.port} cannot be reached: {why.rstrip('.')}.",
        "Check that the machine runs, has OpenSSH Server, and that its firewall allows SSH.",
    )


def _host_key_error(
    login: SshLogin, pinned: str | None, seen: asyncssh.SSHKey | None, error: Exception
) -> WinpodError:
    if pinned is None:
        return _unreachable(login, str(error))
    fingerprint = seen.get_fingerprint() if seen else "none of that kind"
    expected = _read_pinned(login, pinned).get_fingerprint()
    return HostKeyChanged(
        f"{login.name}: the host key of {login.address} changed: it is {fingerprint}, "
        f"and {expected} is pinned.",
        f"If the machine was reinstalled, trust it again: winpod instance trust {login.name}",
    )


def _read_pinned(login: SshLogin, pinned: str) -> asyncssh.SSHKey:
    try:
        return asyncssh.import_public_key(pinned)
    except asyncssh.KeyImportError as error:
        raise InvalidInput(
            f"{login.name}: the pinned host key cannot be read: {error}.",
            f"If only you can have changed it, remove it: winpod instance trust {login.name}",
        ) from error


def _public_line(key: asyncssh.SSHKey) -> str:
    algorithm, encoded, *_ = key.export_public_key().decode().split()
    return f"{algorithm} {encoded}"
