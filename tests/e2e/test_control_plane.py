"""The tests' own control plane is a real one: API server, scheduler, controllers and kubectl."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.controlplane import ControlPlane, KubectlFailed
from tests.e2e.controlplane.build import kubernetes_version
from tests.e2e.controlplane.processes import ServerProcess, StartFailed

WINDOWS_LABELS = {
    "kubernetes.io/os": "windows",
    "kubernetes.io/arch": "amd64",
    "node.kubernetes.io/windows-build": "10.0.17763",
}
WINDOWS_TAINT = {"key": "os", "value": "windows", "effect": "NoSchedule"}


def node(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": WINDOWS_LABELS | {"kubernetes.io/hostname": name}},
        "spec": {"taints": [WINDOWS_TAINT]},
    }


def runtime_class(name: str, handler: str) -> dict[str, Any]:
    return {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": name},
        "handler": handler,
        "scheduling": {
            "nodeSelector": WINDOWS_LABELS,
            "tolerations": [WINDOWS_TAINT | {"operator": "Equal"}],
        },
    }


def eventually(holds: Callable[[], bool], *, within: float = 30) -> None:
    deadline = time.monotonic() + within
    while not holds():
        assert time.monotonic() < deadline, f"not so within {within} s"
        time.sleep(0.2)


def test_server_and_kubectl_are_the_pinned_version(control_plane: ControlPlane) -> None:
    versions = json.loads(control_plane.kubectl("version", "-o", "json"))
    assert versions["serverVersion"]["gitVersion"] == kubernetes_version()
    assert versions["clientVersion"]["gitVersion"] == kubernetes_version()


def test_keeps_a_namespace_a_windows_node_and_a_runtime_class(control_plane: ControlPlane) -> None:
    control_plane.create_namespace("kept")
    control_plane.apply(node("kept-win"), runtime_class("kept-2019", "runhcs-wcow-process"))

    namespace = json.loads(control_plane.kubectl("get", "namespace", "kept", "-o", "json"))
    assert namespace["status"]["phase"] == "Active"
    kept = json.loads(control_plane.kubectl("get", "node", "kept-win", "-o", "json"))
    assert kept["metadata"]["labels"].items() >= WINDOWS_LABELS.items()
    assert WINDOWS_TAINT in kept["spec"]["taints"]
    kept = json.loads(control_plane.kubectl("get", "runtimeclass", "kept-2019", "-o", "json"))
    assert kept["handler"] == "runhcs-wcow-process"
    assert kept["scheduling"]["nodeSelector"] == WINDOWS_LABELS


def test_status_is_written_to_the_status_subresource(control_plane: ControlPlane) -> None:
    handlers = [{"name": "runhcs-wcow-process"}, {"name": "runhcs-wcow-hypervisor"}]
    status = {"runtimeHandlers": handlers, "capacity": {"cpu": "4", "memory": "8Gi"}}
    control_plane.apply(node("status-win") | {"status": status})
    kept = json.loads(control_plane.kubectl("get", "node", "status-win", "-o", "json"))["status"]
    assert [handler["name"] for handler in kept["runtimeHandlers"]] == [
        "runhcs-wcow-process",
        "runhcs-wcow-hypervisor",
    ]
    assert kept["capacity"] == {"cpu": "4", "memory": "8Gi"}


def test_runtime_class_admission_and_the_scheduler_place_a_pod(
    control_plane: ControlPlane,
) -> None:
    control_plane.create_namespace("placed")
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}
    room = {"cpu": "4", "memory": "8Gi", "pods": "10"}
    status = {"conditions": [ready], "capacity": room, "allocatable": room}
    labels = WINDOWS_LABELS | {"placed": "here"}
    here = node("placed-win") | {"status": status}
    here["metadata"]["labels"] = labels
    only_here = runtime_class("placed-2019", "runhcs-wcow-process")
    only_here["scheduling"]["nodeSelector"] = {"placed": "here"}
    control_plane.apply(here, only_here)
    container = {"name": "main", "image": "example.test/app:1"}
    spec = {"runtimeClassName": "placed-2019", "containers": [container]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "app"}, "spec": spec}

    created = control_plane.request("POST", "/api/v1/namespaces/placed/pods", pod)

    assert created.status == 201, created.message
    assert created.body["spec"]["nodeSelector"] == {"placed": "here"}

    def bound() -> bool:
        answer = control_plane.request("GET", "/api/v1/namespaces/placed/pods/app")
        return bool(answer.body["spec"].get("nodeName") == "placed-win")

    eventually(bound)


def test_a_nodes_own_kubeconfig_may_change_only_that_node(control_plane: ControlPlane) -> None:
    control_plane.apply(node("own-win"), node("other-win"))
    kubeconfig = control_plane.kubeconfig_for("system:node:own-win", "system:nodes")
    as_node = ("--kubeconfig", str(kubeconfig))
    control_plane.kubectl("label", "node", "own-win", "node.kubernetes.io/x=y", *as_node)
    with pytest.raises(KubectlFailed, match="only its own Node object"):
        control_plane.kubectl("label", "node", "other-win", "node.kubernetes.io/x=y", *as_node)
    with pytest.raises(KubectlFailed, match="is not allowed to modify labels"):
        control_plane.kubectl(
            "label", "node", "own-win", "node-restriction.kubernetes.io/x=y", *as_node
        )


def test_a_server_that_cannot_start_shows_the_end_of_its_log(tmp_path: Path) -> None:
    server = ServerProcess("doomed", ["sh", "-c", "echo no such port; exit 3"], tmp_path / "log")
    with pytest.raises(StartFailed, match=r"(?s)doomed ended with 3.*no such port"):
        server.wait_until(lambda: False)
    server.stop()


def test_leaving_ends_every_process_also_when_a_test_fails(tmp_path: Path) -> None:
    lean = ControlPlane(tmp_path / "lean", scheduler=False, controller_manager=False)

    def alive() -> list[bool]:
        return [Path(f"/proc/{pid}").exists() for pid in lean.pids]

    def failing_test() -> None:
        with lean:
            assert alive() == [True, True]
            raise RuntimeError("the test failed")

    with pytest.raises(RuntimeError, match="the test failed"):
        failing_test()
    assert alive() == [False, False]


def test_a_server_does_not_outlive_a_killed_test_run(tmp_path: Path) -> None:
    program = (
        "from pathlib import Path; from tests.e2e.controlplane.processes import ServerProcess;"
        f"print(ServerProcess('idle', ['sleep', '600'], Path({str(tmp_path / 'log')!r})).pid,"
        " flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        server = Path(f"/proc/{int(run.stdout.readline())}")
        assert server.exists()
        run.kill()
    eventually(lambda: not server.exists())
