"""Making an instance what it should be, against a stand-in of Windows over real SSH."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import asyncssh
import pytest

from tests.instances.scripted_windows import ScriptedService, ScriptedWindows
from tests.instances.ssh_server import SHORT, SshServer, ssh_server
from winpod.instances.errors import ContainerdNotRunning, StepFailed, Unreachable
from winpod.instances.operator.telling import reason_of
from winpod.instances.remote.applying import apply, plan, plan_removal, read, remove
from winpod.instances.remote.patience import Patience
from winpod.instances.remote.rebooting import NotBack
from winpod.instances.remote.scripts import OddAnswer
from winpod.instances.remote.ssh import Host, TookTooLong
from winpod.instances.remote.transfers import TransferFailed
from winpod.instances.rules.desired import Desired, WantedService, written
from winpod.instances.rules.steps import Do
from winpod.windows.errors import InvalidInput, WinpodError

Befalls = Callable[[ScriptedWindows, SshServer, str], Awaitable[tuple[bytes, bytes, int] | None]]
LINE = r'"C:\k\bin\kubelet.exe" --label="a b" --100%done --and=&|<>^'
DESIRED = Desired(
    version="1.0.0",
    features=("Containers",),
    directories=(r"C:\k", r"C:\k\bin", r"C:\k\containerd", r"C:\var", r"C:\var\log"),
    owned=(r"C:\k\bin", r"C:\k\containerd"),
    files=(
        written(r"C:\k\bin\containerd.exe", b"containerd", ("containerd",)),
        written(r"C:\k\bin\crictl.exe", b"crictl"),
        written(r"C:\k\containerd\secret", b"s3cret", is_secret=True),
        written(r"C:\k\winpod-version", "1.0.0"),
    ),
    services=(
        WantedService("containerd", r"C:\k\bin\containerd.exe --run-service"),
        WantedService("kubelet", LINE, ("containerd",), "The kubelet", (10_000,), 300),
    ),
    networks=("winpod",),
    images=("registry.example/pause:1",),
)


@asynccontextmanager
async def windows(
    folder: Path, *, befalls: Befalls | None = None, patience: Patience = SHORT, **known: object
) -> AsyncIterator[tuple[ScriptedWindows, SshServer, Host]]:
    """`befalls` is asked first what becomes of a script, and may leave it to the machine."""
    machine = ScriptedWindows(folder, **known)  # type: ignore[arg-type]

    async def reply(script: str) -> tuple[bytes, bytes, int]:
        answer = await befalls(machine, server, script) if befalls else None
        return answer or await machine.reply(script)

    async with ssh_server(folder, reply) as server, server.host(patience=patience) as host:
        yield machine, server, host


def cut_off(server: SshServer) -> None:
    """As when a cable is pulled."""
    for connection in server.connections:
        connection.abort()


async def test_an_instance_is_made_what_it_should_be_and_the_second_run_does_nothing(
    tmp_path: Path,
) -> None:
    told: list[str] = []
    async with windows(tmp_path) as (machine, server, host):
        planned = await plan(host, DESIRED)
        assert planned[0].do is Do.ENABLE_FEATURE
        state = await apply(host, DESIRED, told.append)
        assert await plan(host, DESIRED) == ()
        before = len(machine.called)
        again: list[str] = []
        assert await apply(host, DESIRED, again.append) == state
    assert again == []
    assert {words[0] for words in machine.called[before:]} <= {
        "chcp.com", "reg.exe", "powershell.exe", "dism.exe", "type", "dir", "certutil.exe",
        "sc.exe", r"C:\k\bin\crictl.exe",
    }  # fmt: skip
    assert machine.services["kubelet"].line == LINE
    assert machine.services["kubelet"].state == "RUNNING"
    assert machine.images == ["registry.example/pause:1"]
    assert server.local(r"C:\k\bin\containerd.exe").read_bytes() == b"containerd"
    assert any("restart the host" in line for line in told)
    assert not list(server.local(r"C:\Windows\Temp").iterdir())


async def test_secrets_are_in_no_command_script_or_word_that_is_told(tmp_path: Path) -> None:
    told: list[str] = []
    async with windows(tmp_path) as (_machine, server, host):
        await apply(host, DESIRED, told.append)
    assert server.local(r"C:\k\containerd\secret").read_text() == "s3cret"
    assert "s3cret" not in "".join([*told, *server.commands, *server.scripts])


async def test_a_run_that_is_cut_off_again_and_again_is_finished_by_the_next(
    tmp_path: Path,
) -> None:
    asked = 0

    async def befalls(
        _: ScriptedWindows, server: SshServer, __: str
    ) -> tuple[bytes, bytes, int] | None:
        nonlocal asked
        asked += 1
        if asked % 4:
            return None
        cut_off(server)
        return b"", b"", 0

    async with windows(tmp_path / "whole") as (_, server, host):
        await apply(host, DESIRED, print)
        scripts = len(server.scripts)
    patience = replace(SHORT, going=0.3)
    async with windows(tmp_path / "cut", befalls=befalls, patience=patience) as (machine, _, host):
        for _ in range(scripts):
            try:
                await apply(host, DESIRED, print)
            except Unreachable:
                continue
            break
        asked = 0
        assert await plan(host, DESIRED) == ()
    assert machine.services["kubelet"].state == "RUNNING"


def seen_from_outside(machine: ScriptedWindows) -> str:
    """What a step may change; scripts come and go."""
    drive = sorted(
        str(one) for one in machine.folder.rglob("*") if "Windows/Temp" not in one.as_posix()
    )
    return f"{drive} {machine.services} {machine.networks} {machine.images} {machine.features}"


async def killed_when_it_changed(
    machine: ScriptedWindows, server: SshServer, script: str
) -> tuple[bytes, bytes, int]:
    """Whoever sent the first script that changes anything does not live to hear so."""
    before = seen_from_outside(machine)
    answer = await machine.reply(script)
    if seen_from_outside(machine) != before:
        cut_off(server)
    return answer


async def lives_on(host: Host) -> bool:
    try:
        await apply(host, DESIRED, print)
    except Unreachable:
        return False
    return True


async def test_a_move_from_docker_that_is_killed_after_each_change_ends_as_one_that_is_not(
    tmp_path: Path,
) -> None:
    docker = ScriptedService(r"C:\docker\dockerd.exe", state="RUNNING")
    untouched = repr(docker)
    old = {
        "docker": docker,
        "kubelet": ScriptedService(
            r"C:\k\kubelet.exe --network-plugin=cni", depends=["docker"], state="RUNNING"
        ),
    }
    nat = {"ID": "0e2c52cf-6a6b-4c5e-9d2a-1b1f0c4f5a02", "Name": "nat", "Type": "nat"}
    networks = [
        {"ID": "0e2c52cf-6a6b-4c5e-9d2a-1b1f0c4f5a01", "Name": "winpod", "Type": "overlay"},
        nat,
    ]
    deaths: list[str] = []
    async with windows(
        tmp_path,
        befalls=killed_when_it_changed,
        services=old,
        networks=networks,
        features={"Containers": "Enabled"},
    ) as (machine, server, host):
        while True:
            async with server.host() as next_life:
                if await lives_on(next_life):
                    break
            kubelet = machine.services.get("kubelet")
            if kubelet is None:
                deaths.append("without a kubelet" + " and network" * (machine.networks == [nat]))
            elif "docker" in kubelet.depends:
                deaths.append(f"the old kubelet is {kubelet.state}")
                assert machine.networks == networks, "they are its networks as long as it is there"
            else:
                deaths.append(f"the new kubelet is {kubelet.state}")
                assert machine.networks == [nat]
            assert repr(machine.services["docker"]) == untouched
        assert await plan(host, DESIRED) == ()
    assert list(dict.fromkeys(deaths)) == [
        "the old kubelet is STOPPED",
        "without a kubelet",
        "without a kubelet and network",
        "the new kubelet is STOPPED",
        "the new kubelet is RUNNING",
    ]
    assert machine.services["kubelet"].line == LINE
    assert machine.services["containerd"].state == "RUNNING"
    assert machine.images == ["registry.example/pause:1"]


async def test_a_program_that_says_yes_and_does_nothing_is_a_failed_step(tmp_path: Path) -> None:
    async with windows(tmp_path, stubborn={"move"}) as (_, _server, host):
        with pytest.raises(StepFailed) as caught:
            await apply(host, DESIRED, print)
    sentence = str(caught.value)
    assert sentence.startswith(r"win-1: could not put the file C:\k\bin\containerd.exe: expected")
    assert "found no such file" in sentence
    assert "the service containerd holds the file" in sentence


@dataclass(frozen=True)
class Trouble:
    """What befalls the script that has the words `at`, and how it is told."""

    title: str
    kind: type[WinpodError]
    said: str
    at: str = ""
    befalls: Befalls | None = None
    wanted: Desired = DESIRED
    reason: str = "InstanceFailed"


async def is_cut_off(_: ScriptedWindows, server: SshServer, __: str) -> None:
    cut_off(server)


async def does_not_end(*_: object) -> None:
    await asyncio.sleep(60)


async def says_x(*_: object) -> tuple[bytes, bytes, int]:
    return b"x\r\n", b"", 0


async def says_no_state(
    machine: ScriptedWindows, _: SshServer, script: str
) -> tuple[bytes, bytes, int]:
    output, errors, code = await machine.reply(script)
    return output.replace(b"State :", b"Stand :"), errors, code


async def lets_nobody_in_again(_: ScriptedWindows, server: SshServer, __: str) -> None:
    server.key = asyncssh.generate_private_key("ssh-ed25519")
    cut_off(server)


TROUBLES = {
    "a disk that is full": Trouble(
        r"put the file C:\k\bin\containerd.exe: expected SHA256 ",
        TransferFailed,
        r"C:\\k\\bin\\containerd.exe.winpod-new could not be written: No space left on device\.",
    ),
    "a connection that is lost": Trouble(
        "create the service containerd and 1 more: expected C:",
        Unreachable,
        r"the connection to 127\.0\.0\.1 was lost: .*\.",
        "sc.exe create",
        is_cut_off,
        reason="InstanceUnreachable",
    ),
    "a command that does not end": Trouble(
        "start the service containerd: expected running, found stopped",
        TookTooLong,
        r"`sc\.exe start containerd` had not ended after 3 seconds\.",
        "sc.exe start",
        does_not_end,
        reason="InstanceUnreachable",
    ),
    "an answer that nobody understands": Trouble(
        "enable the feature Containers: expected enabled, found disabled",
        OddAnswer,
        r"dism says nothing of the feature Containers: .*\.",
        "enable-feature",
        says_no_state,
    ),
    "a host that does not say when it booted": Trouble(
        "restart the host: expected Windows started anew, found not started since the change",
        OddAnswer,
        r"PowerShell did not say when the host booted: x\.",
        "LastBootUpTime",
        says_x,
    ),
    "a host that does not come back": Trouble(
        "restart the host: expected Windows started anew",
        NotBack,
        r"the host did not come back within 0 minutes of its restart\.",
        "shutdown.exe",
        lets_nobody_in_again,
        reason="InstanceUnreachable",
    ),
    "a command that cannot be written": Trouble(
        "create the service containerd and 1 more: expected C:",
        InvalidInput,
        r"a command has \d+ characters, and cmd takes 8191: .*\.",
        wanted=replace(
            DESIRED,
            services=(DESIRED.services[0], replace(DESIRED.services[1], command_line="x" * 9000)),
        ),
    ),
}


@pytest.mark.parametrize("name", TROUBLES)
async def test_what_cuts_a_step_off_is_told_with_the_step_and_what_to_do(
    name: str, tmp_path: Path
) -> None:
    """Its kind stays, and so does the word that events have for it."""
    trouble = TROUBLES[name]

    async def befalls(
        machine: ScriptedWindows, server: SshServer, script: str
    ) -> tuple[bytes, bytes, int] | None:
        if trouble.befalls and trouble.at in script and "Get-PSDrive" not in script:
            return await trouble.befalls(machine, server, script)
        return None

    patience = replace(SHORT, run=3.0, coming=0.5)
    async with windows(tmp_path, befalls=befalls, patience=patience) as (_, server, host):
        if trouble.kind is TransferFailed:
            new = server.local(r"C:\k\bin\containerd.exe.winpod-new")
            new.parent.mkdir(parents=True)
            new.symlink_to("/dev/full")
        with pytest.raises(WinpodError) as caught:
            await apply(host, trouble.wanted, print)
    found = caught.value
    assert found.sentence.startswith(f"win-1: could not {trouble.title}")
    assert ", found " in found.sentence
    assert (type(found), reason_of(found)) == (trouble.kind, trouble.reason)
    assert re.search(f", and then: {trouble.said}$", found.sentence), found.sentence
    assert found.advice


async def test_a_log_that_cannot_be_read_does_not_hide_that_containerd_does_not_run(
    tmp_path: Path,
) -> None:
    async with windows(tmp_path, does_not_start={"containerd"}) as (_, server, host):
        log = server.local(r"C:\var\log\containerd\containerd.log")
        log.mkdir(parents=True)
        with pytest.raises(ContainerdNotRunning) as caught:
            await apply(host, DESIRED, print)
    assert "containerd.log could not be read" in str(caught.value)


async def test_containerd_that_does_not_start_is_told_with_the_end_of_its_log(
    tmp_path: Path,
) -> None:
    async with windows(tmp_path, does_not_start={"containerd"}) as (_, server, host):
        log = server.local(r"C:\var\log\containerd\containerd.log")
        log.parent.mkdir(parents=True)
        log.write_text("x" * 20_000 + '\nlevel=fatal msg="no plugin"\n')
        with pytest.raises(ContainerdNotRunning) as caught:
            await apply(host, DESIRED, print)
    assert str(caught.value).startswith("win-1: containerd is not running: expected running")
    assert 'msg="no plugin"' in str(caught.value)


async def test_everything_of_ours_is_removed_and_what_is_not_stays(tmp_path: Path) -> None:
    docker = ScriptedService(r"C:\docker\dockerd.exe", state="RUNNING")
    async with windows(tmp_path, services={"docker": docker}) as (machine, server, host):
        await apply(host, DESIRED, print)
        machine.networks = [
            {"ID": "0e2c52cf-6a6b-4c5e-9d2a-1b1f0c4f5a01", "Name": "winpod", "Type": "overlay"},
            {"ID": "0e2c52cf-6a6b-4c5e-9d2a-1b1f0c4f5a02", "Name": "nat", "Type": "nat"},
        ]
        server.local(r"C:\var\log\theirs").touch()
        await remove(host, DESIRED, print)
        assert await plan_removal(host, DESIRED) == ()
        assert list(machine.services) == ["docker"]
        assert [network["Name"] for network in machine.networks] == ["nat"]
        assert not server.local(r"C:\k").exists()
        assert server.local(r"C:\var\log\theirs").exists()


async def test_old_scripts_are_swept_and_young_ones_are_left_to_their_runs(tmp_path: Path) -> None:
    async with windows(tmp_path) as (_, server, host):
        temporary = server.local(r"C:\Windows\Temp")
        for name in ("winpod-old.cmd", "winpod-young.cmd", "theirs.cmd"):
            (temporary / name).touch()
        os.utime(temporary / "winpod-old.cmd", (0, 0))
        os.utime(temporary / "theirs.cmd", (0, 0))
        await host.sweep()
        assert sorted(one.name for one in temporary.iterdir()) == ["theirs.cmd", "winpod-young.cmd"]


async def test_a_run_that_is_cancelled_leaves_no_half_file(tmp_path: Path) -> None:
    async with windows(tmp_path) as (_, server, host):
        await apply(host, replace(DESIRED, files=(), services=(), images=()), print)
        source = tmp_path / "large"
        with source.open("wb") as file:
            file.truncate(8 << 20)
        large = replace(
            DESIRED.files[0], source=source, content=None, sha256="0" * 64, size=8 << 20
        )
        desired = replace(DESIRED, files=(large,), services=(), images=())
        running = asyncio.create_task(apply(host, desired, print))
        new = server.local(r"C:\k\bin\containerd.exe.winpod-new")
        for _ in range(2000):
            if new.exists():
                break
            await asyncio.sleep(0.005)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert not new.exists()


async def test_a_state_has_what_was_asked_for(tmp_path: Path) -> None:
    async with windows(tmp_path) as (machine, _, host):
        state = await read(host, DESIRED)
    assert state.hostname == machine.hostname
    assert state.free_bytes == machine.free
