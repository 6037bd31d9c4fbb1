"""Startup, readiness and liveness probes of every kind with Windows programs."""

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.e2e.health_server import health_server
from tests.support.e2e.command_line import Winpod, winpod

from winpod.play.server import socket_path

__all__ = ["winpod"]

KINDS = ("http", "tcp", "grpc")
TCP_PORTS = {"started": 7001, "ready": 7002, "live": 7003}
PATIENCE = 300.0


@dataclass(frozen=True)
class Server:
    """A pod with a container per probe kind; a file holds the state that they report."""

    command: Winpod
    folder: Path

    def set_state(self, state: str) -> None:
        new = self.folder / "new"
        new.write_text(state)
        new.replace(self.folder / "state")

    def query(self, path: str) -> Any:
        """Query the `winpod play` process directly; a command per poll would be slow."""
        command_line = ["curl", "-sS", "--unix-socket", str(socket_path(self.command.root))]
        result = subprocess.run(
            [*command_line, f"http://play/{path}"], capture_output=True, check=True
        )
        return json.loads(result.stdout)

    def status(self) -> dict[str, Any]:
        answer = self.query("object?kind=Pod&namespace=default&name=health")
        return dict(answer["object"].get("status", {}))

    @property
    def address(self) -> str:
        self._wait(lambda: self.status().get("podIP"))
        return str(self.status()["podIP"])

    def statuses(self) -> dict[str, dict[str, Any]]:
        return {status["name"]: status for status in self.status().get("containerStatuses", ())}

    def wait_until(self, holds: Callable[[dict[str, Any]], bool]) -> None:
        """Wait until the condition holds for every container."""
        self._wait(lambda: (statuses := self.statuses()) and all(map(holds, statuses.values())))

    def wait_for_events(self, *messages: str) -> None:
        self._wait(lambda: set(messages) <= set(self.messages()))

    def _wait(self, holds: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not holds():
            state = json.dumps([self.statuses(), self.messages()], indent=1)
            assert time.monotonic() < deadline, state
            time.sleep(0.2)

    def messages(self) -> list[str]:
        return [event["message"] for event in self.query("events")]


def probe_handler(kind: str, endpoint: str) -> dict[str, Any]:
    handlers: dict[str, dict[str, Any]] = {
        "http": {"httpGet": {"port": "http", "path": f"/{endpoint}"}},
        "tcp": {"tcpSocket": {"port": TCP_PORTS[endpoint]}},
        "grpc": {"grpc": {"port": 9090, "service": endpoint}},
    }
    return handlers[kind]


def container(kind: str, image: str) -> dict[str, Any]:
    timing = {"periodSeconds": 1, "failureThreshold": 2, "timeoutSeconds": 60}
    return {
        "name": kind,
        "image": image,
        "command": ["C:\\health.exe", kind],
        "ports": [{"name": "http", "containerPort": 8080}] if kind == "http" else [],
        "volumeMounts": [{"name": "state", "mountPath": "C:\\state"}],
        "startupProbe": probe_handler(kind, "started") | timing | {"failureThreshold": 1000},
        "readinessProbe": probe_handler(kind, "ready") | timing,
        "livenessProbe": probe_handler(kind, "live") | timing,
    }


@pytest.fixture
def server(winpod: Winpod, tmp_path: Path) -> Iterator[Server]:
    content, state = tmp_path / "content", tmp_path / "state"
    content.mkdir()
    state.mkdir()
    shutil.copy(health_server(), content)
    image = f"oci:{tmp_path}/images:health"
    packed = winpod("image", "pack", str(content), "-t", image, "--os-version", "2022")
    assert packed.returncode == 0, packed.stderr
    spec = {
        "terminationGracePeriodSeconds": 1,
        "containers": [container(kind, image) for kind in KINDS],
        "volumes": [{"name": "state", "hostPath": {"path": str(state)}}],
    }
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "health"}, "spec": spec}
    (tmp_path / "pod.yaml").write_text(yaml.safe_dump(pod))
    server = Server(winpod, state)
    server.set_state("starting")
    started = winpod("play", str(tmp_path / "pod.yaml"), "--no-wait")
    assert started.returncode == 0, started.stderr
    yield server
    stopped = winpod("down")
    assert stopped.returncode == 0, stopped.stderr


def test_probes_of_every_kind_set_started_and_ready_and_restart_containers(
    server: Server,
) -> None:
    server.wait_for_events(*probe_failures("Startup", server, "started"))
    assert not any(status["started"] or status["ready"] for status in server.statuses().values())

    server.set_state("ready")
    server.wait_until(lambda status: status["started"] and status["ready"])

    server.set_state("busy")
    server.wait_until(lambda status: status["started"] and not status["ready"])
    server.wait_for_events(*probe_failures("Readiness", server, "ready"))
    assert {status["restartCount"] for status in server.statuses().values()} == {0}

    server.set_state("dead")
    server.wait_until(lambda status: status["restartCount"] > 0)
    server.set_state("ready")
    server.wait_until(lambda status: status["started"] and status["ready"])
    for kind in KINDS:
        server.wait_for_events(f"Container {kind} failed liveness probe, will be restarted")


def probe_failures(kind: str, server: Server, endpoint: str) -> list[str]:
    address = f"{server.address}:{TCP_PORTS[endpoint]}"
    return [
        f"{kind} probe failed: HTTP probe failed with statuscode: 503",
        f"{kind} probe failed: dial tcp {address}: connect: connection refused",
        f'{kind} probe failed: service unhealthy (responded with "NOT_SERVING")',
    ]
