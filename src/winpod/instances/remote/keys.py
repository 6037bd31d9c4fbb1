"""The key that opens instances, and how another takes its place.

The new key is tried first. Where an instance does not know it yet, the old one, as long as anybody
has it, lets it in; and once the new one has opened the instance, the old one's line is removed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import asyncssh

from winpod.instances.remote.login import read_key
from winpod.instances.remote.ssh import Host

AUTHORIZED = r"C:\ProgramData\ssh\administrators_authorized_keys"


@dataclass(frozen=True, slots=True)
class Keys:
    """`old` is the one before, where this process has seen it."""

    now: asyncssh.SSHKey | None = field(default=None, repr=False)
    old: asyncssh.SSHKey | None = field(default=None, repr=False)


def read_keys(text: bytes, before: Keys) -> Keys:
    new = read_key(text)
    if before.now is None or public_line(new) == public_line(before.now):
        return Keys(new, before.old)
    return Keys(new, before.now)


def public_line(key: asyncssh.SSHKey) -> str:
    """As authorized_keys has it, without a comment."""
    return " ".join(key.export_public_key().decode().split()[:2])


def authorized_files(user: str) -> tuple[str, str]:
    """Administrators' keys are in one file for all of them; others have their own."""
    return AUTHORIZED, rf"C:\Users\{user.rpartition(chr(92))[2]}\.ssh\authorized_keys"


def with_line(content: bytes, line: str) -> bytes:
    lines = _lines(content)
    return content if _has(lines, line) else _joined([*lines, line])


def without_line(content: bytes, line: str) -> bytes:
    lines = _lines(content)
    return _joined(one for one in lines if not _is(one, line)) if _has(lines, line) else content


async def add_line(host: Host, line: str) -> None:
    """Into the files that open it already."""
    for path in authorized_files(host.login.user):
        content = await host.get(path)
        if content and (new := with_line(content, line)) != content:
            await host.rewrite(path, new)


async def remove_line(host: Host, line: str) -> bool:
    """Whether there was one."""
    found = False
    for path in authorized_files(host.login.user):
        content = await host.get(path)
        if content and (new := without_line(content, line)) != content:
            await host.rewrite(path, new)
            found = True
    return found


def _lines(content: bytes) -> list[str]:
    return content.decode("utf-8-sig", errors="surrogateescape").splitlines()


def _joined(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\r\n" for line in lines).encode("utf-8", errors="surrogateescape")


def _has(lines: Iterable[str], line: str) -> bool:
    return any(_is(one, line) for one in lines)


def _is(one: str, line: str) -> bool:
    """Whatever options come before and whatever comment after."""
    words, wanted = one.split(), line.split()
    return wanted[1] in words and not one.lstrip().startswith("#")
