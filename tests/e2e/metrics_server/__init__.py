"""metrics-server for tests, built from the Go module proxy; `kubectl top` reads from it.

It runs next to the control plane as it would in a pod: with a token of its service account. The
API server reaches it through a Service with an external name.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.e2e.controlplane import ControlPlane
from tests.e2e.controlplane.control_plane import free_ports
from tests.e2e.controlplane.processes import ServerProcess
from tests.support.e2e import go_build
from tests.support.e2e.go_build import GoModule, Say

SOURCE = Path(__file__).parent
NAMESPACE, NAME = "kube-system", "metrics-server"
LOOPBACK = "127.0.0.1"
API_SERVICE = "/apis/apiregistration.k8s.io/v1/apiservices/v1beta1.metrics.k8s.io"
_RBAC = "rbac.authorization.k8s.io"
_READ = ["get", "list", "watch"]


def program(say: Say = print) -> Path:
    """Return the program, building it first if absent."""
    module = GoModule(
        name="metrics-server",
        title="metrics-server",
        source=SOURCE,
        files=("go.mod", "go.sum"),
        packages={NAME: "sigs.k8s.io/metrics-server/cmd/metrics-server"},
    )
    return go_build.binaries(module, say) / NAME


@contextmanager
def metrics_server(plane: ControlPlane, directory: Path, built: Path) -> Iterator[None]:
    """Run it; yield once its APIService is available. It scrapes nodes every ten seconds."""
    (port,) = free_ports(1)
    serving = plane.serving_certificate(NAME, f"DNS:{NAME}.{NAMESPACE}.svc")
    plane.apply(*_account())
    kubeconfig = _kubeconfig(plane, directory)
    flags = {
        "kubeconfig": kubeconfig,
        "authentication-kubeconfig": kubeconfig,
        "authorization-kubeconfig": kubeconfig,
        "bind-address": LOOPBACK,
        "secure-port": port,
        "tls-cert-file": serving.certificate,
        "tls-private-key-file": serving.key,
        "kubelet-use-node-status-port": "true",
        "kubelet-preferred-address-types": "InternalIP",
        "metric-resolution": "10s",
        "kubelet-request-timeout": "5s",
    }
    command = [str(built), *(f"--{key}={value}" for key, value in flags.items())]
    process = ServerProcess(NAME, command, directory / f"{NAME}.log")
    try:
        plane.apply(*_api_service(plane, port))
        process.wait_until(lambda: _is_available(plane))
        yield
    finally:
        plane.request("DELETE", API_SERVICE)
        process.stop()


def _account() -> list[dict[str, Any]]:
    """Return its service account, with roles to read nodes, metrics and pods and review tokens."""
    rules = [
        {"apiGroups": [""], "resources": ["nodes/metrics"], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["pods", "nodes"], "verbs": _READ},
    ]
    reader = "extension-apiserver-authentication-reader"
    return [
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": NAME, "namespace": NAMESPACE},
        },
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "ClusterRole",
            "metadata": {"name": f"system:{NAME}"},
            "rules": rules,
        },
        _bound("ClusterRole", f"system:{NAME}", {"name": f"system:{NAME}"}),
        _bound("ClusterRole", "system:auth-delegator", {"name": f"{NAME}:system:auth-delegator"}),
        _bound("Role", reader, {"name": f"{NAME}-auth-reader", "namespace": NAMESPACE}),
    ]


def _bound(kind: str, role: str, metadata: dict[str, str]) -> dict[str, Any]:
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": f"{kind}Binding",
        "metadata": metadata,
        "roleRef": {"apiGroup": _RBAC, "kind": kind, "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}],
    }


def _kubeconfig(plane: ControlPlane, directory: Path) -> Path:
    document = {"apiVersion": "v1", "kind": "Config", "clusters": [_cluster(plane)]}
    token = plane.kubectl("create", "token", NAME, "--namespace", NAMESPACE).strip()
    document["users"] = [{"name": NAME, "user": {"token": token}}]
    document["contexts"] = [{"name": NAME, "context": {"cluster": "", "user": NAME}}]
    document["current-context"] = NAME
    file = directory / f"{NAME}.kubeconfig"
    file.write_text(json.dumps(document))
    return file


def _cluster(plane: ControlPlane) -> dict[str, Any]:
    """Return the cluster entry of the public kubeconfig: server and CA."""
    return dict(json.loads(plane.public_kubeconfig())["clusters"][0])


def _api_service(plane: ControlPlane, port: int) -> list[dict[str, Any]]:
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": NAME, "namespace": NAMESPACE},
            "spec": {"type": "ExternalName", "externalName": "localhost"},
        },
        {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": "v1beta1.metrics.k8s.io"},
            "spec": {
                "service": {"name": NAME, "namespace": NAMESPACE, "port": port},
                "group": "metrics.k8s.io",
                "version": "v1beta1",
                "caBundle": _cluster(plane)["cluster"]["certificate-authority-data"],
                "groupPriorityMinimum": 100,
                "versionPriority": 100,
            },
        },
    ]


def _is_available(plane: ControlPlane) -> bool:
    found = plane.request("GET", API_SERVICE).body
    conditions = found.get("status", {}).get("conditions", [])
    return any(c["type"] == "Available" and c["status"] == "True" for c in conditions)
