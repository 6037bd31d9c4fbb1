"""Instances on a Windows host that is Wine: joined, moved off Docker, upgraded, troubled, removed.

Registry, service manager, locks, SSH and containerd.exe are real (tests/e2e/windows_host says what
is not). What has to do with several instances and an operator is held with lighter stand-ins.
"""

import asyncio
import json
import os
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from tests.cli.winpod import Ran, winpod
from tests.e2e.controlplane import ControlPlane
from tests.e2e.node_process import found, is_ready, node
from tests.e2e.windows_host import WindowsHost, programs, windows_host
from tests.e2e.windows_host.host import FRESH, SERVER_2019, until
from tests.e2e.windows_host.kubelet import playing_kubelet
from tests.e2e.windows_host.machine import make_key
from tests.e2e.windows_host.payload import lay_programs

from winpod.cluster.instance_settings import InstanceSettings
from winpod.images.base import Base
from winpod.instances import applying
from winpod.instances.blueprint import blueprint, everything_of_ours
from winpod.instances.desired import Desired
from winpod.instances.errors import (
    DowngradeRefused,
    HostKeyChanged,
    InstanceUnfit,
    LoginRefused,
    StepFailed,
    Unreachable,
)
from winpod.instances.host_keys import KeysInMemory
from winpod.instances.joining import Joining
from winpod.instances.keys import add_line, public_line, remove_line
from winpod.instances.login import Login, read_key
from winpod.instances.payload import make_payload
from winpod.instances.ssh import Host, TransferFailed
from winpod.instances.state import State
from winpod.instances.steps import Do
from winpod.instances.surveying import identify
from winpod.windows.builds import parse_build
from winpod.windows.errors import WinpodError

R = TypeVar("R")
NODE = "win-story"
TOKEN = "abcdef.0123456789abcdef"
CRICTL = (
    r"C:\k\bin\crictl.exe --timeout 20s --runtime-endpoint npipe://./pipe/containerd-containerd"
)
DUMP = r"C:\k\bin\containerd.exe --config C:\k\containerd\containerd.toml config dump"
HANDLERS = {
    "runhcs-wcow-process",
    "runhcs-wcow-hypervisor",
    "runhcs-wcow-hypervisor-20348",
}
KILLS = (
    "enable the feature Containers",
    "it restarts",
    r"make the directory C:\k:",
    r"put the file C:\k\bin\containerd.exe",
    r"put the file C:\k\kubelet\bootstrap.kubeconfig",
    "create the service containerd",
    "start the service containerd",
    "start the service kubelet",
)
AWAY = ("cannot be reached", "was lost", "may have been shut down")
OLD_KUBELET = r"C:\k\kubelet.exe --container-runtime=docker --windows-service"
NETWORKS = {
    "11111111-2222-3333-4444-555555555555": "nat",
    "66666666-7777-8888-9999-000000000000": "OVNKubernetesHybridOverlayNetwork",
}


class Laptop:
    """`winpod instance`, as a person has it."""

    def __init__(self, home: Path, host: WindowsHost, plane: ControlPlane) -> None:
        self.home = home
        self._host = host
        key, address = str(host.key), host.address
        self._which = ("--key", key, "--address", address, "--port", str(host.port))
        self._cluster = ("--kubeconfig", str(plane.kubeconfig))
        self._payload = ("--payload", str(lay_programs(home / "payload", "1.0.0")))
        settings = home / "settings.yaml"
        settings.write_text("instances: {hypervisor: true, joinSeconds: 90}\n")
        self._settings = ("--config", str(settings))
        made = winpod("instance", "payload", self._payload[1], "--version", "1.0.0", home=home)
        assert made.code == 0, made.err

    def words(self, command: str) -> list[str]:
        words = ["instance", command, *self._which]
        if command in ("apply", "plan"):
            words += [*self._cluster, *self._payload, *self._settings]
        if command == "remove":
            words += [*self._cluster, *self._settings, "--yes"]
        if command == "gather":
            words += ["--directory", str(self.home)]
        return words

    def instance(self, command: str, *more: str) -> Ran:
        return winpod(*self.words(command), *more, home=self.home)

    def apply_and_die(self, when: str) -> None:
        """Killed as soon as it says that it does this; a host that restarts is tried again."""
        told = self._killed(when)
        while not any(when in line for line in told):
            assert any(why in told[-1] for why in AWAY), told
            told = self._killed(when)

    def _killed(self, when: str) -> list[str]:
        environment = {**os.environ, "HOME": str(self.home)}
        environment.pop("XDG_CONFIG_HOME", None)
        command = [sys.executable, "-m", "winpod", *self.words("apply")]
        told: list[str] = []
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment
        ) as process:
            assert process.stderr is not None
            for line in process.stderr:
                told.append(line)
                if when in line:
                    process.kill()
        return told


