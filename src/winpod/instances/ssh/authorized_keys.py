"""The private key of instances, and its rotation.

The new key is tried first. If an instance does not accept it yet, the previous key, if still known,
adds it; once the new key has been used, the line of the previous one is removed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import asyncssh

from winpod.instances.ssh.host import SshHost
from winpod.instances.ssh.login import read_key

AUTHORIZED = r"C:\ProgramData\ssh\administrators_authorized_keys"


@dataclass(frozen=True, slots=True)
class SshKeys:
    """`old` is the previous key, if this process has seen it."""

    now: asyncssh.SSHKey | None = field(default=None, repr=False)
    old: asyncssh.SSHKey | None = field(default=None, repr=False)


def read_keys(data: bytes, current: SshKeys) -> SshKeys:
    new = read_key(data)
    if current.now is None or public_line(new) == public_line(current.now):
        return SshKeys(new, current.old)
    return SshKeys(new, current.now)


def public_line(key: asyncssh.SSHKey) -> str:
    """Return the line for authorized_keys, without a comment."""
    return " ".join(key.export_public_key().decode().split()[:2])


def authorized_files(user: str) -> tuple[str, str]:
    """Return the key files: one shared by all administrators, and the user's own."""
    return AUTHORIZED, rf"C:\Users\{user.rpartition(chr(92))[2]}\.ssh\authorized_keys"


def with_line(content: bytes, line: str) -> bytes:
    lines = _lines(content)
    return content if _contains(lines, line) else _join_lines([*lines, line])


def without_line(content: bytes, line: str) -> bytes:
    lines = _lines(content)
    return (
        _join_lines(entry for entry in lines if not _matches(entry, line))
        if _contains(lines, line)
        else content
    )


async def authorize_key(host: SshHost, line: str) -> None:
    """Add a key to the files that are in use."""
    for path in authorized_files(host.login.user):
        content = await host.get(path)
        if content and (new := with_line(content, line)) != content:
            await host.overwrite(path, new)


async def revoke_key(host: SshHost, line: str) -> bool:
    """Remove a key; report whether it was present."""
    removed = False
    for path in authorized_files(host.login.user):
        content = await host.get(path)
        if content and (new := without_line(content, line)) != content:
            await host.overwrite(path, new)
            removed = True
    return removed


def _lines(content: bytes) -> list[str]:
    return content.decode("utf-8-sig", errors="surrogateescape").splitlines()


def _join_lines(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\r\n" for line in lines).encode("utf-8", errors="surrogateescape")


def _contains(lines: Iterable[str], line: str) -> bool:
    return any(_matches(entry, line) for entry in lines)


def _matches(entry: str, line: str) -> bool:
    """Compare by the key itself, whatever options or comment the line has."""
    fields, key_fields = entry.split(), line.split()
    return key_fields[1] in fields and not entry.lstrip().startswith("#")
