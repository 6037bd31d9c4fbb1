"""Instances on a Windows host that is Wine: moved off Docker, upgraded, troubled, removed.

Registry, service manager, locks, SSH and containerd.exe are real (tests/e2e/windows_host says what
is not). Three of them under one operator are in test_instances_wine.py.
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
    """As an operator of older days left it: a kubelet on Docker, with its network."""
    folder = tmp_path_factory.mktemp("docker")
    with windows_host(folder, base, build=SERVER_2019) as host:
        host.install_docker()
        host.put(programs.stand_in("service"), r"C:\k\kubelet.exe")
        host.done(f'sc create kubelet binPath= "{OLD_KUBELET}" start= auto depend= docker')
        host.start("kubelet")
        for identity, name in NETWORKS.items():
            host.add_network(identity, name, "overlay")
        yield host


class Reached:
    """The docker host, over one SSH key and one memory of host keys."""

    def __init__(self, host: WindowsHost, folder: Path) -> None:
        self.host = host
        self.told: list[str] = []
        self.keys = MemoryHostKeys()
        self._folder = folder
        self._desired: dict[str, DesiredState] = {}

    def desired(self, version: str) -> DesiredState:
        if version not in self._desired:
            payload = make_payload(lay_programs(self._folder / version, version), version)
            joining = JoinConfig(
                "https://127.0.0.1:6443", "none", "win-docker", self.host.address, TOKEN
            )
            build = parse_build(SERVER_2019)
            self._desired[version] = build_desired_state(
                InstanceSettings(), payload, build, joining
            )
        return self._desired[version]

    def apply(self, version: str) -> InstanceState:
        desired = self.desired(version)
        self.told.clear()
        return self.with_host(lambda host: converge.converge(host, desired, self.told.append))

    def with_host(self, work: Callable[[SshHost], Awaitable[R]], key: Path | None = None) -> R:
        host = self.host
        login = SshLogin("docker-1", host.address, host.user, host.port)

        async def run() -> R:
            secret = read_key((key or host.key).read_bytes())
            async with SshHost(login, secret, self.keys) as opened:
                return await work(opened)

        return asyncio.run(run())

    def apply_while(self, version: str, when: str, trouble: Callable[[], object]) -> str:
        """What it says when there is trouble as soon as it says that it does this."""
        desired = self.desired(version)

        async def work(host: SshHost) -> InstanceState:
            troubled: list[Awaitable[object]] = []

            def tell(line: str) -> None:
                if when in line and not troubled:
                    troubled.append(asyncio.ensure_future(asyncio.to_thread(trouble)))

            try:
                return await converge.converge(host, desired, tell)
            finally:
                await asyncio.gather(*troubled)

        with pytest.raises(WinpodError) as failed:
            self.with_host(work)
        assert isinstance(failed.value, InstanceUnreachable)
        return str(failed.value)


@pytest.fixture(scope="module")
def reached(docker_host: WindowsHost, tmp_path_factory: pytest.TempPathFactory) -> Reached:
    return Reached(docker_host, tmp_path_factory.mktemp("payloads"))


def pid_of_docker(host: WindowsHost) -> str:
    text = host.done("sc queryex docker")
    assert "RUNNING" in text
    return next(line.split()[-1] for line in text.splitlines() if "PID" in line)


def test_a_node_on_docker_moves_to_containerd_and_docker_runs_on_untouched(
    reached: Reached,
) -> None:
    host = reached.host
    key = r"reg query HKLM\SYSTEM\CurrentControlSet\Services\docker"
    before = pid_of_docker(host), host.done(key)
    state = reached.apply("1.0.0")
    assert (pid_of_docker(host), host.done(key)) == before
    assert state.services["kubelet"].depends == ("containerd",)
    assert host.services("containerd", "kubelet") == {"containerd": "running", "kubelet": "running"}
    assert host.networks() == ["nat"]
    assert not host.path(r"C:\k\kubelet.exe").exists()
    assert any("remove the service kubelet" in line for line in reached.told)


def test_whoever_has_another_key_is_not_let_in(reached: Reached, tmp_path: Path) -> None:
    desired = reached.desired("1.0.0")
    other = make_key(tmp_path / "other")
    with pytest.raises(LoginRefused) as refused:
        reached.with_host(lambda host: converge.read_state(host, desired), other)
    assert "administrators_authorized_keys" in str(refused.value)


def test_a_full_disk_is_told_before_anything_is_stopped(reached: Reached) -> None:
    with reached.host.full_disk(leaving=64 << 20), pytest.raises(InstanceUnsuitable) as unfit:
        reached.apply("1.1.0")
    assert "MiB free" in str(unfit.value)
    with reached.host.full_disk(), pytest.raises(TransferFailed) as failed:
        reached.apply("1.1.0")
    assert "Disk full. Check that drive C: has free space" in str(failed.value)
    assert reached.told == []
    assert reached.host.services("kubelet") == {"kubelet": "running"}


def test_a_file_that_is_held_open_is_named_and_the_same_again_goes_on(reached: Reached) -> None:
    crictl = r"C:\k\bin\crictl.exe"
    with reached.host.held(crictl), pytest.raises(StepFailed) as failed:
        reached.apply("1.1.0")
    assert crictl in str(failed.value)
    assert not reached.host.path(rf"{crictl}.winpod-new").exists()


def test_a_host_that_restarts_or_dies_in_the_middle_of_an_upgrade_is_gone_on_with(
    reached: Reached,
) -> None:
    host = reached.host
    before = host.booted()
    restart = partial(host.run, "shutdown /r /t 0")
    assert "docker-1" in reached.apply_while("1.1.0", "put the file", restart)
    until(lambda: host.booted() not in ("", before), "the host is back")
    died = reached.apply_while("1.1.0", "start the service", host.die)
    assert "docker-1" in died
    host.switch_on()
    host.wait_until_up()
    assert reached.apply("1.1.0").version == "1.1.0"
    until(lambda: host.services("docker") == {"docker": "running"}, "docker runs again")
    assert reached.apply("1.1.0").version == "1.1.0"
    assert reached.told == []


def test_an_older_payload_is_refused_and_nothing_is_done(reached: Reached) -> None:
    with pytest.raises(DowngradeRefused):
        reached.apply("1.0.0")
    assert reached.told == []


def test_removal_leaves_docker_and_nothing_of_ours(reached: Reached) -> None:
    host = reached.host
    ours = desired_removal(InstanceSettings())
    before = pid_of_docker(host)
    reached.with_host(lambda one: converge.remove(one, ours, reached.told.append))
    assert_nothing_of_ours(host)
    assert pid_of_docker(host) == before
    assert host.networks() == ["nat"]


def test_a_new_key_takes_the_place_of_the_old_one_where_windows_keeps_it(
    reached: Reached, tmp_path: Path
) -> None:
    host, old, new = reached.host, reached.host.key, make_key(tmp_path / "new")
    lines = {key: public_line(read_key(key.read_bytes())) for key in (old, new)}
    reached.with_host(lambda one: authorize_key(one, lines[new]))
    assert reached.with_host(lambda one: revoke_key(one, lines[old]), new)
    host.key = new
    assert "10.0.17763" in host.done("ver")
    with pytest.raises(LoginRefused):
        reached.with_host(identify, old)


def test_a_host_with_another_host_key_is_not_spoken_to(reached: Reached) -> None:
    host, desired = reached.host, reached.desired("1.1.0")
    before = host.host_key()
    host.change_host_key()
    until(lambda: host.host_key() not in ("", before), "sshd shows the new key")
    with pytest.raises(HostKeyChanged) as changed:
        reached.with_host(lambda one: converge.read_state(one, desired))
    assert "winpod instance trust docker-1" in str(changed.value)
