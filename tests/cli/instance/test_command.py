"""`winpod instance` against fake Windows hosts behind real SSH servers."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import asyncssh
import pytest

from tests.support.scripted_windows import ScriptedService, ScriptedWindows
from tests.support.ssh_server import ssh_server
from tests.support.winpod_cli import Ran
from winpod.cli.main import main


@contextmanager
def stand_in(folder: Path, key: asyncssh.SSHKey, **known: object) -> Iterator[int]:
    """Run a fake Windows Server in a thread; yields its port."""
    loop, ready, ports = asyncio.new_event_loop(), threading.Event(), list[int]()
    ended = asyncio.Event()

    async def serve() -> None:
        machine = ScriptedWindows(folder, **known)  # type: ignore[arg-type]
        async with ssh_server(folder, machine.reply) as server:
            server.key = key
            ports.append(server.port)
            ready.set()
            await ended.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert ready.wait(20)
    try:
        yield ports[0]
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(20)
        loop.close()


@dataclass(frozen=True)
class Cli:
    """Runs `winpod instance` in this process, which is faster."""

    home: Path
    key: asyncssh.SSHKey
    patch: pytest.MonkeyPatch
    capture: pytest.CaptureFixture[str]

    def types(self, command: str, *arguments: str) -> Ran:
        self.patch.setattr("sys.argv", ["winpod", "instance", command, *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        printed = self.capture.readouterr()
        return Ran(int(end.value.code or 0), printed.out, printed.err)

    def asks(self, command: str, *arguments: str) -> Ran:
        return self.types(command, "--key", str(self.home / "key"), *arguments)


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    key = asyncssh.generate_private_key("ssh-ed25519")
    (tmp_path / "key").write_bytes(key.export_private_key())
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    return Cli(tmp_path, key, monkeypatch, capsys)


def test_failed_instance_does_not_affect_others(tmp_path: Path, cli: Cli) -> None:
    docker = {"docker": ScriptedService(r"C:\docker\dockerd.exe", state="RUNNING")}
    with stand_in(tmp_path / "host", cli.key, services=docker) as port:
        file = tmp_path / "instances.yaml"
        file.write_text(
            "apiVersion: v1\nkind: ConfigMap\ndata:\n"
            f"  127.0.0.1: username=Administrator port={port}\n"
            "  localhost: username=Administrator port=1\n"
            "  10.300.1.1: username=Administrator\n"
        )
        shown = cli.asks("status", "--instances", str(file))
        as_json = cli.asks("status", "--instances", str(file), "-o", "json")
    assert shown.code == as_json.code == 1
    rows = [line.split() for line in shown.out.splitlines()]
    assert rows[1][:2] == ["127.0.0.1", "WIN-1"]
    assert "running" in rows[1]
    assert [row[0] for row in rows[2:]] == ["localhost", "10.300.1.1"]
    assert "localhost: localhost port 1 cannot be reached" in shown.err
    assert '"10.300.1.1" is neither an IPv4 address nor a DNS name' in shown.err
    good, dead, bad = json.loads(as_json.out)
    assert good["services"] == {"docker": "running"}
    assert "cannot be reached" in dead["failure"]
    assert "neither" in bad["failure"]


def test_trust_accepts_the_new_host_key_of_an_instance(tmp_path: Path, cli: Cli) -> None:
    with stand_in(tmp_path / "old", cli.key) as port:
        where = ("--address", "127.0.0.1", "--port", str(port))
        assert cli.asks("status", *where).code == 0
    with stand_in(tmp_path / "new", cli.key) as port:
        where = ("--address", "127.0.0.1", "--port", str(port))
        refused = cli.asks("status", *where)
        assert refused.code == 1
        assert "the host key of" in refused.err
        assert "winpod instance trust 127.0.0.1" in refused.err
        trusted = cli.types("trust", "10.9.9.9", "127.0.0.1")
        assert "has no host key of 10.9.9.9" in trusted.err
        assert "127.0.0.1: host key removed" in trusted.out
        assert cli.asks("status", *where).code == 0


def test_logs_are_gathered_and_instance_is_removed(tmp_path: Path, cli: Cli) -> None:
    services = {
        "kubelet": ScriptedService(r"C:\k\bin\kubelet.exe", state="RUNNING"),
        "docker": ScriptedService(r"C:\docker\dockerd.exe", state="RUNNING"),
    }
    (tmp_path / "host/C:/k/bin").mkdir(parents=True)
    with stand_in(tmp_path / "host", cli.key, services=services) as port:
        where = ("--address", "127.0.0.1", "--port", str(port))
        gathered = cli.asks("gather", "--directory", str(tmp_path), *where)
        unsure = cli.asks("remove", "--keep-node", *where)
        removed = cli.asks("remove", "--keep-node", "--yes", *where)
    assert gathered.code == 0, gathered.err
    assert Path(gathered.out.split()[-1]).is_file()
    assert unsure.code == 2
    assert "Give --yes" in unsure.err
    assert removed.code == 0, removed.err
    assert list(services) == ["docker"]
    assert not (tmp_path / "host/C:/k").exists()


def test_replace_key_authorizes_new_and_revokes_old_key(tmp_path: Path, cli: Cli) -> None:
    listed = tmp_path / "host/C:/ProgramData/ssh/administrators_authorized_keys"
    listed.parent.mkdir(parents=True)
    listed.write_bytes(b"# ours\r\n" + cli.key.export_public_key())
    new = asyncssh.generate_private_key("ssh-ed25519")
    (tmp_path / "new").write_bytes(new.export_private_key())
    with stand_in(tmp_path / "host", cli.key) as port:
        where = ("--address", "127.0.0.1", "--port", str(port))
        done = cli.asks("replace-key", "--new-key", str(tmp_path / "new"), *where)
        assert done.code == 0, done.err
        assert "old key revoked" in done.out
        refused = cli.asks("status", *where)
        assert "rejects the user Administrator" in refused.err
        opened = cli.types("status", "--key", str(tmp_path / "new"), *where)
        assert opened.code == 0, opened.err
        twice = [
            argument
            for option in ("--key", "--new-key")
            for argument in (option, str(tmp_path / "new"))
        ]
        same = cli.types("replace-key", *twice, *where)
        assert "the new key is the same as the old one" in same.err
        assert cli.types("status", "--key", str(tmp_path / "new"), *where).code == 0
    assert listed.read_bytes().startswith(b"# ours\r\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "either --address or --instances"),
        (("--address", "10.300.1.1"), "neither an IPv4 address"),
        (
            ("--instances", "/nowhere"),
            "/nowhere cannot be read: No such file or directory. Check --instances",
        ),
        (("--address", "localhost", "--key", "/nowhere"), "cannot be read: No such file or direc"),
        (("--address", "localhost", "--key", "/dev/null"), "/dev/null cannot be read: Invalid pr"),
    ],
)
def test_bad_input_is_reported(cli: Cli, arguments: tuple[str, ...], message: str) -> None:
    ran = cli.asks("status", *arguments)
    assert ran.code == 2
    assert message in ran.err
    assert "Traceback" not in ran.err


def test_keep_node_and_dead_are_mutually_exclusive(cli: Cli) -> None:
    ran = cli.asks("remove", "--keep-node", "--dead", "--yes", "--address", "10.0.0.1")
    assert ran.code == 2
    assert "are mutually exclusive" in ran.err
