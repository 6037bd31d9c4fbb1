"""`winpod play` with real Windows programs, in a network namespace of the test's own."""

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
class Played:
    command: Winpod
    folder: Path

    @property
    def images(self) -> str:
        return str(self.folder / "images")

    def play(self, *documents: Any, more: tuple[str, ...] = ()) -> dict[str, Any]:
        """What it says once everything is ready."""
        file = self.folder / "app.yaml"
        file.write_text(yaml.safe_dump_all(documents))
        ran = self.command("play", str(file), "--layout", self.images, "-o", "json", *more)
        assert ran.stdout, ran.stderr
        told: dict[str, Any] = json.loads(ran.stdout)
        assert ran.returncode == 0, json.dumps([told["pods"], ran.stderr, self.log], indent=1)
        return told

    def get(self, port: int) -> str:
        line = ["nsenter", f"--net=/run/netns/{self.command.netns}", "curl", "-sS", "-m", "10"]
        line.append(f"http://localhost:{port}/")
        return subprocess.run(line, capture_output=True, text=True).stdout

    def until_it_serves(self, greeting: str, port: int = 8080) -> str:
        return eventually(lambda: self.get(port), lambda got: got.startswith(greeting))

    def until_said(self, words: str, *line: str) -> None:
        eventually(lambda: self.command(*line), lambda ran: words in ran.stdout)

    def pods(self) -> list[dict[str, Any]]:
        pods: list[dict[str, Any]] = json.loads(self.command("ps", "--pods", "-o", "json").stdout)[
            "pods"
        ]
        return pods

    @property
    def process(self) -> int:
        ask = ["curl", "-sS", "--unix-socket", str(socket_path(self.command.root))]
        told = subprocess.run([*ask, "http://play/process"], capture_output=True, timeout=300)
        return int(json.loads(told.stdout)["id"])

    @property
    def log(self) -> str:
        return (self.command.root / "play/play.log").read_text()

    def wait_for_the_end(self) -> None:
        until_unlocked(self.command.root / "play/lock")


def build_web_server(to: Path) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path}
    subprocess.run([EXAMPLES / "web/build", to], env=environment, check=True, timeout=300)


@pytest.fixture
def played(winpod: Winpod, tmp_path: Path) -> Iterator[Played]:
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
    yield Played(winpod, tmp_path)
    ended = winpod("down", "--volumes")
    assert ended.returncode == 0, ended.stderr
    Played(winpod, tmp_path).wait_for_the_end()
    assert not list((winpod.root / "nodes").iterdir())
    assert str(winpod.root) not in Path("/proc/self/mountinfo").read_text()
    assert "Reconcile failed" not in Played(winpod, tmp_path).log


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


