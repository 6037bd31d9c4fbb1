"""One key takes the place of another, and nobody else's line is touched."""

from pathlib import Path

import asyncssh

from tests.instances.ssh_server import ssh_server
from winpod.instances.remote.keys import (
    AUTHORIZED,
    Keys,
    add_line,
    public_line,
    read_keys,
    remove_line,
    with_line,
    without_line,
)

OLD, NEW, THEIRS = (asyncssh.generate_private_key("ssh-ed25519") for _ in range(3))
FILE = f"# ours\r\n{public_line(OLD)} operator\r\n{public_line(THEIRS)} somebody\r\n".encode()


def test_a_line_is_added_once_and_removed_whatever_its_comment_and_options() -> None:
    line = public_line(NEW)
    added = with_line(FILE, line)
    assert added.endswith(f"{line}\r\n".encode())
    assert with_line(added, line) == added
    assert without_line(added, line) == FILE
    assert without_line(FILE, line) == FILE
    restricted = f'from="10.0.0.0/8" {line} x\n'.encode()
    assert without_line(restricted, line) == b""


def test_a_file_with_a_byte_order_mark_and_words_in_no_known_code_stays_whole() -> None:
    strange = b"\xef\xbb\xbf" + FILE + b"# \xff\xfe\r\n"
    assert without_line(with_line(strange, public_line(NEW)), public_line(NEW)) == (
        FILE + b"# \xff\xfe\r\n"
    )


def test_the_key_before_is_kept_until_another_comes_and_the_same_again_is_none() -> None:
    old, new = (key.export_private_key() for key in (OLD, NEW))
    first = read_keys(old, Keys())
    assert (first.now, first.old) == (OLD, None)
    second = read_keys(new, first)
    assert (second.now, second.old) == (NEW, OLD)
    assert read_keys(new, second) == second


def test_no_key_is_ever_printed() -> None:
    assert "PRIVATE" not in repr(read_keys(OLD.export_private_key(), Keys()))
    assert repr(Keys(OLD, NEW)) == "Keys()"


async def test_the_old_key_lets_the_new_one_in_and_its_own_line_goes(tmp_path: Path) -> None:
    async with ssh_server(tmp_path) as server:
        file = server.local(AUTHORIZED)
        file.parent.mkdir(parents=True)
        file.write_bytes(FILE)
        async with server.host(key=OLD) as host:
            await add_line(host, public_line(NEW))
            assert with_line(FILE, public_line(NEW)) == file.read_bytes()
            assert await remove_line(host, public_line(OLD))
            assert not await remove_line(host, public_line(OLD))
        assert public_line(OLD).encode() not in file.read_bytes()
        assert public_line(THEIRS).encode() in file.read_bytes()
