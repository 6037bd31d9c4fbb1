"""Convergence against a stand-in of Windows over real SSH."""

from __future__ import annotations

import asyncio
import os
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import asyncssh
import pytest

from tests.support.desired_instances import DESIRED, LINE
from tests.support.scripted_windows import ScriptedService, ScriptedWindows
from tests.support.ssh_server import SHORT, SshServer, ssh_server
from winpod.errors import InvalidInput, WinpodError
from winpod.instances.errors import ContainerdNotRunning, InstanceUnreachable, StepFailed
from winpod.instances.operator.conditions import reason_of
from winpod.instances.planner.desired import DesiredState
from winpod.instances.planner.steps import StepKind
from winpod.instances.ssh.converge import converge, plan, plan_removal, read_state, remove
from winpod.instances.ssh.host import CommandTimeout, SshHost, Timeouts, TransferFailed
from winpod.instances.ssh.reboot import RebootTimeout
from winpod.instances.ssh.scripts import UnexpectedOutput

Fault = Callable[[ScriptedWindows, SshServer, str], Awaitable[tuple[bytes, bytes, int] | None]]


@asynccontextmanager
async def windows(
    folder: Path, *, fault: Fault | None = None, timeouts: Timeouts = SHORT, **known: object
) -> AsyncIterator[tuple[ScriptedWindows, SshServer, SshHost]]:
    """`fault` handles a script first, and may leave it to the machine."""
    machine = ScriptedWindows(folder, **known)  # type: ignore[arg-type]

    async def reply(script: str) -> tuple[bytes, bytes, int]:
        answer = await fault(machine, server, script) if fault else None
        return answer or await machine.reply(script)

    async with ssh_server(folder, reply) as server, server.host(timeouts=timeouts) as host:
        yield machine, server, host


def cut_off(server: SshServer) -> None:
    """Abort all connections."""
    for connection in server.connections:
        connection.abort()


async def test_instance_converges_and_the_second_run_does_nothing(
    tmp_path: Path,
) -> None:
    progress: list[str] = []
    async with windows(tmp_path) as (machine, server, host):
        planned = await plan(host, DESIRED)
        assert planned[0].kind is StepKind.ENABLE_FEATURE
        state = await converge(host, DESIRED, progress.append)
        assert await plan(host, DESIRED) == ()
        before = len(machine.called)
        second_progress: list[str] = []
        assert await converge(host, DESIRED, second_progress.append) == state
    assert second_progress == []
    assert {command[0] for command in machine.called[before:]} <= {
        "chcp.com", "reg.exe", "powershell.exe", "dism.exe", "type", "dir", "certutil.exe",
        "sc.exe", r"C:\k\bin\crictl.exe",
    }  # fmt: skip
    assert machine.services["kubelet"].line == LINE
    assert machine.services["kubelet"].state == "RUNNING"
    assert machine.images == ["registry.example/pause:1"]
    assert server.local(r"C:\k\bin\containerd.exe").read_bytes() == b"containerd"
    assert any("restart the host" in line for line in progress)
    assert not list(server.local(r"C:\Windows\Temp").iterdir())


async def test_secrets_are_in_no_command_script_or_message(tmp_path: Path) -> None:
    progress: list[str] = []
    async with windows(tmp_path) as (_machine, server, host):
        await converge(host, DESIRED, progress.append)
    assert server.local(r"C:\k\containerd\secret").read_text() == "s3cret"
    assert "s3cret" not in "".join([*progress, *server.commands, *server.scripts])


async def test_repeatedly_interrupted_run_is_finished_by_the_next(
    tmp_path: Path,
) -> None:
    chance = random.Random(4)  # cutting each Nth script could cut every run at the same place
    is_faulty = True

    async def fault(
        _: ScriptedWindows, server: SshServer, __: str
    ) -> tuple[bytes, bytes, int] | None:
        if not is_faulty or chance.random() > 0.25:
            return None
        cut_off(server)
        return b"", b"", 0

    async with windows(tmp_path / "whole") as (_, server, host):
        await converge(host, DESIRED, print)
        scripts = len(server.scripts)
    timeouts = replace(SHORT, shutdown=0.3)
    async with windows(tmp_path / "cut", fault=fault, timeouts=timeouts) as (machine, _, host):
        for _ in range(5 * scripts):
            try:
                await converge(host, DESIRED, print)
            except InstanceUnreachable:
                continue
            break
        is_faulty = False
        assert await plan(host, DESIRED) == ()
    assert machine.services["kubelet"].state == "RUNNING"


def snapshot(machine: ScriptedWindows) -> str:
    """Return everything a step may change; temporary scripts are ignored."""
    drive = sorted(
        str(one) for one in machine.folder.rglob("*") if "Windows/Temp" not in one.as_posix()
    )
    return f"{drive} {machine.services} {machine.networks} {machine.images} {machine.features}"


