"""Rotation of the SSH key; lines of other keys are not touched."""

from pathlib import Path

import asyncssh

from tests.support.ssh_server import ssh_server
from winpod.instances.ssh.authorized_keys import (
    AUTHORIZED,
    SshKeys,
    authorize_key,
    public_line,
    read_keys,
    revoke_key,
    with_line,
    without_line,
)

OLD, NEW, THEIRS = (asyncssh.generate_private_key("ssh-ed25519") for _ in range(3))
FILE = f"# ours\r\n{public_line(OLD)} operator\r\n{public_line(THEIRS)} somebody\r\n".encode()


def test_line_is_added_once_and_removed_regardless_of_comment_and_options() -> None:
    line = public_line(NEW)
    added = with_line(FILE, line)
    assert added.endswith(f"{line}\r\n".encode())
    assert with_line(added, line) == added
    assert without_line(added, line) == FILE
    assert without_line(FILE, line) == FILE
    restricted = f'from="10.0.0.0/8" {line} x\n'.encode()
    assert without_line(restricted, line) == b""


def test_file_with_bom_and_undecodable_bytes_is_preserved() -> None:
    strange = b"\xef\xbb\xbf" + FILE + b"# \xff\xfe\r\n"
    assert without_line(with_line(strange, public_line(NEW)), public_line(NEW)) == (
        FILE + b"# \xff\xfe\r\n"
    )


def test_previous_key_is_kept_until_the_key_changes() -> None:
    old, new = (key.export_private_key() for key in (OLD, NEW))
    first = read_keys(old, SshKeys())
    assert (first.now, first.old) == (OLD, None)
    second = read_keys(new, first)
    assert (second.now, second.old) == (NEW, OLD)
    assert read_keys(new, second) == second


def test_keys_are_not_in_repr() -> None:
    assert "PRIVATE" not in repr(read_keys(OLD.export_private_key(), SshKeys()))
    assert repr(SshKeys(OLD, NEW)) == "SshKeys()"


async def test_old_key_authorizes_the_new_one_and_is_revoked(tmp_path: Path) -> None:
    async with ssh_server(tmp_path) as server:
        file = server.local(AUTHORIZED)
        file.parent.mkdir(parents=True)
        file.write_bytes(FILE)
        async with server.host(key=OLD) as host:
            await authorize_key(host, public_line(NEW))
            assert with_line(FILE, public_line(NEW)) == file.read_bytes()
            assert await revoke_key(host, public_line(OLD))
            assert not await revoke_key(host, public_line(OLD))
        assert public_line(OLD).encode() not in file.read_bytes()
        assert public_line(THEIRS).encode() in file.read_bytes()
