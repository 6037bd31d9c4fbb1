"""`winpod node` and `winpod runtime` as processes of a test, which can be killed."""

import json
import sys
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any

from tests.e2e.controlplane import ControlPlane
from tests.e2e.controlplane.control_plane import POD_RANGE
from tests.e2e.controlplane.processes import ServerProcess
from tests.support.e2e.machines import Machine
from tests.support.e2e.objects import pods_path
from tests.support.e2e.windows_container import link_base
from winpod.images.base.builder import Base

WINPOD = (sys.executable, "-m", "winpod")
ANYWHERE = [{"operator": "Exists"}]
ROOM = "nodefs.available<1Gi,imagefs.available<1Gi"
"""Eviction thresholds that never apply: the disk usage of the test machine must not matter."""


class NodeProcess:
    """Process of `winpod node`, with its log in the directory; `before` enters a namespace."""

    def __init__(self, directory: Path, *arguments: str, before: Sequence[str] = ()) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.log = directory / "node.log"
        self._command = [
            *(*before, *WINPOD, "node", "--root", str(directory / "root")),
            *("--pod-logs", str(directory / "logs"), "--eviction-hard", ROOM, *arguments),
        ]
        self._process: ServerProcess | None = None

    def start(self) -> None:
        self._process = ServerProcess("node", self._command, self.log)

    def stop(self) -> None:
        if self._process:
            self._process.stop()
            self._process = None

    def kill(self) -> None:
        assert self._process
        self._process.kill()
        self._process = None

    @property
    def pid(self) -> int:
        assert self._process
        return self._process.pid

    def __enter__(self) -> "NodeProcess":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def process_of_nodes(
    plane: ControlPlane,
    machine: Machine,
    directory: Path,
    base: Base,
    builds: Mapping[str, str],
    *options: str,
    settings: str = "",
) -> NodeProcess:
    """Return a process with several nodes: an identity for each, one certificate, no warm pool."""
    nodes = [
        {
            "name": name,
            "build": build,
            "kubeconfig": str(plane.kubeconfig_for(f"system:node:{name}", "system:nodes")),
        }
        for name, build in builds.items()
    ]
    (directory / "nodes.yaml").write_text(json.dumps({"nodes": nodes}))
    (directory / "config.toml").write_text(f"[runtime]\nwarm_shells = 0\n\n{settings}")
    (directory / "root").mkdir()
    link_base(directory / "root", base)
    serving = plane.serving_certificate(f"{'-'.join(builds)}-serving", f"IP:{machine.address}")
    return NodeProcess(
        directory,
        *("--kubeconfig", str(plane.kubeconfig), "--nodes", str(directory / "nodes.yaml")),
        *("--node-ip", machine.address, "--port", "0", "--cluster-cidr", POD_RANGE),
        *("--tls-cert-file", str(serving.certificate), "--tls-private-key-file", str(serving.key)),
        *options,
        before=(*machine.entering, "env", f"WINPOD_CONFIG={directory / 'config.toml'}"),
    )


def simulated_runtime(directory: Path, build: str = "2022") -> ServerProcess:
    """Run the real runtime with simulated compute; the socket is `cri.sock` in the directory."""
    command = [
        *(*WINPOD, "runtime", "--compute", "simulated", "--host-build", build),
        *("--root", str(directory / "runtime"), "--socket", str(directory / "cri.sock")),
    ]
    return ServerProcess("runtime", command, directory / "runtime.log")


def found(cluster: ControlPlane, path: str) -> dict[str, Any]:
    """Return an object of the API, empty if it does not exist."""
    try:
        answer = cluster.request("GET", path)
    except OSError:
        return {}
    return answer.body if answer.status == HTTPStatus.OK else {}


def node(cluster: ControlPlane, name: str) -> dict[str, Any]:
    return found(cluster, f"/api/v1/nodes/{name}")


def condition(obj: dict[str, Any], kind: str) -> dict[str, Any]:
    conditions = obj.get("status", {}).get("conditions", [])
    return next((c for c in conditions if c["type"] == kind), {})


def is_ready(cluster: ControlPlane, name: str) -> bool:
    return condition(node(cluster, name), "Ready").get("status") == "True"


def pod(cluster: ControlPlane, namespace: str, name: str) -> dict[str, Any]:
    return found(cluster, f"{pods_path(namespace)}/{name}")


def phase(cluster: ControlPlane, namespace: str, name: str) -> str:
    return str(pod(cluster, namespace, name).get("status", {}).get("phase", ""))


def is_pod_ready(cluster: ControlPlane, namespace: str, name: str) -> bool:
    return condition(pod(cluster, namespace, name), "Ready").get("status") == "True"


def windows_pod(
    namespace: str, name: str, image: str, *command: str, **spec: Any
) -> dict[str, Any]:
    container: dict[str, Any] = {"name": "app", "image": image}
    if command:
        container["command"] = list(command)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "os": {"name": "windows"},
            "tolerations": ANYWHERE,
            "containers": [container],
            **spec,
        },
    }


def events_of(cluster: ControlPlane, namespace: str, name: str) -> list[tuple[str, str]]:
    selector = f"involvedObject.name={name}"
    text = cluster.kubectl(
        "get", "events", "-n", namespace, "--field-selector", selector, "-o", "json"
    )
    return [(item["reason"], item["message"]) for item in json.loads(text)["items"]]
