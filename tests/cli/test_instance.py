"""`winpod instance` as a person runs it, against stand-ins of Windows behind real SSH servers."""

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

from tests.cli.winpod import Ran
from tests.instances.scripted_windows import ScriptedService, ScriptedWindows
from tests.instances.ssh_server import ssh_server
from winpod.cli.main import main


@contextmanager
def stand_in(folder: Path, key: asyncssh.SSHKey, **known: object) -> Iterator[int]:
    """A Windows Server that answers in a thread of its own; its port."""
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
class Person:
    """Somebody with a key, who types `winpod instance`; in this process, which is faster."""

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
def person(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Person:
    key = asyncssh.generate_private_key("ssh-ed25519")
    (tmp_path / "key").write_bytes(key.export_private_key())
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    return Person(tmp_path, key, monkeypatch, capsys)


def test_one_bad_instance_stops_no_other_and_all_are_in_the_table(
    tmp_path: Path, person: Person
) -> None:
    docker = {"docker": ScriptedService(r"C:\docker\dockerd.exe", state="RUNNING")}
    with stand_in(tmp_path / "host", person.key, services=docker) as port:
        file = tmp_path / "instances.yaml"
        file.write_text(
            "apiVersion: v1\nkind: ConfigMap\ndata:\n"
            f"  127.0.0.1: username=Administrator port={port}\n"
            "  localhost: username=Administrator port=1\n"
            "  10.300.1.1: username=Administrator\n"
        )
        shown = person.asks("status", "--instances", str(file))
        told = person.asks("status", "--instances", str(file), "-o", "json")
    assert shown.code == told.code == 1
    rows = [line.split() for line in shown.out.splitlines()]
    assert rows[1][:2] == ["127.0.0.1", "WIN-1"]
    assert "running" in rows[1]
    assert [row[0] for row in rows[2:]] == ["localhost", "10.300.1.1"]
    assert "localhost: localhost port 1 cannot be reached" in shown.err
    assert '"10.300.1.1" is neither an IPv4 address nor a DNS name' in shown.err
    good, dead, bad = json.loads(told.out)
    assert good["services"] == {"docker": "running"}
    assert "cannot be reached" in dead["failure"]
    assert "neither" in bad["failure"]


def test_a_machine_that_was_made_anew_is_trusted_again_when_somebody_says_so(
    tmp_path: Path, person: Person
) -> None:
    with stand_in(tmp_path / "old", person.key) as port:
        where = ("--address", "127.0.0.1", "--port", str(port))
        assert person.asks("status", *where).code == 0
    with stand_in(tmp_path / "new", person.key) as port:
        where = ("--address", "127.0.0.1", "--port", str(port))
        refused = person.asks("status", *where)
        assert refused.code == 1
        assert "another machine may answer" in refused.err
        assert "winpod instance trust 127.0.0.1" in refused.err
        trusted = person.types("trust", "10.9.9.9", "127.0.0.1")
        assert "no host key of 10.9.9.9 is known" in trusted.err
        assert "127.0.0.1: its host key is forgotten" in trusted.out
        assert person.asks("status", *where).code == 0


def test_an_archive_is_gathered_and_everything_of_ours_removed(
    tmp_path: Path, person: Person
) -> None:
    services = {
        "kubelet": ScriptedService(r"C:\k\bin\kubelet.exe", state="RUNNING"),
        "docker": ScriptedService(r"C:\docker\dockerd.exe", state="RUNNING"),
    }
    (tmp_path / "host/C:/k/bin").mkdir(parents=True)
    with stand_in(tmp_path / "host", person.key, services=services) as port:
        where = ("--address", "127.0.0.1", "--port", str(port))
        gathered = person.asks("gather", "--directory", str(tmp_path), *where)
        unsure = person.asks("remove", "--keep-node", *where)
        removed = person.asks("remove", "--keep-node", "--yes", *where)
    assert gathered.code == 0, gathered.err
    assert Path(gathered.out.split()[-1]).is_file()
    assert unsure.code == 2
    assert "Give --yes" in unsure.err
    assert removed.code == 0, removed.err
    assert list(services) == ["docker"]
    assert not (tmp_path / "host/C:/k").exists()


def test_a_new_key_takes_the_place_of_the_old_one(tmp_path: Path, person: Person) -> None:
    listed = tmp_path / "host/C:/ProgramData/ssh/administrators_authorized_keys"
    listed.parent.mkdir(parents=True)
    listed.write_bytes(b"# ours\r\n" + person.key.export_public_key())
    new = asyncssh.generate_private_key("ssh-ed25519")
    (tmp_path / "new").write_bytes(new.export_private_key())
    with stand_in(tmp_path / "host", person.key) as port:
        where = ("--address", "127.0.0.1", "--port", str(port))
        done = person.asks("replace-key", "--new-key", str(tmp_path / "new"), *where)
        assert done.code == 0, done.err
        assert "the old one no longer does" in done.out
        refused = person.asks("status", *where)
        assert "does not let Administrator in" in refused.err
        opened = person.types("status", "--key", str(tmp_path / "new"), *where)
        assert opened.code == 0, opened.err
        twice = [
            word for option in ("--key", "--new-key") for word in (option, str(tmp_path / "new"))
        ]
        same = person.types("replace-key", *twice, *where)
        assert "the new key is the old one" in same.err
        assert person.types("status", "--key", str(tmp_path / "new"), *where).code == 0
    assert listed.read_bytes().startswith(b"# ours\r\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "one of --address and --instances"),
        (("--address", "10.300.1.1"), "neither an IPv4 address"),
        (("--instances", "/nowhere"), "/nowhere cannot be read: No such file or directory. --inst"),
        (("--address", "localhost", "--key", "/nowhere"), "cannot be read: No such file or direc"),
        (("--address", "localhost", "--key", "/dev/null"), "/dev/null cannot be read: Invalid pr"),
    ],
)
def test_bad_input_is_a_sentence(person: Person, arguments: tuple[str, ...], said: str) -> None:
    ran = person.asks("status", *arguments)
    assert ran.code == 2
    assert said in ran.err
    assert "Traceback" not in ran.err


def test_a_removal_that_would_do_nothing_is_refused(person: Person) -> None:
    ran = person.asks("remove", "--keep-node", "--dead", "--yes", "--address", "10.0.0.1")
    assert ran.code == 2
    assert "leave nothing to be done" in ran.err