async def cut_off_after_change(
    machine: ScriptedWindows, server: SshServer, script: str
) -> tuple[bytes, bytes, int]:
    """Run the script, and cut the connection if it changed anything."""
    before = snapshot(machine)
    answer = await machine.reply(script)
    if snapshot(machine) != before:
        cut_off(server)
    return answer


async def finishes(host: SshHost) -> bool:
    try:
        await converge(host, DESIRED, print)
    except InstanceUnreachable:
        return False
    return True


async def test_migration_from_docker_survives_interruption_after_each_change(
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
    interruptions: list[str] = []
    async with windows(
        tmp_path,
        fault=cut_off_after_change,
        services=old,
        networks=networks,
        features={"Containers": "Enabled"},
    ) as (machine, server, host):
        while True:
            async with server.host() as next_host:
                if await finishes(next_host):
                    break
            kubelet = machine.services.get("kubelet")
            if kubelet is None:
                interruptions.append(
                    "without a kubelet" + " and network" * (machine.networks == [nat])
                )
            elif "docker" in kubelet.depends:
                interruptions.append(f"the old kubelet is {kubelet.state}")
                assert machine.networks == networks, (
                    "its networks stay as long as the old kubelet exists"
                )
            else:
                interruptions.append(f"the new kubelet is {kubelet.state}")
                assert machine.networks == [nat]
            assert repr(machine.services["docker"]) == untouched
        assert await plan(host, DESIRED) == ()
    assert list(dict.fromkeys(interruptions)) == [
        "the old kubelet is STOPPED",
        "without a kubelet",
        "without a kubelet and network",
        "the new kubelet is STOPPED",
        "the new kubelet is RUNNING",
    ]
    assert machine.services["kubelet"].line == LINE
    assert machine.services["containerd"].state == "RUNNING"
    assert machine.images == ["registry.example/pause:1"]


async def test_step_without_effect_has_failed(tmp_path: Path) -> None:
    async with windows(tmp_path, stubborn={"move"}) as (_, _server, host):
        with pytest.raises(StepFailed) as caught:
            await converge(host, DESIRED, print)
    message = str(caught.value)
    assert message.startswith(r"win-1: could not put the file C:\k\bin\containerd.exe: expected")
    assert "found no such file" in message
    assert "the service containerd has the file open" in message


@dataclass(frozen=True)
class FaultCase:
    """A fault injected into the script that contains `at`, and the expected error."""

    title: str
    kind: type[WinpodError]
    cause: str
    at: str = ""
    fault: Fault | None = None
    desired: DesiredState = DESIRED
    reason: str = "InstanceFailed"


async def fault_cut_off(_: ScriptedWindows, server: SshServer, __: str) -> None:
    cut_off(server)


async def fault_hang(*_: object) -> None:
    await asyncio.sleep(60)


async def fault_garbage(*_: object) -> tuple[bytes, bytes, int]:
    return b"x\r\n", b"", 0


async def fault_no_state(
    machine: ScriptedWindows, _: SshServer, script: str
) -> tuple[bytes, bytes, int]:
    output, errors, code = await machine.reply(script)
    return output.replace(b"State :", b"Stand :"), errors, code


async def fault_login_refused(_: ScriptedWindows, server: SshServer, __: str) -> None:
    server.key = asyncssh.generate_private_key("ssh-ed25519")
    cut_off(server)


FAULTS = {
    "full disk": FaultCase(
        r"put the file C:\k\bin\containerd.exe: expected SHA256 ",
        TransferFailed,
        r"C:\\k\\bin\\containerd.exe.winpod-new could not be written: No space left on device\.",
    ),
    "lost connection": FaultCase(
        "create the service containerd and 1 more: expected C:",
        InstanceUnreachable,
        r"the connection to 127\.0\.0\.1 was lost: .*\.",
        "sc.exe create",
        fault_cut_off,
        reason="InstanceUnreachable",
    ),
    "hanging command": FaultCase(
        "start the service containerd: expected running, found stopped",
        CommandTimeout,
        r"`sc\.exe start containerd` timed out after 3 seconds\.",
        "sc.exe start",
        fault_hang,
        reason="InstanceUnreachable",
    ),
    "unexpected output": FaultCase(
        "enable the feature Containers: expected enabled, found disabled",
        UnexpectedOutput,
        r"dism reports no state of the feature Containers: .*\.",
        "enable-feature",
        fault_no_state,
    ),
    "no boot time": FaultCase(
        "restart the host: expected host rebooted, found not rebooted since the change",
        UnexpectedOutput,
        r"PowerShell did not report the boot time: x\.",
        "LastBootUpTime",
        fault_garbage,
    ),
    "host does not come back": FaultCase(
        "restart the host: expected host rebooted",
        RebootTimeout,
        r"the host did not come back within 0 minutes of its restart\.",
        "shutdown.exe",
        fault_login_refused,
        reason="InstanceUnreachable",
    ),
    "command too long": FaultCase(
        "create the service containerd and 1 more: expected C:",
        InvalidInput,
        r"a command has \d+ characters, and the limit of cmd is 8191: .*\.",
        desired=replace(
            DESIRED,
            services=(DESIRED.services[0], replace(DESIRED.services[1], command_line="x" * 9000)),
        ),
    ),
}


@pytest.mark.parametrize("name", FAULTS)
async def test_interrupting_error_names_the_step_and_has_a_hint(name: str, tmp_path: Path) -> None:
    """The type of the error, and the event reason, stay."""
    case = FAULTS[name]

    async def fault(
        machine: ScriptedWindows, server: SshServer, script: str
    ) -> tuple[bytes, bytes, int] | None:
        if case.fault and case.at in script and "Get-PSDrive" not in script:
            return await case.fault(machine, server, script)
        return None

    timeouts = replace(SHORT, run=3.0, boot=0.5)
    async with windows(tmp_path, fault=fault, timeouts=timeouts) as (_, server, host):
        if case.kind is TransferFailed:
            new = server.local(r"C:\k\bin\containerd.exe.winpod-new")
            new.parent.mkdir(parents=True)
            new.symlink_to("/dev/full")
        with pytest.raises(WinpodError) as caught:
            await converge(host, case.desired, print)
    found = caught.value
    assert found.message.startswith(f"win-1: could not {case.title}")
    assert ", found " in found.message
    assert (type(found), reason_of(found)) == (case.kind, case.reason)
    assert re.search(f"; {case.cause}$", found.message), found.message
    assert found.hint


async def test_unreadable_log_does_not_hide_that_containerd_is_down(
    tmp_path: Path,
) -> None:
    async with windows(tmp_path, does_not_start={"containerd"}) as (_, server, host):
        log = server.local(r"C:\var\log\containerd\containerd.log")
        log.mkdir(parents=True)
        with pytest.raises(ContainerdNotRunning) as caught:
            await converge(host, DESIRED, print)
    assert "containerd.log could not be read" in str(caught.value)


async def test_containerd_failure_includes_the_log_tail(
    tmp_path: Path,
) -> None:
    async with windows(tmp_path, does_not_start={"containerd"}) as (_, server, host):
        log = server.local(r"C:\var\log\containerd\containerd.log")
        log.parent.mkdir(parents=True)
        log.write_text("x" * 20_000 + '\nlevel=fatal msg="no plugin"\n')
        with pytest.raises(ContainerdNotRunning) as caught:
            await converge(host, DESIRED, print)
    assert str(caught.value).startswith("win-1: containerd is not running: expected running")
    assert 'msg="no plugin"' in str(caught.value)


async def test_removal_removes_all_of_winpod_and_nothing_else(tmp_path: Path) -> None:
    docker = ScriptedService(r"C:\docker\dockerd.exe", state="RUNNING")
    async with windows(tmp_path, services={"docker": docker}) as (machine, server, host):
        await converge(host, DESIRED, print)
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


async def test_only_stale_scripts_are_removed(tmp_path: Path) -> None:
    async with windows(tmp_path) as (_, server, host):
        temporary = server.local(r"C:\Windows\Temp")
        for name in ("winpod-old.cmd", "winpod-young.cmd", "theirs.cmd"):
            (temporary / name).touch()
        os.utime(temporary / "winpod-old.cmd", (0, 0))
        os.utime(temporary / "theirs.cmd", (0, 0))
        await host.remove_stale_scripts()
        assert sorted(one.name for one in temporary.iterdir()) == ["theirs.cmd", "winpod-young.cmd"]


async def test_cancelled_run_leaves_no_partial_file(tmp_path: Path) -> None:
    async with windows(tmp_path) as (_, server, host):
        await converge(host, replace(DESIRED, files=(), services=(), images=()), print)
        source = tmp_path / "large"
        with source.open("wb") as file:
            file.truncate(8 << 20)
        large = replace(
            DESIRED.files[0], source=source, content=None, sha256="0" * 64, size=8 << 20
        )
        desired = replace(DESIRED, files=(large,), services=(), images=())
        running = asyncio.create_task(converge(host, desired, print))
        new = server.local(r"C:\k\bin\containerd.exe.winpod-new")
        for _ in range(2000):
            if new.exists():
                break
            await asyncio.sleep(0.005)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert not new.exists()


async def test_state_has_the_queried_facts(tmp_path: Path) -> None:
    async with windows(tmp_path) as (machine, _, host):
        state = await read_state(host, DESIRED)
    assert state.hostname == machine.hostname
    assert state.free_bytes == machine.free
