"""Logging in to an instance: with a key only, at the machine that was pinned, or a sentence.

A host key that is seen for the first time is pinned once the login has gone well.
"""

from __future__ import annotations

import asyncio
import os
import socket
from dataclasses import dataclass

import asyncssh

from winpod.instances.errors import HostKeyChanged, LoginRefused, Unreachable
from winpod.instances.remote.host_keys import HostKeys
from winpod.windows.errors import InvalidInput, WinpodError

PORT = 22
KEEPALIVE_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Login:
    """Where an instance is, and who comes. Its name is what people know it by."""

    name: str
    address: str
    user: str
    port: int = PORT


def read_key(text: bytes, what: str = "the private key") -> asyncssh.SSHKey:
    try:
        return asyncssh.import_private_key(text)
    except (asyncssh.KeyImportError, asyncssh.KeyEncryptionError) as error:
        raise InvalidInput(
            f"{what} cannot be read: {error}.",
            "Use a private key without a passphrase, as `ssh-keygen -N ''` writes it.",
        ) from error


async def log_in(
    login: Login, key: asyncssh.SSHKey, host_keys: HostKeys, seconds: float
) -> asyncssh.SSHClientConnection:
    pinned = host_keys.known(login.name)
    watcher = _Watcher(trust=pinned is None)
    trusted = [_read_pinned(login, pinned)] if pinned else []
    try:
        async with asyncio.timeout(seconds):
            connection = await asyncssh.connect(
                login.address,
                login.port,
                client_factory=lambda: watcher,
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
        raise _unreachable(login, f"nobody answered within {seconds:.0f} seconds") from error
    except asyncssh.PermissionDenied as error:
        raise LoginRefused(
            f"{login.name}: {login.address} does not let {login.user} in with this key.",
            "Add its public key to the user's authorized_keys (for administrators: "
            r"C:\ProgramData\ssh\administrators_authorized_keys), or correct the user.",
        ) from error
    except (asyncssh.HostKeyNotVerifiable, asyncssh.KeyExchangeFailed) as error:
        raise _not_trusted(login, pinned, watcher.seen, error) from error
    except OSError as error:
        raise _unreachable(login, _reason(error)) from error
    except asyncssh.Error as error:
        raise _unreachable(login, str(error)) from error
    if pinned is None and watcher.seen is not None:
        host_keys.remember(login.name, _written(watcher.seen))
    return connection


def _reason(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return error.strerror or str(error)
    return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)


class _Watcher(asyncssh.SSHClient):
    """Sees the key of a host that is not known, and says whether to go on."""

    def __init__(self, *, trust: bool) -> None:
        self.trust = trust
        self.seen: asyncssh.SSHKey | None = None

    def validate_host_public_key(
        self, host: str, addr: str, port: int, key: asyncssh.SSHKey
    ) -> bool:
        del host, addr, port
        self.seen = key
        return self.trust


def _unreachable(login: Login, why: str) -> Unreachable:
    return Unreachable(
        f"{login.name}: {login.address} port {login.port} cannot be reached: {why.rstrip('.')}.",
        "See that the machine runs, has the OpenSSH server, and that its firewall lets you in.",
    )


def _not_trusted(
    login: Login, pinned: str | None, seen: asyncssh.SSHKey | None, error: Exception
) -> WinpodError:
    if pinned is None:
        return _unreachable(login, str(error))
    found = seen.get_fingerprint() if seen else "none of that kind"
    known = _read_pinned(login, pinned).get_fingerprint()
    return HostKeyChanged(
        f"{login.name}: another machine may answer at {login.address}: its host key is {found}, "
        f"and {known} was seen before.",
        f"If the machine was made anew, trust it again: winpod instance trust {login.name}",
    )


def _read_pinned(login: Login, pinned: str) -> asyncssh.SSHKey:
    try:
        return asyncssh.import_public_key(pinned)
    except asyncssh.KeyImportError as error:
        raise InvalidInput(
            f"{login.name}: the host key that was pinned cannot be read: {error}.",
            f"If nobody but you can have changed it, forget it: winpod instance trust {login.name}",
        ) from error


def _written(key: asyncssh.SSHKey) -> str:
    algorithm, encoded, *_ = key.export_public_key().decode().split()
    return f"{algorithm} {encoded}"