def test_a_web_server_answers_on_localhost_and_follows_its_manifest(played: Played) -> None:
    mounted: dict[str, Any] = {
        "container": {"volumeMounts": [{"name": "config", "mountPath": "C:\\config"}]},
        "volumes": [{"name": "config", "configMap": {"name": "config", "optional": True}}],
    }
    web = workload("Deployment", "web", template(**mounted), replicas=2)
    told = played.play(web, service(type="LoadBalancer"))
    assert [(pod["state"], pod["build"]) for pod in told["pods"]] == [
        ("Running", "10.0.20348"),
        ("Running", "10.0.20348"),
    ]
    assert told["pods"][0]["why"] == "image 10.0.20348.2113 fits"
    assert played.until_it_serves("Version 1.0 from WEB-").endswith("Windows 10.0.20348\n")

    for host in ("web", "web.default", "web.default.svc.cluster.local"):
        line = ("exec", "deploy/web", "--", "web.exe", "get", host, "8080")
        played.until_said("Version 1.0", *line)

    unchanged = played.play(web, service(type="LoadBalancer"))
    assert {change["change"] for change in unchanged["changes"]} == {"unchanged"}
    assert {pod["uid"] for pod in unchanged["pods"]} == {pod["uid"] for pod in told["pods"]}

    new = workload("Deployment", "web", template("registry.example/web:2.0", **mounted), replicas=2)
    told = played.play(new, service(type="LoadBalancer"))
    assert {tuple(pod["images"]) for pod in told["pods"]} == {("registry.example/web:2.0",)}
    played.until_it_serves("Version 2.0")

    greeting = config_map(**{"greeting.txt": "Moin"})
    played.play(new, service(type="LoadBalancer"), greeting)
    played.play(new, service(type="LoadBalancer"), config_map(**{"greeting.txt": "Servus"}))
    played.until_it_serves("Servus")

    before = {pod["uid"]: pod["restarts"] for pod in played.pods()}
    os.kill(played.process, signal.SIGKILL)
    played.wait_for_the_end()
    assert "web-" in played.command("ps").stdout
    assert {pod["uid"]: pod["restarts"] for pod in played.pods()} == before
    played.until_it_serves("Servus")

    played.until_said("listening on port 80", "logs", "deploy/web")
    played.until_said("readyReplicas: 2", "describe", "deploy/web")
    assert "Successfully assigned" in played.command("events").stdout
    for port in (("deploy/web", "9090:80"), ("svc/web", "9090:8080")):
        forwarding = played.command.start("port-forward", *port, stdout=subprocess.PIPE)
        assert forwarding.stdout is not None
        assert b"9090 -> 80\n" in forwarding.stdout.readline()
        played.until_it_serves("Servus", 9090)
        forwarding.send_signal(signal.SIGINT)
        assert forwarding.wait(PATIENCE) == 130
        forwarding.stdout.close()


def test_pods_keep_their_claims_and_find_each_other_by_name(played: Played) -> None:
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
    played.play(stateful, headless)
    line = ("exec", "db-0", "--", "web.exe", "get", "db-1.db", "80")
    played.until_said("from DB-1, ", *line)
    written = played.command("exec", "db-1", "--", "cmd", "/c", "echo kept>C:\\data\\note.txt")
    assert written.returncode == 0, written.stderr
    ended = played.command("down")
    assert "statefulset.apps/db deleted" in ended.stdout
    played.play(stateful, headless)
    read = played.command("exec", "db-1", "--", "cmd", "/c", "type C:\\data\\note.txt")
    assert read.stdout.strip() == "kept"
    volumes = played.command.root / "play/volumes"
    assert volumes.stat().st_mode & 0o777 == 0o700
    ended = played.command("down", "--volumes", "-o", "json")
    assert {"kind": "PersistentVolumeClaim", "name": "data-db-1"}.items() <= json.loads(
        ended.stdout
    )["changes"][-1].items()
    assert [place.name for place in volumes.iterdir()] == [".removed"]
    assert list((volumes / ".removed").iterdir()) == []
    played.play(stateful, headless)
    there = played.command("exec", "db-1", "--", "cmd", "/c", "dir /b C:\\data")
    assert there.stdout.strip() == ""


def test_jobs_end_and_daemons_are_everywhere(played: Played) -> None:
    ending = template(container={"readinessProbe": None, "command": ["cmd", "/c", "ver"]})
    ending["spec"]["restartPolicy"] = "Never"
    ending["metadata"]["labels"] = {"job": "ver"}
    del ending["spec"]["containers"][0]["readinessProbe"]
    job = workload("Job", "ver", ending, completions=2, parallelism=2)
    daemons = workload("DaemonSet", "agent", template())
    told = played.play(job, daemons, more=("--node", "2019", "--node", "2022"))
    of_daemons = {pod["node"]: pod["build"] for pod in told["pods"] if "agent" in pod["name"]}
    assert of_daemons == {"win-2019": "10.0.17763", "win-2022": "10.0.20348"}
    done = [pod for pod in told["pods"] if pod["owner"] == "Job/ver"]
    assert [pod["phase"] for pod in done] == ["Succeeded", "Succeeded"]
    for pod in done:
        said = played.command("logs", pod["name"]).stdout
        assert f"Microsoft Windows {pod['build']}" in said
    older = next(pod["name"] for pod in told["pods"] if pod["node"] == "win-2019")
    newer = next(pod["ip"] for pod in told["pods"] if pod["node"] == "win-2022" and pod["isReady"])
    line = ("exec", older, "--", "web.exe", "get", newer, "80")
    if "agent" in older:
        assert "Windows 10.0.20348" in played.command(*line).stdout