def steps_in(text: str) -> list[str]:
    return [line for line in text.splitlines() if any(f": {do} " in line for do in Do)]


def test_a_fresh_server_becomes_a_node_whoever_is_killed_on_the_way_and_leaves_without_a_trace(
    control_plane: ControlPlane, base: Base, tmp_path: Path
) -> None:
    host_folder = tmp_path / "host"
    with windows_host(host_folder, base, features=FRESH, name=NODE) as host:
        laptop = Laptop(tmp_path, host, control_plane)
        with playing_kubelet(host, NODE):
            for step in KILLS:
                laptop.apply_and_die(step)
            applied = laptop.instance("apply")
            assert applied.code == 0, applied.err
            assert is_ready(control_plane, NODE)
            told = node(control_plane, NODE)["status"]["nodeInfo"]
            assert told["containerRuntimeVersion"] == "containerd://2.4.2"
            assert_serves_what_was_asked(host)

            again = laptop.instance("apply", "-o", "json")
            assert again.code == 0
            assert steps_in(again.err) == []
            assert json.loads(laptop.instance("plan", "-o", "json").out)[0]["steps"] == []

            token = bootstrap_token(control_plane)
            gathered = laptop.instance("gather")
            assert gathered.code == 0, gathered.err
            assert_has_logs_and_no_secrets(next(tmp_path.glob("*.tar.gz")), token)

            removed = laptop.instance("remove")
            assert removed.code == 0, removed.err
        assert not found(control_plane, f"/api/v1/nodes/{NODE}")
        assert_nothing_of_ours(host)
        assert token not in applied.err + again.err + gathered.err + removed.err


def assert_serves_what_was_asked(host: WindowsHost) -> None:
    dump = host.done(f"{DUMP} 2>nul")
    config = tomllib.loads(dump)
    runtimes = config["plugins"]["io.containerd.cri.v1.runtime"]["containerd"]["runtimes"]
    assert set(runtimes) == HANDLERS
    answer = json.loads(host.done(f"{CRICTL} info 2>nul"))
    assert {one.get("name", "") for one in answer["runtimeHandlers"]} == {"", *HANDLERS}
    isolation = {
        name: runtime["options"].get("SandboxIsolation", 0)
        for name, runtime in answer["config"]["containerd"]["runtimes"].items()
    }
    assert isolation == {name: int("hypervisor" in name) for name in HANDLERS}
    assert answer["config"]["cni"]["confDir"] == r"C:\k\cni\config"
    kubelet = host.done(r"reg query HKLM\SYSTEM\CurrentControlSet\Services\kubelet")
    assert "--container-runtime-endpoint=npipe://./pipe/containerd-containerd" in kubelet
    assert "--container-runtime=" not in kubelet
    assert "DependOnService    REG_MULTI_SZ    containerd\n" in kubelet


def assert_has_logs_and_no_secrets(archive: Path, token: str) -> None:
    with tarfile.open(archive) as opened:
        content = {
            member.name.partition("/")[2]: file.read().decode()
            for member in opened.getmembers()
            if (file := opened.extractfile(member))
        }
    assert '"containerd"' in content["state.json"]
    assert "runhcs-wcow-process" in content["crictl-info.txt"]
    assert "runhcs-wcow-process" in content["C/k/containerd/containerd.toml"]
    assert "containerd successfully booted" in content["C/var/log/containerd/containerd.log"]
    everything = "".join(content.values())
    assert token not in everything
    assert "PRIVATE KEY" not in everything
    assert not [name for name in content if "kubeconfig" in name]


def assert_nothing_of_ours(host: WindowsHost) -> None:
    assert not host.path(r"C:\k").exists()
    assert not host.path(r"C:\var").exists()
    ours = ("containerd", "kubelet", "windows_exporter")
    assert set(host.services(*ours).values()) == {"absent"}
    assert not [one for one in host.path(r"C:\windows\temp").iterdir() if "winpod" in one.name]


