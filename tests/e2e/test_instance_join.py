"""`winpod instance` on a Windows host under Wine with a real control plane: from fresh to node.

winpod's node agent acts as the kubelet, with the files that it finds on the host's disk.
"""

import json
import os
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

from tests.e2e.controlplane import ControlPlane
from tests.e2e.windows_host import WindowsHost, windows_host
from tests.e2e.windows_host.host import FRESH, until
from tests.e2e.windows_host.kubelet import playing_kubelet
from tests.e2e.windows_host.payload import assert_nothing_of_ours, lay_programs
from tests.support.e2e.node_process import found, is_ready, node
from tests.support.winpod_cli import Ran, winpod

from winpod.images.base.builder import Base
from winpod.instances.planner.steps import StepKind

NODE = "win-story"
CRICTL = (
    r"C:\k\bin\crictl.exe --timeout 200s --runtime-endpoint npipe://./pipe/containerd-containerd"
)
DUMP = r"C:\k\bin\containerd.exe --config C:\k\containerd\containerd.toml config dump"
HANDLERS = {
    "runhcs-wcow-process",
    "runhcs-wcow-hypervisor",
    "runhcs-wcow-hypervisor-20348",
}
REBOOT = "rebooting"
KILLS = (
    "enable the feature Containers",
    REBOOT,
    r"make the directory C:\k:",
    r"put the file C:\k\bin\containerd.exe",
    r"put the file C:\k\kubelet\bootstrap.kubeconfig",
    "create the service containerd",
    "start the service containerd",
    "start the service kubelet",
)


class InstanceCommand:
    """`winpod instance` for one host."""

    def __init__(self, home: Path, host: WindowsHost, plane: ControlPlane) -> None:
        self.home = home
        self._host = host
        key, address = str(host.key), host.address
        self._target = ("--key", key, "--address", address, "--port", str(host.port))
        self._cluster = ("--kubeconfig", str(plane.kubeconfig))
        self._payload = ("--payload", str(lay_programs(home / "payload", "1.0.0")))
        settings = home / "settings.yaml"
        settings.write_text("instances: {hypervisor: true, joinSeconds: 900}\n")
        self._settings = ("--config", str(settings))
        made = winpod("instance", "payload", self._payload[1], "--version", "1.0.0", home=home)
        assert made.code == 0, made.err

    def arguments(self, command: str) -> list[str]:
        arguments = ["instance", command, *self._target]
        if command in ("apply", "plan"):
            arguments += [*self._cluster, *self._payload, *self._settings]
        if command == "remove":
            arguments += [*self._cluster, *self._settings, "--yes"]
        if command == "gather":
            arguments += ["--directory", str(self.home)]
        return arguments

    def instance(self, command: str, *more: str) -> Ran:
        try:
            return winpod(*self.arguments(command), *more, home=self.home)
        except subprocess.TimeoutExpired as error:
            running = self._host.machine.command_lines()
            raise AssertionError(
                f"{command} timed out with {error.stderr!r}; running: {running}"
            ) from error

    def apply_and_kill(self, step: str) -> None:
        """Kill `apply` as soon as it logs the step; wait for the host if it reboots."""
        before = self._host.booted() if step == REBOOT else ""
        log = self._run_until(step)
        assert any(step in line for line in log), log
        if step == REBOOT:
            until(lambda: self._host.booted() not in ("", before), "the host has rebooted")

    def _run_until(self, step: str) -> list[str]:
        environment = {**os.environ, "HOME": str(self.home)}
        environment.pop("XDG_CONFIG_HOME", None)
        command = [sys.executable, "-m", "winpod", *self.arguments("apply")]
        log: list[str] = []
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment
        ) as process:
            assert process.stderr is not None
            for line in process.stderr:
                log.append(line)
                if step in line:
                    process.kill()
        return log


def steps_in(text: str) -> list[str]:
    return [line for line in text.splitlines() if any(f": {kind} " in line for kind in StepKind)]


def test_fresh_server_joins_despite_kills_and_is_removed_completely(
    control_plane: ControlPlane, base: Base, tmp_path: Path
) -> None:
    host_folder = tmp_path / "host"
    with windows_host(host_folder, base, features=FRESH, name=NODE) as host:
        command = InstanceCommand(tmp_path, host, control_plane)
        with playing_kubelet(host, NODE):
            for step in KILLS:
                command.apply_and_kill(step)
            applied = command.instance("apply")
            assert applied.code == 0, applied.err
            assert is_ready(control_plane, NODE)
            node_info = node(control_plane, NODE)["status"]["nodeInfo"]
            assert node_info["containerRuntimeVersion"] == "containerd://2.4.2"
            assert_configured(host)

            again = command.instance("apply", "-o", "json")
            assert again.code == 0
            assert steps_in(again.err) == []
            assert json.loads(command.instance("plan", "-o", "json").out)[0]["steps"] == []

            token = bootstrap_token(control_plane)
            gathered = command.instance("gather")
            assert gathered.code == 0, gathered.err
            assert_archive_has_logs_without_secrets(next(tmp_path.glob("*.tar.gz")), token)

            removed = command.instance("remove")
            assert removed.code == 0, removed.err
        assert not found(control_plane, f"/api/v1/nodes/{NODE}")
        assert_nothing_of_ours(host)
        assert token not in applied.err + again.err + gathered.err + removed.err


def assert_configured(host: WindowsHost) -> None:
    dump = host.done(f"{DUMP} 2>nul")
    config = tomllib.loads(dump)
    runtimes = config["plugins"]["io.containerd.cri.v1.runtime"]["containerd"]["runtimes"]
    assert set(runtimes) == HANDLERS
    answer = json.loads(host.done(f"{CRICTL} info 2>nul"))
    assert {handler.get("name", "") for handler in answer["runtimeHandlers"]} == {"", *HANDLERS}
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


def assert_archive_has_logs_without_secrets(archive: Path, token: str) -> None:
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


def bootstrap_token(plane: ControlPlane) -> str:
    secrets = found(plane, "/api/v1/namespaces/kube-system/secrets")["items"]
    tokens = [secret for secret in secrets if secret["type"] == "bootstrap.kubernetes.io/token"]
    text = plane.kubectl(
        *("get", "secret", "-n", "kube-system", tokens[-1]["metadata"]["name"]),
        *("-o", 'go-template={{index .data "token-secret" | base64decode}}'),
    )
    return text.strip()
