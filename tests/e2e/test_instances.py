"""An instance on a Windows host under Wine: migrated from Docker, upgraded, failing, removed.

Registry, service manager, file locks, SSH and containerd.exe are real (tests/e2e/windows_host
describes what is not). test_instances_wine.py runs three hosts under one operator.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
from tests.e2e.windows_host import WindowsHost, programs, windows_host
from tests.e2e.windows_host.host import SERVER_2019, until
from tests.e2e.windows_host.machine import make_key
from tests.e2e.windows_host.payload import assert_nothing_of_ours, lay_programs

from winpod.errors import WinpodError
from winpod.images.base.builder import Base
from winpod.instances.errors import (
    DowngradeRefused,
    HostKeyChanged,
    InstanceUnreachable,
    InstanceUnsuitable,
    LoginRefused,
    StepFailed,
)
from winpod.instances.planner.desired import DesiredState
from winpod.instances.planner.state import InstanceState
from winpod.instances.software.desired_state import build_desired_state, desired_removal
from winpod.instances.software.kubelet_config import JoinConfig
from winpod.instances.software.payload import make_payload
from winpod.instances.ssh import converge
from winpod.instances.ssh.authorized_keys import authorize_key, public_line, revoke_key
from winpod.instances.ssh.facts import identify
from winpod.instances.ssh.host import SshHost, TransferFailed
from winpod.instances.ssh.login import MemoryHostKeys, SshLogin, read_key
from winpod.operator.instance_settings import InstanceSettings
from winpod.windows.builds import parse_build

R = TypeVar("R")
TOKEN = "abcdef.0123456789abcdef"
OLD_KUBELET = r"C:\k\kubelet.exe --container-runtime=docker --windows-service"
NETWORKS = {
    "11111111-2222-3333-4444-555555555555": "nat",
    "66666666-7777-8888-9999-000000000000": "OVNKubernetesHybridOverlayNetwork",
}


@pytest.fixture(scope="module")
def docker_host(tmp_path_factory: pytest.TempPathFactory, base: Base) -> Iterator[WindowsHost]:
    """A host as an older operator left it: a kubelet on Docker with its network."""
    folder = tmp_path_factory.mktemp("docker")
    with windows_host(folder, base, build=SERVER_2019) as host:
        host.install_docker()
        host.put(programs.stand_in("service"), r"C:\k\kubelet.exe")
        host.done(f'sc create kubelet binPath= "{OLD_KUBELET}" start= auto depend= docker')
        host.start("kubelet")
        for identity, name in NETWORKS.items():
            host.add_network(identity, name, "overlay")
        yield host


class Connection:
    """SSH access to the Docker host with one login key and known host keys."""

    def __init__(self, host: WindowsHost, folder: Path) -> None:
        self.host = host
        self.steps: list[str] = []
        self.keys = MemoryHostKeys()
        self._folder = folder
        self._desired: dict[str, DesiredState] = {}

    def desired(self, version: str) -> DesiredState:
        if version not in self._desired:
            payload = make_payload(lay_programs(self._folder / version, version), version)
            join = JoinConfig(
                "https://127.0.0.1:6443", "none", "win-docker", self.host.address, TOKEN
            )
            build = parse_build(SERVER_2019)
            self._desired[version] = build_desired_state(InstanceSettings(), payload, build, join)
        return self._desired[version]

    def apply(self, version: str) -> InstanceState:
        desired = self.desired(version)
        self.steps.clear()
        return self.with_host(lambda host: converge.converge(host, desired, self.steps.append))

    def with_host(self, action: Callable[[SshHost], Awaitable[R]], key: Path | None = None) -> R:
        host = self.host
        login = SshLogin("docker-1", host.address, host.user, host.port)

        async def run() -> R:
            secret = read_key((key or host.key).read_bytes())
            async with SshHost(login, secret, self.keys) as opened:
                return await action(opened)

        return asyncio.run(run())

    def apply_with_failure(
        self, version: str, step: str, inject_failure: Callable[[], object]
    ) -> str:
        """Inject a failure once the step is logged; return the error message."""
        desired = self.desired(version)

        async def action(host: SshHost) -> InstanceState:
            injected: list[Awaitable[object]] = []

            def log(line: str) -> None:
                if step in line and not injected:
                    injected.append(asyncio.ensure_future(asyncio.to_thread(inject_failure)))

            try:
                return await converge.converge(host, desired, log)
            finally:
                await asyncio.gather(*injected)

        with pytest.raises(WinpodError) as failed:
            self.with_host(action)
        assert isinstance(failed.value, InstanceUnreachable)
        return str(failed.value)


@pytest.fixture(scope="module")
def connection(docker_host: WindowsHost, tmp_path_factory: pytest.TempPathFactory) -> Connection:
    return Connection(docker_host, tmp_path_factory.mktemp("payloads"))


def pid_of_docker(host: WindowsHost) -> str:
    text = host.done("sc queryex docker")
    assert "RUNNING" in text
    return next(line.split()[-1] for line in text.splitlines() if "PID" in line)


def test_node_on_docker_is_migrated_and_docker_keeps_running(
    connection: Connection,
) -> None:
    host = connection.host
    key = r"reg query HKLM\SYSTEM\CurrentControlSet\Services\docker"
    before = pid_of_docker(host), host.done(key)
    state = connection.apply("1.0.0")
    assert (pid_of_docker(host), host.done(key)) == before
    assert state.services["kubelet"].depends == ("containerd",)
    assert host.services("containerd", "kubelet") == {"containerd": "running", "kubelet": "running"}
    assert host.networks() == ["nat"]
    assert not host.path(r"C:\k\kubelet.exe").exists()
    assert any("remove the service kubelet" in line for line in connection.steps)


def test_login_with_another_key_is_refused(connection: Connection, tmp_path: Path) -> None:
    desired = connection.desired("1.0.0")
    other = make_key(tmp_path / "other")
    with pytest.raises(LoginRefused) as refused:
        connection.with_host(lambda host: converge.read_state(host, desired), other)
    assert "administrators_authorized_keys" in str(refused.value)


def test_full_disk_is_reported_before_services_are_stopped(connection: Connection) -> None:
    with connection.host.full_disk(leaving=64 << 20), pytest.raises(InstanceUnsuitable) as unfit:
        connection.apply("1.1.0")
    assert "MiB free" in str(unfit.value)
    with connection.host.full_disk(), pytest.raises(TransferFailed) as failed:
        connection.apply("1.1.0")
    assert "Disk full. Check that drive C: has free space" in str(failed.value)
    assert connection.steps == []
    assert connection.host.services("kubelet") == {"kubelet": "running"}


def test_locked_file_is_named_in_the_error(connection: Connection) -> None:
    crictl = r"C:\k\bin\crictl.exe"
    with connection.host.held(crictl), pytest.raises(StepFailed) as failed:
        connection.apply("1.1.0")
    assert crictl in str(failed.value)
    assert not connection.host.path(rf"{crictl}.winpod-new").exists()


def test_upgrade_is_resumed_after_a_reboot_and_a_power_loss(
    connection: Connection,
) -> None:
    host = connection.host
    before = host.booted()
    restart = partial(host.run, "shutdown /r /t 0")
    assert "docker-1" in connection.apply_with_failure("1.1.0", "put the file", restart)
    until(lambda: host.booted() not in ("", before), "the host has rebooted")
    died = connection.apply_with_failure("1.1.0", "start the service", host.die)
    assert "docker-1" in died
    host.switch_on()
    host.wait_until_up()
    assert connection.apply("1.1.0").version == "1.1.0"
    until(lambda: host.services("docker") == {"docker": "running"}, "docker is running again")
    assert connection.apply("1.1.0").version == "1.1.0"
    assert connection.steps == []


def test_downgrade_is_refused_without_any_step(connection: Connection) -> None:
    with pytest.raises(DowngradeRefused):
        connection.apply("1.0.0")
    assert connection.steps == []


def test_removal_keeps_docker_and_leaves_no_winpod_files(connection: Connection) -> None:
    host = connection.host
    removal = desired_removal(InstanceSettings())
    before = pid_of_docker(host)
    connection.with_host(lambda ssh: converge.remove(ssh, removal, connection.steps.append))
    assert_nothing_of_ours(host)
    assert pid_of_docker(host) == before
    assert host.networks() == ["nat"]


def test_login_key_is_replaced_in_authorized_keys(connection: Connection, tmp_path: Path) -> None:
    host, old, new = connection.host, connection.host.key, make_key(tmp_path / "new")
    lines = {key: public_line(read_key(key.read_bytes())) for key in (old, new)}
    connection.with_host(lambda ssh: authorize_key(ssh, lines[new]))
    assert connection.with_host(lambda ssh: revoke_key(ssh, lines[old]), new)
    host.key = new
    assert "10.0.17763" in host.done("ver")
    with pytest.raises(LoginRefused):
        connection.with_host(identify, old)


def test_changed_host_key_is_refused(connection: Connection) -> None:
    host, desired = connection.host, connection.desired("1.1.0")
    before = host.host_key()
    host.change_host_key()
    until(lambda: host.host_key() not in ("", before), "sshd presents the new key")
    with pytest.raises(HostKeyChanged) as changed:
        connection.with_host(lambda ssh: converge.read_state(ssh, desired))
    assert "winpod instance trust docker-1" in str(changed.value)
