"""SSH connection to an instance: scripts, files, cleanup and errors."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from pathlib import Path

import asyncssh
import pytest

from tests.support.ssh_server import SHORT, ssh_server
from winpod.errors import InvalidInput
from winpod.instances.errors import HostKeyChanged, InstanceUnreachable, LoginRefused
from winpod.instances.ssh.host import CommandTimeout, TransferFailed
from winpod.instances.ssh.login import KnownHostsFile, MemoryHostKeys, read_key

TEMPORARY = "C:/Windows/Temp"


async def test_script_is_run_by_name_and_removed(tmp_path: Path) -> None:
    async def reply(script: str) -> tuple[bytes, bytes, int]:
        del script
        return b"hello\r\n", b"beware\r\n", 7

    async with ssh_server(tmp_path, reply) as server, server.host() as host:
        answer = await host.run(["echo hello & rem a secret: s3cret"])
    assert (answer.code, answer.output, answer.errors) == (7, "hello\n", "beware\n")
    assert re.fullmatch(
        r"cmd\.exe /d /c C:\\Windows\\Temp\\winpod-[0-9a-f]{16}\.cmd", server.commands[0]
    )
    assert "s3cret" not in server.commands[0]
    assert "s3cret" in server.scripts[0]
    assert not list(server.local(TEMPORARY).iterdir())


async def test_sections_run_as_one_script_and_are_split(tmp_path: Path) -> None:
    async def reply(script: str) -> tuple[bytes, bytes, int]:
        mark = re.findall(r"##\w+", script)[0]
        return f"one{mark} 0\r\n{mark} 1060\r\ntwo\r\n{mark} -5\r\n".encode(), b"", 0

    async with ssh_server(tmp_path, reply) as server, server.host() as host:
        found = await host.run_sections([("a",), ("b", "c"), ("d",)])
    assert [(section.text, section.code) for section in found] == [
        ("one", 0),
        ("", 1060),
        ("two\n", -5),
    ]
    assert len(server.scripts) == 1


async def test_truncated_output_is_an_error(tmp_path: Path) -> None:
    async def reply(script: str) -> tuple[bytes, bytes, int]:
        del script
        return b"The system is shutting down\r\n", b"", 1

    async with ssh_server(tmp_path, reply) as server, server.host() as host:
        with pytest.raises(InstanceUnreachable, match=r"the output ended after.*shutting down"):
            await host.run_sections([("a",)])


async def test_files_are_put_got_listed_and_removed(tmp_path: Path) -> None:
    source = tmp_path / "source"
    with source.open("wb") as file:
        file.truncate(300_000)  # a hole: it must arrive as zeros
    async with ssh_server(tmp_path / "host") as server, server.host() as host:
        await host.put(r"C:\Windows\a.txt", b"abc")
        await host.put(r"C:\Windows\b.exe", source)
        assert await host.get(r"C:\Windows\a.txt") == b"abc"
        assert await host.get(r"C:\Windows\none") is None
        assert await host.list_directory(r"C:\Windows") == ["Temp", "a.txt", "b.exe"]
        assert await host.list_directory(r"C:\none") == []
        await host.overwrite(r"C:\Windows\b.exe", b"shorter")
        assert await host.get(r"C:\Windows\b.exe") == b"shorter"
        await host.put(r"C:\Windows\b.exe", source)
        await host.remove(r"C:\Windows\a.txt")
        await host.remove(r"C:\Windows\a.txt")
    assert server.local("C:/Windows/b.exe").read_bytes() == source.read_bytes()
    assert not server.local("C:/Windows/a.txt").exists()


async def test_failed_upload_is_an_error(tmp_path: Path) -> None:
    async with ssh_server(tmp_path) as server, server.host() as host:
        with pytest.raises(TransferFailed, match=r"win-1: C:\\none\\a could not.*directory"):
            await host.put(r"C:\none\a", b"abc")


async def test_host_key_is_trusted_on_first_use_and_pinned(tmp_path: Path) -> None:
    keys = KnownHostsFile(tmp_path / "config" / "host_keys")
    async with ssh_server(tmp_path) as server, server.host(host_keys=keys) as host:
        await host.run(["rem"])
    key, port, pinned = server.key, server.port, keys.pinned("win-1")
    assert pinned
    async with ssh_server(tmp_path, port=port) as server:
        server.key = key
        async with server.host(host_keys=keys) as host:
            with pytest.raises(HostKeyChanged, match=r"win-1: the host key .* SHA256:.* SHA256:"):
                await host.run(["rem"])
        assert keys.pinned("win-1") == pinned
        assert keys.forget("win-1") == pinned
        async with server.host(host_keys=keys) as host:
            await host.run(["rem"])
        assert keys.pinned("win-1") not in (None, pinned)


async def test_invalid_pinned_key_is_an_error(tmp_path: Path) -> None:
    keys = MemoryHostKeys()
    keys.pin("win-1", "ssh-ed25519 nonsense")
    async with ssh_server(tmp_path) as server, server.host(host_keys=keys) as host:
        with pytest.raises(InvalidInput, match="win-1: the pinned host key"):
            await host.run(["rem"])


async def test_host_key_is_not_pinned_without_login(tmp_path: Path) -> None:
    keys = MemoryHostKeys()
    async with ssh_server(tmp_path) as server:
        for wrong in (
            server.host(host_keys=keys, key=asyncssh.generate_private_key("ssh-ed25519")),
            server.host(host_keys=keys, user="root"),
        ):
            async with wrong as host:
                with pytest.raises(LoginRefused, match=r"win-1: 127\.0\.0\.1 rejects"):
                    await host.run(["rem"])
    assert keys.pinned("win-1") is None


async def test_host_key_of_another_type_is_a_changed_host_key(tmp_path: Path) -> None:
    keys = MemoryHostKeys()
    other = asyncssh.generate_private_key("ecdsa-sha2-nistp256")
    async with ssh_server(tmp_path) as server, server.host(host_keys=keys) as host:
        await host.run(["rem"])
    async with ssh_server(tmp_path, host_key=other) as server, server.host(host_keys=keys) as host:
        with pytest.raises(HostKeyChanged, match="win-1"):
            await host.run(["rem"])


async def test_unreachable_host_is_an_error(tmp_path: Path, unused_tcp_port: int) -> None:
    async with ssh_server(tmp_path) as server, server.host(port=unused_tcp_port) as host:
        with pytest.raises(
            InstanceUnreachable, match=r"win-1: \S+ port \d+ cannot .*: Connection refused"
        ):
            await host.run(["rem"])


async def test_silent_host_times_out(tmp_path: Path) -> None:
    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    silent = await asyncio.start_server(wait, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    async with ssh_server(tmp_path) as server, server.host(port=port) as host:
        with pytest.raises(InstanceUnreachable, match="no answer"):
            await host.connect(0.2)
    silent.close()


async def test_lost_connection_is_an_error_and_the_next_script_reconnects(
    tmp_path: Path,
) -> None:
    async def reply(script: str) -> tuple[bytes, bytes, int]:
        if "die" in script:
            server.connections[-1].abort()
        return b"ok", b"", 0

    async with ssh_server(tmp_path, reply) as server, server.host() as host:
        with pytest.raises(InstanceUnreachable, match=r"win-1: the connection to \S+ was lost"):
            await host.run(["die"])
        assert (await host.run(["live"])).output == "ok"
    assert len(server.connections) == 2


async def test_timed_out_or_cancelled_script_is_cleaned_up(tmp_path: Path) -> None:
    asleep = asyncio.Event()

    async def reply(script: str) -> tuple[bytes, bytes, int]:
        if "sleep" in script:
            asleep.set()
            await asyncio.sleep(60)
        return b"ok", b"", 0

    async with ssh_server(tmp_path, reply) as server, server.host() as host:
        with pytest.raises(InstanceUnreachable, match="`sleep` timed out after 0 seconds"):
            await host.run(["sleep"], seconds=0.1)
        asleep.clear()
        running = asyncio.create_task(host.run(["sleep"]))
        await asleep.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert (await host.run(["live"])).output == "ok"
        assert not list(server.local(TEMPORARY).iterdir())


async def test_hanging_section_is_named(tmp_path: Path) -> None:
    async def reply(script: str) -> tuple[bytes, bytes, int]:
        mark = re.findall(r"##\w+", script)[0]
        server.printing[0].write(f"one{mark} 0\r\n".encode())
        await asyncio.sleep(60)
        return b"", b"", 0

    async with ssh_server(tmp_path, reply) as server, server.host() as host:
        with pytest.raises(CommandTimeout, match=r"win-1: `sc\.exe query b` timed out after 0"):
            await host.run_sections([("ver",), ("sc.exe query b", "c"), ("d",)], seconds=0.3)


async def test_stalled_transfer_times_out(tmp_path: Path) -> None:
    class Stuck(asyncssh.SFTPServer):
        async def open(self, path: bytes, pflags: int, attrs: asyncssh.SFTPAttrs) -> object:
            await asyncio.sleep(60)
            return super().open(path, pflags, attrs)

    timeouts = replace(SHORT, file=0.2)
    async with ssh_server(tmp_path, files=Stuck) as server, server.host(timeouts=timeouts) as host:
        with pytest.raises(InstanceUnreachable, match="could not be read: no progress for 0 sec"):
            await host.get(r"C:\Windows\a.txt")


def test_invalid_or_encrypted_private_key_is_an_error() -> None:
    key = asyncssh.generate_private_key("ssh-ed25519")
    assert read_key(key.export_private_key()) == key
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_key(b"no key")
    with pytest.raises(InvalidInput, match="Passphrase"):
        read_key(key.export_private_key("pkcs8-pem", "secret"))


def test_unreadable_host_keys_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be read"):
        KnownHostsFile(tmp_path).pinned("win-1")
