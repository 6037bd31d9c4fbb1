"""Probes of every kind into Windows programs: who has started, who is ready, who is restarted."""

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
    """A pod with a container for each kind; what they answer is one state, in a file."""

    command: Winpod
    folder: Path

    def become(self, state: str) -> None:
        new = self.folder / "new"
        new.write_text(state)
        new.replace(self.folder / "state")

    def ask(self, what: str) -> Any:
        """Of the process that plays, without a command in between: it is asked often."""
        line = ["curl", "-sS", "--unix-socket", str(socket_path(self.command.root))]
        told = subprocess.run([*line, f"http://play/{what}"], capture_output=True, check=True)
        return json.loads(told.stdout)

    def status(self) -> dict[str, Any]:
        told = self.ask("object?kind=Pod&namespace=default&name=health")
        return dict(told["object"].get("status", {}))

    @property
    def address(self) -> str:
        self._until(lambda: self.status().get("podIP"))
        return str(self.status()["podIP"])

    def statuses(self) -> dict[str, dict[str, Any]]:
        return {one["name"]: one for one in self.status().get("containerStatuses", ())}

    def until(self, is_so: Callable[[dict[str, Any]], bool]) -> None:
        """Of every container."""
        self._until(lambda: (seen := self.statuses()) and all(map(is_so, seen.values())))

    def until_said(self, *messages: str) -> None:
        self._until(lambda: set(messages) <= set(self.said()))

    def _until(self, is_so: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not is_so():
            told = json.dumps([self.statuses(), self.said()], indent=1)
            assert time.monotonic() < deadline, told
            time.sleep(0.2)

    def said(self) -> list[str]:
        return [one["message"] for one in self.ask("events")]


def asking(kind: str, what: str) -> dict[str, Any]:
    ways: dict[str, dict[str, Any]] = {
        "http": {"httpGet": {"port": "http", "path": f"/{what}"}},
        "tcp": {"tcpSocket": {"port": TCP_PORTS[what]}},
        "grpc": {"grpc": {"port": 9090, "service": what}},
    }
    return ways[kind]


def container(kind: str, image: str) -> dict[str, Any]:
    often = {"periodSeconds": 1, "failureThreshold": 2, "timeoutSeconds": 60}
    return {
        "name": kind,
        "image": image,
        "command": ["C:\\health.exe", kind],
        "ports": [{"name": "http", "containerPort": 8080}] if kind == "http" else [],
        "volumeMounts": [{"name": "state", "mountPath": "C:\\state"}],
        "startupProbe": asking(kind, "started") | often | {"failureThreshold": 1000},
        "readinessProbe": asking(kind, "ready") | often,
        "livenessProbe": asking(kind, "live") | often,
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
    server.become("starting")
    begun = winpod("play", str(tmp_path / "pod.yaml"), "--no-wait")
    assert begun.returncode == 0, begun.stderr
    yield server
    ended = winpod("down")
    assert ended.returncode == 0, ended.stderr


def test_probes_of_every_kind_decide_who_has_started_is_ready_and_is_restarted(
    server: Server,
) -> None:
    server.until_said(*refusals("Startup", server, "started"))
    assert not any(one["started"] or one["ready"] for one in server.statuses().values())

    server.become("ready")
    server.until(lambda one: one["started"] and one["ready"])

    server.become("busy")
    server.until(lambda one: one["started"] and not one["ready"])
    server.until_said(*refusals("Readiness", server, "ready"))
    assert {one["restartCount"] for one in server.statuses().values()} == {0}

    server.become("dead")
    server.until(lambda one: one["restartCount"] > 0)
    server.become("ready")
    server.until(lambda one: one["started"] and one["ready"])
    for kind in KINDS:
        server.until_said(f"Container {kind} failed liveness probe, will be restarted")


def refusals(kind: str, server: Server, what: str) -> list[str]:
    address = f"{server.address}:{TCP_PORTS[what]}"
    return [
        f"{kind} probe failed: HTTP probe failed with statuscode: 503",
        f"{kind} probe failed: dial tcp {address}: connect: connection refused",
        f'{kind} probe failed: service unhealthy (responded with "NOT_SERVING")',
    ]