def bootstrap_token(plane: ControlPlane) -> str:
    secrets = found(plane, "/api/v1/namespaces/kube-system/secrets")["items"]
    tokens = [one for one in secrets if one["type"] == "bootstrap.kubernetes.io/token"]
    text = plane.kubectl(
        *("get", "secret", "-n", "kube-system", tokens[-1]["metadata"]["name"]),
        *("-o", 'go-template={{index .data "token-secret" | base64decode}}'),
    )
    return text.strip()


@pytest.fixture(scope="module")
def docker_host(tmp_path_factory: pytest.TempPathFactory, base: Base) -> Iterator[WindowsHost]:
    """As an operator of older days left it: a kubelet on Docker, with its network."""
    folder = tmp_path_factory.mktemp("docker")
    with windows_host(folder, base, build=SERVER_2019) as host:
        host.install_docker()
        host.put(programs.stand_in("service"), r"C:\k\kubelet.exe")
        host.done(f'sc create kubelet binPath= "{OLD_KUBELET}" start= auto depend= docker')
        host.done("sc start kubelet")
        for identity, name in NETWORKS.items():
            host.add_network(identity, name, "overlay")
        yield host


class Reached:
    """The docker host, over one SSH key and one memory of host keys."""

    def __init__(self, host: WindowsHost, folder: Path) -> None:
        self.host = host
        self.told: list[str] = []
        self.keys = KeysInMemory()
        self._folder = folder
        self._desired: dict[str, Desired] = {}

    def desired(self, version: str) -> Desired:
        if version not in self._desired:
            payload = make_payload(lay_programs(self._folder / version, version), version)
            joining = Joining(
                "https://127.0.0.1:6443", "none", "win-docker", self.host.address, TOKEN
            )
            build = parse_build(SERVER_2019)
            self._desired[version] = blueprint(InstanceSettings(), payload, build, joining)
        return self._desired[version]

    def apply(self, version: str) -> State:
        desired = self.desired(version)
        self.told.clear()
        return self.with_host(lambda host: applying.apply(host, desired, self.told.append))

    def with_host(self, work: Callable[[Host], Awaitable[R]], key: Path | None = None) -> R:
        host = self.host
        login = Login("docker-1", host.address, host.user, host.port)

        async def run() -> R:
            secret = read_key((key or host.key).read_bytes())
            async with Host(login, secret, self.keys) as opened:
                return await work(opened)

        return asyncio.run(run())

    def apply_while(self, version: str, when: str, trouble: Callable[[], None]) -> str:
        """What it says when there is trouble as soon as it says that it does this."""
        desired = self.desired(version)

        async def work(host: Host) -> State:
            troubled: list[Awaitable[None]] = []

            def tell(line: str) -> None:
                if when in line and not troubled:
                    troubled.append(asyncio.ensure_future(asyncio.to_thread(trouble)))

            try:
                return await applying.apply(host, desired, tell)
            finally:
                await asyncio.gather(*troubled)

        with pytest.raises(WinpodError) as failed:
            self.with_host(work)
        assert isinstance(failed.value, Unreachable)
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
        reached.with_host(lambda host: applying.read(host, desired), other)
    assert "administrators_authorized_keys" in str(refused.value)


def test_a_full_disk_is_told_before_anything_is_stopped(reached: Reached) -> None:
    with reached.host.full_disk(leaving=64 << 20), pytest.raises(InstanceUnfit) as unfit:
        reached.apply("1.1.0")
    assert "MiB left" in str(unfit.value)
    with reached.host.full_disk(), pytest.raises(TransferFailed) as failed:
        reached.apply("1.1.0")
    assert "Disk full. See that drive C: has room" in str(failed.value)
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
    restarted = reached.apply_while("1.1.0", "put the file", host.reboot)
    assert "docker-1" in restarted
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
    ours = everything_of_ours(InstanceSettings())
    before = pid_of_docker(host)
    reached.with_host(lambda one: applying.remove(one, ours, reached.told.append))
    assert_nothing_of_ours(host)
    assert pid_of_docker(host) == before
    assert host.networks() == ["nat"]


def test_a_new_key_takes_the_place_of_the_old_one_where_windows_keeps_it(
    reached: Reached, tmp_path: Path
) -> None:
    host, old, new = reached.host, reached.host.key, make_key(tmp_path / "new")
    lines = {key: public_line(read_key(key.read_bytes())) for key in (old, new)}
    reached.with_host(lambda one: add_line(one, lines[new]))
    assert reached.with_host(lambda one: remove_line(one, lines[old]), new)
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
        reached.with_host(lambda one: applying.read(one, desired))
    assert "winpod instance trust docker-1" in str(changed.value)
