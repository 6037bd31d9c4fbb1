"""Kubernetes objects that tests create in a real cluster."""

import time
from typing import Any

from tests.e2e.controlplane import ControlPlane
from tests.support.e2e.waiting import eventually

BUILD_2019, BUILD_2022, BUILD_2025 = "10.0.17763", "10.0.20348", "10.0.26100"
PROCESS, HYPERVISOR = "runhcs-wcow-process", "runhcs-wcow-hypervisor"
TAINT = {"key": "os", "value": "windows", "effect": "NoSchedule"}
ROOM = {"cpu": "4", "memory": "8Gi", "pods": "20"}
_TIMEOUT = 120.0


def windows_labels(build: str) -> dict[str, str]:
    return {
        "kubernetes.io/os": "windows",
        "kubernetes.io/arch": "amd64",
        "node.kubernetes.io/windows-build": build,
    }


def windows_node(
    name: str,
    build: str,
    *,
    runtime: str = "winpod://0.1.0",
    handlers: tuple[str, ...] = (PROCESS,),
    labels: dict[str, str] | None = None,
    taints: tuple[dict[str, str], ...] = (TAINT,),
    room: dict[str, str] | None = None,
    unschedulable: bool = False,
) -> dict[str, Any]:
    nameless = dict.fromkeys(("machineID", "systemUUID", "bootID", "kubeProxyVersion"), "")
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, **windows_labels(build), **(labels or {})},
        },
        "spec": {"taints": list(taints), "unschedulable": unschedulable},
        "status": {
            "capacity": room or ROOM,
            "allocatable": room or ROOM,
            "conditions": [{"type": "Ready", "status": "True"}],
            "runtimeHandlers": [{"name": handler} for handler in handlers],
            "nodeInfo": nameless
            | {
                "operatingSystem": "windows",
                "architecture": "amd64",
                "kernelVersion": f"{build}.1",
                "osImage": "Windows Server",
                "kubeletVersion": "v1.36.4",
                "containerRuntimeVersion": runtime,
            },
        },
    }


def linux_node(name: str) -> dict[str, Any]:
    node = windows_node(name, "0", runtime="containerd://2.1.0", handlers=(), taints=())
    del node["metadata"]["labels"]["node.kubernetes.io/windows-build"]
    node["metadata"]["labels"]["kubernetes.io/os"] = "linux"
    node["status"]["nodeInfo"] |= {"operatingSystem": "linux", "kernelVersion": "6.1.0"}
    return node


def runtime_class(name: str, handler: str, build: str, **more: Any) -> dict[str, Any]:
    return {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": name},
        "handler": handler,
        "scheduling": {
            "nodeSelector": windows_labels(build),
            "tolerations": [TAINT | {"operator": "Equal"}],
        },
        **more,
    }


def pod(name: str, namespace: str, spec: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def pods_path(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


def add_nodes(cluster: ControlPlane, *nodes: dict[str, Any]) -> None:
    """Apply the nodes twice: at creation the API server taints every node as not ready."""
    cluster.apply(*nodes)
    cluster.apply(*nodes)


def scheduled_to(cluster: ControlPlane, namespace: str, name: str) -> str:
    """Return the node that the scheduler binds a pod to, or None once it found none."""
    deadline = time.monotonic() + _TIMEOUT
    while time.monotonic() < deadline:
        now = cluster.request("GET", f"{pods_path(namespace)}/{name}").body
        if now["spec"].get("nodeName"):
            return str(now["spec"]["nodeName"])
        conditions = now["status"].get("conditions", [])
        if any(condition.get("reason") == "Unschedulable" for condition in conditions):
            return ""
        time.sleep(0.02)
    raise AssertionError(f"the scheduler did not decide about {name} within {_TIMEOUT} s")


def bound_to(cluster: ControlPlane, namespace: str, name: str) -> str:
    """Return the node of a pod, waiting until the scheduler has seen the node."""
    return eventually(lambda: scheduled_to(cluster, namespace, name), within=_TIMEOUT)
