"""`winpod play` with real Windows programs, in a separate network namespace."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.e2e import stories
from tests.support.e2e.command_line import Winpod, until_unlocked, winpod
from tests.support.e2e.waiting import eventually
from tests.support.e2e.windows_programs import once

from winpod.play.server import socket_path

__all__ = ["winpod"]

EXAMPLES = Path(__file__).parents[2] / "examples"
PATIENCE = 300.0
BUILDS = ("--os-version", "10.0.17763.805", "--os-version", "10.0.20348.2113")


@dataclass(frozen=True)
class PlaySession:
    """`winpod play` with a layout of images in a folder."""

    command: Winpod
    folder: Path

    @property
    def images(self) -> str:
        return str(self.folder / "images")

    def play(self, *documents: Any, options: tuple[str, ...] = ()) -> dict[str, Any]:
        """Play the documents; return the report once everything is ready."""
        file = self.folder / "app.yaml"
        file.write_text(yaml.safe_dump_all(documents))
        result = self.command("play", str(file), "--layout", self.images, "-o", "json", *options)
        assert result.stdout, result.stderr
        report: dict[str, Any] = json.loads(result.stdout)
        assert result.returncode == 0, json.dumps(
            [report["pods"], result.stderr, self.log], indent=1
        )
        return report

    def get(self, port: int) -> str:
        command_line = [
            "nsenter",
            f"--net=/run/netns/{self.command.netns}",
            "curl",
            "-sS",
            "-m",
            "10",
        ]
        command_line.append(f"http://localhost:{port}/")
        return subprocess.run(command_line, capture_output=True, text=True).stdout

    def wait_until_served(self, greeting: str, port: int = 8080) -> str:
        return eventually(lambda: self.get(port), lambda got: got.startswith(greeting))

    def wait_for_output(self, text: str, *command_line: str) -> None:
        eventually(lambda: self.command(*command_line), lambda result: text in result.stdout)

    def pods(self) -> list[dict[str, Any]]:
        pods: list[dict[str, Any]] = json.loads(self.command("ps", "--pods", "-o", "json").stdout)[
            "pods"
        ]
        return pods

    @property
    def process(self) -> int:
        command_line = ["curl", "-sS", "--unix-socket", str(socket_path(self.command.root))]
        result = subprocess.run(
            [*command_line, "http://play/process"], capture_output=True, timeout=300
        )
        return int(json.loads(result.stdout)["id"])

    @property
    def log(self) -> str:
        return (self.command.root / "play/play.log").read_text()

    def wait_stopped(self) -> None:
        until_unlocked(self.command.root / "play/lock")


def build_web_server(to: Path) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path}
    subprocess.run([EXAMPLES / "web/build", to], env=environment, check=True, timeout=300)


@pytest.fixture
def session(winpod: Winpod, tmp_path: Path) -> Iterator[PlaySession]:
    source = (EXAMPLES / "web/web.c").read_text()
    program = once("web.exe", source, build_web_server)
    content = tmp_path / "content"
    content.mkdir()
    (content / "web.exe").write_bytes(program.read_bytes())
    for tag in ("1.0", "2.0"):
        name = f"oci:{tmp_path}/images:registry.example/web:{tag}"
        options = (*BUILDS, "--cmd", "C:\\web.exe", "--env", f"GREETING=Version {tag}")
        packed = winpod("image", "pack", str(content), "-t", name, *options)
        assert packed.returncode == 0, packed.stderr
    yield PlaySession(winpod, tmp_path)
    stopped = winpod("down", "--volumes")
    assert stopped.returncode == 0, stopped.stderr
    PlaySession(winpod, tmp_path).wait_stopped()
    assert not list((winpod.root / "nodes").iterdir())
    assert str(winpod.root) not in Path("/proc/self/mountinfo").read_text()
    assert "Reconcile failed" not in PlaySession(winpod, tmp_path).log


def template(image: str = "registry.example/web:1.0", **spec: Any) -> dict[str, Any]:
    container = {
        "name": "web",
        "image": image,
        "ports": [{"containerPort": 80, "name": "http"}],
        "readinessProbe": {"httpGet": {"port": "http"}, "periodSeconds": 1},
        **spec.pop("container", {}),
    }
    return {
        "metadata": {"labels": {"app": "web"}},
        "spec": {"terminationGracePeriodSeconds": 2, "containers": [container], **spec},
    }


def workload(kind: str, name: str, template: dict[str, Any], **spec: Any) -> dict[str, Any]:
    group = "batch/v1" if kind == "Job" else "apps/v1"
    selector = {} if kind == "Job" else {"selector": {"matchLabels": {"app": "web"}}}
    return {
        "apiVersion": group,
        "kind": kind,
        "metadata": {"name": name},
        "spec": {"template": template, **selector, **spec},
    }


def service(name: str = "web", **spec: Any) -> dict[str, Any]:
    ports = [{"name": "http", "port": 8080, "targetPort": "http"}]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": {"app": "web"}, "ports": ports, **spec},
    }


def config_map(**data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "config"}, "data": data}


def test_web_server_is_served_on_localhost_and_follows_its_manifest(session: PlaySession) -> None:
    mounted: dict[str, Any] = {
        "container": {"volumeMounts": [{"name": "config", "mountPath": "C:\\config"}]},
        "volumes": [{"name": "config", "configMap": {"name": "config", "optional": True}}],
    }
    web = workload("Deployment", "web", template(**mounted), replicas=2)
    report = session.play(web, service(type="LoadBalancer"))
    assert [(pod["state"], pod["build"]) for pod in report["pods"]] == [
        ("Running", "10.0.20348"),
        ("Running", "10.0.20348"),
    ]
    assert report["pods"][0]["why"] == "image 10.0.20348.2113 fits"
    assert session.wait_until_served("Version 1.0 from WEB-").endswith("Windows 10.0.20348\n")

    for host in ("web", "web.default", "web.default.svc.cluster.local"):
        line = ("exec", "deploy/web", "--", "web.exe", "get", host, "8080")
        session.wait_for_output("Version 1.0", *line)

    unchanged = session.play(web, service(type="LoadBalancer"))
    assert {change["change"] for change in unchanged["changes"]} == {"unchanged"}
    assert {pod["uid"] for pod in unchanged["pods"]} == {pod["uid"] for pod in report["pods"]}

    new = workload("Deployment", "web", template("registry.example/web:2.0", **mounted), replicas=2)
    report = session.play(new, service(type="LoadBalancer"))
    assert {tuple(pod["images"]) for pod in report["pods"]} == {("registry.example/web:2.0",)}
    session.wait_until_served("Version 2.0")

    greeting = config_map(**{"greeting.txt": "Moin"})
    session.play(new, service(type="LoadBalancer"), greeting)
    session.play(new, service(type="LoadBalancer"), config_map(**{"greeting.txt": "Servus"}))
    session.wait_until_served("Servus")

    before = {pod["uid"]: pod["restarts"] for pod in session.pods()}
    os.kill(session.process, signal.SIGKILL)
    session.wait_stopped()
    assert "web-" in session.command("ps").stdout
    assert {pod["uid"]: pod["restarts"] for pod in session.pods()} == before
    session.wait_until_served("Servus")

    session.wait_for_output("listening on port 80", "logs", "deploy/web")
    session.wait_for_output("readyReplicas: 2", "describe", "deploy/web")
    assert "Successfully assigned" in session.command("events").stdout
    for port in (("deploy/web", "9090:80"), ("svc/web", "9090:8080")):
        forwarding = session.command.start("port-forward", *port, stdout=subprocess.PIPE)
        assert forwarding.stdout is not None
        assert b"9090 -> 80\n" in forwarding.stdout.readline()
        session.wait_until_served("Servus", 9090)
        forwarding.send_signal(signal.SIGINT)
        assert forwarding.wait(PATIENCE) == 130
        forwarding.stdout.close()


def test_stateful_pods_keep_their_volumes_and_resolve_each_other(session: PlaySession) -> None:
    claim = {
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    mounts = {"volumeMounts": [{"name": "data", "mountPath": "C:\\data"}]}
    stateful = workload(
        "StatefulSet",
        "db",
        template(container=mounts),
        replicas=2,
        serviceName="db",
        volumeClaimTemplates=[claim],
    )
    headless = service("db", clusterIP="None")
    session.play(stateful, headless)
    line = ("exec", "db-0", "--", "web.exe", "get", "db-1.db", "80")
    session.wait_for_output("from DB-1, ", *line)
    written = session.command("exec", "db-1", "--", "cmd", "/c", "echo kept>C:\\data\\note.txt")
    assert written.returncode == 0, written.stderr
    stopped = session.command("down")
    assert "statefulset.apps/db deleted" in stopped.stdout
    session.play(stateful, headless)
    read = session.command("exec", "db-1", "--", "cmd", "/c", "type C:\\data\\note.txt")
    assert read.stdout.strip() == "kept"
    volumes = session.command.root / "play/volumes"
    assert volumes.stat().st_mode & 0o777 == 0o700
    stopped = session.command("down", "--volumes", "-o", "json")
    assert {"kind": "PersistentVolumeClaim", "name": "data-db-1"}.items() <= json.loads(
        stopped.stdout
    )["changes"][-1].items()
    assert [place.name for place in volumes.iterdir()] == [".removed"]
    assert list((volumes / ".removed").iterdir()) == []
    session.play(stateful, headless)
    listed = session.command("exec", "db-1", "--", "cmd", "/c", "dir /b C:\\data")
    assert listed.stdout.strip() == ""


def test_jobs_complete_and_daemon_sets_run_on_every_node(session: PlaySession) -> None:
    finishing = template(container={"readinessProbe": None, "command": ["cmd", "/c", "ver"]})
    finishing["spec"]["restartPolicy"] = "Never"
    finishing["metadata"]["labels"] = {"job": "ver"}
    del finishing["spec"]["containers"][0]["readinessProbe"]
    job = workload("Job", "ver", finishing, completions=2, parallelism=2)
    daemon_set = workload("DaemonSet", "agent", template())
    report = session.play(job, daemon_set, options=("--node", "2019", "--node", "2022"))
    daemon_nodes = {pod["node"]: pod["build"] for pod in report["pods"] if "agent" in pod["name"]}
    assert daemon_nodes == {"win-2019": "10.0.17763", "win-2022": "10.0.20348"}
    done = [pod for pod in report["pods"] if pod["owner"] == "Job/ver"]
    assert [pod["phase"] for pod in done] == ["Succeeded", "Succeeded"]
    for pod in done:
        output = session.command("logs", pod["name"]).stdout
        assert f"Microsoft Windows {pod['build']}" in output
    older = next(pod["name"] for pod in report["pods"] if pod["node"] == "win-2019")
    newer = next(
        pod["ip"] for pod in report["pods"] if pod["node"] == "win-2022" and pod["isReady"]
    )
    line = ("exec", older, "--", "web.exe", "get", newer, "80")
    if "agent" in older:
        assert "Windows 10.0.20348" in session.command(*line).stdout


def test_growing_log_is_rotated(session: PlaySession) -> None:
    (session.folder / "content/lines.txt").write_text(("x" * 99 + "\n") * 20_000)
    name = f"oci:{session.images}:registry.example/lines:1.0"
    packed = session.command("image", "pack", f"{session.folder}/content", "-t", name, *BUILDS)
    assert packed.returncode == 0, packed.stderr
    line = ["cmd", "/c", "for /L %i in (1,0,2) do @type C:\\lines.txt"]
    endless = template("registry.example/lines:1.0", container={"command": line})
    del endless["spec"]["containers"][0]["readinessProbe"]
    session.play(workload("Deployment", "lines", endless))
    nodes = session.command.root / "nodes"
    eventually(lambda: len(list(nodes.rglob("*.log.*"))) > 1)


def test_watch_applies_changed_files(session: PlaySession) -> None:
    file = session.folder / "watched.yaml"
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"}, **template()}
    pod["metadata"] = {"name": "one", "labels": {"app": "web"}}
    file.write_text(yaml.safe_dump_all([pod, service(type="LoadBalancer")]))
    line = ("play", str(file), "--layout", session.images, "--watch")
    watching = session.command.start(*line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        session.wait_until_served("Version 1.0")
        pod["spec"]["containers"][0]["image"] = "registry.example/web:2.0"
        file.write_text(yaml.safe_dump_all([pod, service(type="LoadBalancer")]))
        session.wait_until_served("Version 2.0")
        assert [status["restarts"] for status in session.pods()] == [1]
        for nonsense in ("not: [yaml", ""):
            file.write_text(nonsense)
            time.sleep(2)
        assert [status["restarts"] for status in session.pods()] == [1]
        file.write_text(yaml.safe_dump_all([service(type="LoadBalancer")]))
        eventually(session.pods, lambda pods: pods == [])
    finally:
        watching.send_signal(signal.SIGINT)
        watching.wait(PATIENCE)


def test_stories_of_the_documents_run_unchanged(session: PlaySession) -> None:
    layout = stories.pack_images(session.command, "ver")

    def story(number: int) -> tuple[subprocess.CompletedProcess[str], dict[str, dict[str, Any]]]:
        result, report = stories.play(session.command, number, layout)
        return result, {pod["name"]: pod for pod in report["pods"]}

    result, pods = story(1)
    assert result.returncode == 0, result.stdout + result.stderr
    assert {name: (pod["node"], pod["build"]) for name, pod in pods.items()} == {
        "legacy": ("win-1809", "10.0.17763"),
        "modern": ("win-1903", "10.0.18362"),
    }
    session.wait_for_output("Microsoft Windows 10.0.18362", "logs", "modern")
    session.command("down")

    result, pods = story(2)
    assert result.returncode == 1
    assert pods["modern"]["state"] == "Running"
    assert pods["legacy-beside-the-host"]["state"] == "Pending"
    error = "The container operating system does not match the host operating system."
    assert error in result.stdout
    assert "→ set runtimeClassName: windows-1809-hyperv" in result.stdout
    assert 'no handler "containerd-hyperv-17763"' in result.stdout
    session.command("down")

    result, pods = story(3)
    assert result.returncode == 1
    assert pods["sdk-1903"]["why"].startswith("image 10.0.18362.356 fits")
    assert pods["sdk-1809"]["state"] == "Pending"
