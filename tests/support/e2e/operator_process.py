"""`winpod operator` as a process of a test, which can be killed.

It uses the service account of its installation, so it has exactly the rights of its role.
"""

import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.e2e.controlplane import ControlPlane
from tests.e2e.controlplane.processes import ServerProcess
from tests.support.e2e.node_process import WINPOD, found
from tests.support.e2e.waiting import eventually

NAMESPACE = "winpod-system"
MANIFESTS = Path(__file__).parents[3] / "deploy/manifests"
_ANSWER_SECONDS = 60
_CHANGED = "Settings changed"
_MAX_WEBHOOK_SECONDS = 30
"""Maximum seconds that an API server waits for a webhook."""


class OperatorProcess:
    """Operator process; its JSON log is in the directory. `before` enters a network namespace."""

    def __init__(
        self,
        plane: ControlPlane,
        directory: Path,
        name: str,
        *options: str,
        before: Sequence[str] = (),
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.name = name
        self.log = directory / f"{name}.log"
        self._command = [
            *(*before, *WINPOD, "operator", "--kubeconfig", str(own_kubeconfig(plane))),
            *("--namespace", NAMESPACE, "--identity", name, "--log-format", "json"),
            *("--address", "127.0.0.1", "--port", "0", "--webhook-port", "0"),
            *("--page-port", "0", *options),
        ]
        self._process: ServerProcess | None = None

    def start(self) -> None:
        self._process = ServerProcess("operator", self._command, self.log)

    def stop(self) -> None:
        if self._process:
            self._process.stop()
            self._process = None

    def kill(self) -> None:
        os.killpg(self.pid, signal.SIGKILL)
        self.stop()

    @property
    def pid(self) -> int:
        assert self._process
        return self._process.pid

    def __enter__(self) -> "OperatorProcess":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def lines(self) -> list[dict[str, Any]]:
        """Return the complete lines of the log."""
        whole, _, _ = self.log.read_text().rpartition("\n")
        return [json.loads(line) for line in whole.splitlines()]

    def said(self, words: str) -> int:
        """Return how many log lines contain the words."""
        return sum(words in line["message"] for line in self.lines())

    @property
    def port(self) -> int:
        return self._logged_port("port")

    @property
    def webhook_port(self) -> int:
        return self._logged_port("webhook_port")

    @property
    def page_port(self) -> int:
        return self._logged_port("page_port")

    def _logged_port(self, name: str) -> int:
        eventually(lambda: any(name in line for line in self.lines()))
        return next(int(line[name]) for line in reversed(self.lines()) if name in line)

    def answer(self, path: str) -> tuple[int, str]:
        """Return its HTTP response, also for an error status."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(
                f"http://127.0.0.1:{self.port}{path}", timeout=_ANSWER_SECONDS
            ) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, "not listening"


def own_kubeconfig(plane: ControlPlane) -> Path:
    """Install the operator's service account, and return a kubeconfig with a token for it."""
    file = plane.directory / "operator.kubeconfig"
    if not file.exists():
        names = ("00-crds", "01-namespace", "10-serviceaccount", "10-rbac")
        for name in names:
            plane.apply(*yaml.safe_load_all((MANIFESTS / f"{name}.yaml").read_text()))
        token = plane.kubectl("create", "token", "winpod-operator", "-n", NAMESPACE).strip()
        document = json.loads(plane.public_kubeconfig())
        document["users"] = [{"name": "operator", "user": {"token": token}}]
        document["clusters"][0]["name"] = "e2e"
        document["contexts"] = [{"name": "own", "context": {"cluster": "e2e", "user": "operator"}}]
        document["current-context"] = "own"
        file.write_text(json.dumps(document))
    return file


def classes(plane: ControlPlane) -> dict[str, dict[str, Any]]:
    listed = found(plane, "/apis/node.k8s.io/v1/runtimeclasses").get("items", [])
    return {obj["metadata"]["name"]: obj for obj in listed}


def configure(plane: ControlPlane, text: str) -> None:
    """Write the operator's settings."""
    plane.apply(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "winpod-operator", "namespace": NAMESPACE},
            "data": {"config.yaml": text},
        }
    )


def use_settings(plane: ControlPlane, operator: OperatorProcess, text: str) -> None:
    """Write new settings, and wait until the operator has read them."""
    path = f"/api/v1/namespaces/{NAMESPACE}/configmaps/winpod-operator"
    if found(plane, path).get("data", {}).get("config.yaml") == text:
        return
    before = operator.said(_CHANGED)
    configure(plane, text)
    eventually(lambda: operator.said(_CHANGED) > before)


def ask_about_pods(plane: ControlPlane, port: int) -> None:
    """Install the webhooks with a port of this machine in place of the Service.

    The timeout is the maximum, because the operator may be slow on a machine that runs other tests.
    """
    configurations = list(yaml.safe_load_all((MANIFESTS / "10-webhooks.yaml").read_text()))
    for webhook in (one for obj in configurations for one in obj["webhooks"]):
        path = webhook["clientConfig"]["service"]["path"]
        webhook["clientConfig"] = {"url": f"https://127.0.0.1:{port}{path}"}
        webhook["timeoutSeconds"] = _MAX_WEBHOOK_SECONDS
    plane.apply(*configurations)


def lease(plane: ControlPlane) -> dict[str, Any]:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/winpod-operator"
    return dict(found(plane, path).get("spec", {}))


def leader(plane: ControlPlane) -> str:
    return str(lease(plane).get("holderIdentity", ""))
