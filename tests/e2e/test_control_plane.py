"""The control plane of the tests: real API server, scheduler, controller manager and kubectl."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.controlplane import ControlPlane, KubectlFailed
from tests.e2e.controlplane.build import kubernetes_version
from tests.e2e.controlplane.processes import ServerProcess, StartFailed
from tests.support.e2e.objects import (
    BUILD_2019,
    BUILD_2022,
    HYPERVISOR,
    PROCESS,
    ROOM,
    TAINT,
    bound_to,
    pod,
    pods_path,
    runtime_class,
    windows_labels,
    windows_node,
)
from tests.support.e2e.waiting import eventually


def test_server_and_kubectl_are_the_pinned_version(control_plane: ControlPlane) -> None:
    versions = json.loads(control_plane.kubectl("version", "-o", "json"))
    assert versions["serverVersion"]["gitVersion"] == kubernetes_version()
    assert versions["clientVersion"]["gitVersion"] == kubernetes_version()


def test_objects_are_stored(control_plane: ControlPlane) -> None:
    control_plane.create_namespace("kept")
    control_plane.apply(
        windows_node("kept-win", BUILD_2019), runtime_class("kept-2019", PROCESS, BUILD_2019)
    )

    namespace = json.loads(control_plane.kubectl("get", "namespace", "kept", "-o", "json"))
    assert namespace["status"]["phase"] == "Active"
    node = json.loads(control_plane.kubectl("get", "node", "kept-win", "-o", "json"))
    assert node["metadata"]["labels"].items() >= windows_labels(BUILD_2019).items()
    assert TAINT in node["spec"]["taints"]
    stored = json.loads(control_plane.kubectl("get", "runtimeclass", "kept-2019", "-o", "json"))
    assert stored["handler"] == PROCESS
    assert stored["scheduling"]["nodeSelector"] == windows_labels(BUILD_2019)


def test_status_is_written_to_the_status_subresource(control_plane: ControlPlane) -> None:
    node = windows_node("status-win", BUILD_2022, handlers=(PROCESS, HYPERVISOR))
    control_plane.apply(node)
    status = json.loads(control_plane.kubectl("get", "node", "status-win", "-o", "json"))["status"]
    assert [handler["name"] for handler in status["runtimeHandlers"]] == [PROCESS, HYPERVISOR]
    assert status["capacity"] == ROOM
    assert status["nodeInfo"]["kernelVersion"] == f"{BUILD_2022}.1"


def test_pod_is_placed_by_runtime_class_admission_and_scheduler(
    control_plane: ControlPlane,
) -> None:
    control_plane.create_namespace("placed")
    selector = {"placed": "here"}
    pinned_class = runtime_class("placed", PROCESS, BUILD_2019)
    pinned_class["scheduling"]["nodeSelector"] = selector
    control_plane.apply(windows_node("placed-win", BUILD_2019, labels=selector), pinned_class)
    container = {"name": "main", "image": "example.test/app:1"}
    spec = {"runtimeClassName": "placed", "containers": [container]}

    created = control_plane.request("POST", pods_path("placed"), pod("app", "placed", spec))

    assert created.status == 201, created.message
    assert created.body["spec"]["nodeSelector"] == selector
    assert bound_to(control_plane, "placed", "app") == "placed-win"


def test_node_kubeconfig_may_change_only_its_own_node(control_plane: ControlPlane) -> None:
    control_plane.apply(windows_node("own-win", BUILD_2019), windows_node("other-win", BUILD_2019))
    kubeconfig = control_plane.kubeconfig_for("system:node:own-win", "system:nodes")
    as_node = ("--kubeconfig", str(kubeconfig))
    control_plane.kubectl("label", "node", "own-win", "node.kubernetes.io/x=y", *as_node)
    with pytest.raises(KubectlFailed, match="only its own Node object"):
        control_plane.kubectl("label", "node", "other-win", "node.kubernetes.io/x=y", *as_node)
    with pytest.raises(KubectlFailed, match="is not allowed to modify labels"):
        control_plane.kubectl(
            "label", "node", "own-win", "node-restriction.kubernetes.io/x=y", *as_node
        )


def test_failed_start_reports_the_end_of_the_log(tmp_path: Path) -> None:
    server = ServerProcess("doomed", ["sh", "-c", "echo no such port; exit 3"], tmp_path / "log")
    with pytest.raises(StartFailed, match=r"(?s)doomed ended with 3.*no such port"):
        server.wait_until(lambda: False)
    server.stop()


def test_all_processes_are_stopped_when_a_test_fails(tmp_path: Path) -> None:
    plane = ControlPlane(tmp_path / "lean", scheduler=False, controller_manager=False)

    def alive() -> list[bool]:
        return [Path(f"/proc/{pid}").exists() for pid in plane.pids]

    def failing_test() -> None:
        with plane:
            assert alive() == [True, True]
            raise RuntimeError("the test failed")

    with pytest.raises(RuntimeError, match="the test failed"):
        failing_test()
    assert alive() == [False, False]


def test_server_is_killed_with_the_test_run(tmp_path: Path) -> None:
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
        eventually(
            lambda: (server / "comm").read_text().strip() == "sleep"
        )  # the server has started
        run.kill()
    eventually(lambda: not server.exists())