def test_a_log_that_grows_without_end_is_moved_aside(played: Played) -> None:
    (played.folder / "content/lines.txt").write_text(("x" * 99 + "\n") * 20_000)
    name = f"oci:{played.images}:registry.example/lines:1.0"
    packed = played.command("image", "pack", f"{played.folder}/content", "-t", name, *BUILDS)
    assert packed.returncode == 0, packed.stderr
    line = ["cmd", "/c", "for /L %i in (1,0,2) do @type C:\\lines.txt"]
    writing = template("registry.example/lines:1.0", container={"command": line})
    del writing["spec"]["containers"][0]["readinessProbe"]
    played.play(workload("Deployment", "lines", writing))
    nodes = played.command.root / "nodes"
    eventually(lambda: len(list(nodes.rglob("*.log.*"))) > 1)


def test_files_that_change_are_followed(played: Played) -> None:
    file = played.folder / "watched.yaml"
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"}, **template()}
    pod["metadata"] = {"name": "one", "labels": {"app": "web"}}
    file.write_text(yaml.safe_dump_all([pod, service(type="LoadBalancer")]))
    line = ("play", str(file), "--layout", played.images, "--watch")
    watching = played.command.start(*line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        played.until_it_serves("Version 1.0")
        pod["spec"]["containers"][0]["image"] = "registry.example/web:2.0"
        file.write_text(yaml.safe_dump_all([pod, service(type="LoadBalancer")]))
        played.until_it_serves("Version 2.0")
        assert [one["restarts"] for one in played.pods()] == [1]
        for nonsense in ("not: [yaml", ""):
            file.write_text(nonsense)
            time.sleep(2)
        assert [one["restarts"] for one in played.pods()] == [1]
        file.write_text(yaml.safe_dump_all([service(type="LoadBalancer")]))
        eventually(played.pods, lambda pods: pods == [])
    finally:
        watching.send_signal(signal.SIGINT)
        watching.wait(PATIENCE)


def test_the_stories_of_the_documents_run_as_they_stand(played: Played) -> None:
    layout = stories.pack_images(played.command, "ver")

    def story(number: int) -> tuple[subprocess.CompletedProcess[str], dict[str, dict[str, Any]]]:
        ran, told = stories.play(played.command, number, layout)
        return ran, {pod["name"]: pod for pod in told["pods"]}

    ran, pods = story(1)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert {name: (pod["node"], pod["build"]) for name, pod in pods.items()} == {
        "legacy": ("win-1809", "10.0.17763"),
        "modern": ("win-1903", "10.0.18362"),
    }
    played.until_said("Microsoft Windows 10.0.18362", "logs", "modern")
    played.command("down")

    ran, pods = story(2)
    assert ran.returncode == 1
    assert pods["modern"]["state"] == "Running"
    assert pods["legacy-beside-the-host"]["state"] == "Pending"
    sentence = "The container operating system does not match the host operating system."
    assert sentence in ran.stdout
    assert "→ set runtimeClassName: windows-1809-hyperv" in ran.stdout
    assert 'no handler "containerd-hyperv-17763"' in ran.stdout
    played.command("down")

    ran, pods = story(3)
    assert ran.returncode == 1
    assert pods["sdk-1903"]["why"].startswith("image 10.0.18362.356 fits")
    assert pods["sdk-1809"]["state"] == "Pending"
