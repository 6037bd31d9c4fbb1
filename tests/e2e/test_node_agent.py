"""`winpod node` in a real cluster: registration, leases, pods, restarts, outages, bootstrap."""

import http.client
import json
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.controlplane import IN_TIME, ControlPlane
from tests.support.e2e.bootstrap import bootstrap_token_of, requests_of
from tests.support.e2e.node_process import (
    NodeProcess,
    condition,
    events_of,
    found,
    is_pod_ready,
    is_ready,
    node,
    phase,
    pod,
    simulated_runtime,
    windows_pod,
)
from tests.support.e2e.objects import (
    BUILD_2019,
    BUILD_2022,
    PROCESS,
    TAINT,
    pods_path,
    runtime_class,
)
from tests.support.e2e.waiting import eventually

from winpod.cli.main import app

IMAGE = "registry.example/app:1"
UNAUTHORIZED = 401
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


@contextmanager
def joined(
    cluster: ControlPlane, directory: Path, name: str, *arguments: str
) -> Iterator[NodeProcess]:
    """Run a node with its own identity on a simulated runtime."""
    kubeconfig = cluster.kubeconfig_for(f"system:node:{name}", "system:nodes")
    directory.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        runtime = simulated_runtime(directory, "2019")
        stack.callback(runtime.stop)
        process = NodeProcess(
            directory,
            *("--kubeconfig", str(kubeconfig), "--name", name, "--build", "2019"),
            *("--runtime", str(directory / "cri.sock"), "--port", "0", *arguments),
        )
        stack.callback(lambda: cluster.request("DELETE", f"/api/v1/nodes/{name}"))
        stack.enter_context(process)
        yield process


@contextmanager
def simulated(cluster: ControlPlane, directory: Path, *arguments: str) -> Iterator[NodeProcess]:
    """Run simulated nodes with a kubeconfig that may act for all of them."""
    process = NodeProcess(
        directory, "--kubeconfig", str(cluster.kubeconfig), "--simulated", *arguments
    )
    with process:
        yield process


def test_node_registers_as_windows_under_node_restriction(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    reserved = ("--system-reserved", "cpu=500m,memory=1Gi", "--label", "example.test/rack=7")
    with joined(control_plane, tmp_path, "reg-2019", *reserved, "--osversion-labels") as process:
        eventually(lambda: is_ready(control_plane, "reg-2019"))
        eventually(lambda: "Starting kubelet." in control_plane.kubectl("get", "events", "-A"))
        registered = node(control_plane, "reg-2019")
    labels = registered["metadata"]["labels"]
    assert (
        labels.items()
        >= {
            "kubernetes.io/os": "windows",
            "kubernetes.io/arch": "amd64",
            "kubernetes.io/hostname": "reg-2019",
            "node.kubernetes.io/windows-build": BUILD_2019,
            "example.test/rack": "7",
        }.items()
    )
    assert "beta.kubernetes.io/osversion" not in labels
    command = f"kubectl label node reg-2019 beta.kubernetes.io/osversion={BUILD_2019}"
    assert command in process.log.read_text()
    assert TAINT in registered["spec"]["taints"]
    info = registered["status"]["nodeInfo"]
    assert info["osImage"] == "Windows Server 2019 Datacenter"
    assert info["kernelVersion"] == f"{BUILD_2019}.1"
    assert info["operatingSystem"] == "windows"
    assert info["containerRuntimeVersion"].startswith("winpod://")
    assert [h["name"] for h in registered["status"]["runtimeHandlers"]] == ["", PROCESS]
    assert registered["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"] > 0
    capacity, allocatable = registered["status"]["capacity"], registered["status"]["allocatable"]
    assert capacity["pods"] == allocatable["pods"] == "110"
    assert int(allocatable["cpu"].removesuffix("m")) == 1000 * int(capacity["cpu"]) - 500


def test_lease_is_renewed_and_a_killed_node_becomes_unknown(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    def renewed() -> str:
        lease = found(control_plane, f"{LEASES}/lease-2019")
        return str(lease.get("spec", {}).get("renewTime", ""))

    with joined(control_plane, tmp_path, "lease-2019") as process:
        eventually(renewed)
        first = renewed()
        lease = control_plane.request("GET", f"{LEASES}/lease-2019").body
        assert lease["spec"]["leaseDurationSeconds"] == 40
        assert lease["metadata"]["ownerReferences"][0]["kind"] == "Node"
        eventually(lambda: renewed() > first)
        process.kill()
        eventually(
            lambda: condition(node(control_plane, "lease-2019"), "Ready").get("status") == "Unknown"
        )
        process.start()
        eventually(lambda: is_ready(control_plane, "lease-2019"))


def test_scheduled_pod_runs_reports_its_status_and_is_deleted(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    control_plane.create_namespace("runs")
    with simulated(control_plane, tmp_path, "--name", "runs-win", "--label", "runs=here"):
        eventually(lambda: is_ready(control_plane, "runs-win"))
        selector = {"runs": "here"}
        control_plane.apply(
            windows_pod("runs", "web", IMAGE, nodeSelector=selector),
            windows_pod(
                "runs",
                "once",
                IMAGE,
                "simulate",
                "0",
                "0.1",
                restartPolicy="Never",
                nodeSelector=selector,
            ),
        )
        eventually(lambda: is_pod_ready(control_plane, "runs", "web"))
        eventually(lambda: phase(control_plane, "runs", "once") == "Succeeded")
        web = pod(control_plane, "runs", "web")
        assert web["status"]["phase"] == "Running"
        assert web["status"]["podIP"]
        assert web["status"]["hostIP"] == "127.0.0.1"
        assert web["status"]["containerStatuses"][0]["ready"] is True
        eventually(
            lambda: (
                {"Scheduled", "Pulled", "Created", "Started"}
                <= {reason for reason, _ in events_of(control_plane, "runs", "web")}
            )
        )
        control_plane.kubectl("delete", "pod", "web", "-n", "runs", IN_TIME)
        assert not pod(control_plane, "runs", "web")


def test_pods_survive_an_api_server_outage_and_are_reported_afterwards(
    tmp_path: Path,
) -> None:
    with ControlPlane(tmp_path / "cluster") as cluster:
        cluster.create_namespace("away")
        with simulated(cluster, tmp_path / "node", "--name", "away-win") as process:
            eventually(lambda: is_ready(cluster, "away-win"))
            cluster.apply(windows_pod("away", "stays", IMAGE))
            eventually(lambda: is_pod_ready(cluster, "away", "stays"))
            before = pod(cluster, "away", "stays")
            ends = ("simulate", "3", "9")
            cluster.apply(windows_pod("away", "ends", IMAGE, *ends, restartPolicy="Never"))
            eventually(lambda: phase(cluster, "away", "ends") in ("Running", "Failed"))
            cluster.stop_api_server()
            time.sleep(12)
            cluster.start_api_server()
            eventually(lambda: phase(cluster, "away", "ends") == "Failed")
            ended = pod(cluster, "away", "ends")["status"]["containerStatuses"][0]["state"]
            assert ended["terminated"]["exitCode"] == 3
            after = pod(cluster, "away", "stays")
            assert after["status"]["containerStatuses"] == before["status"]["containerStatuses"]
            cluster.apply(windows_pod("away", "late", IMAGE))
            eventually(lambda: phase(cluster, "away", "late") == "Running")
            assert process.pid


def test_pod_is_resized_in_place(tmp_path: Path) -> None:
    small, large = ({"memory": "64Mi"}, {"memory": "128Mi"})
    plane = ControlPlane(tmp_path / "cluster", without_admission="PodResizeValidator")
    with plane as cluster, simulated(cluster, tmp_path / "node", "--name", "resize-win"):
        eventually(lambda: is_ready(cluster, "resize-win"))
        cluster.create_namespace("resize")
        manifest = windows_pod("resize", "web", IMAGE)
        del manifest["spec"]["os"]
        manifest["spec"]["containers"][0]["resources"] = {"requests": small, "limits": small}
        cluster.apply(manifest)
        eventually(lambda: is_pod_ready(cluster, "resize", "web"))
        before = pod(cluster, "resize", "web")["status"]["containerStatuses"][0]
        assert before["resources"]["limits"] == small
        new = [{"name": "app", "resources": {"requests": large, "limits": large}}]
        patch = json.dumps({"spec": {"containers": new}})
        target = ("pod", "web", "-n", "resize", "--subresource=resize")
        cluster.kubectl("patch", *target, "-p", patch)

        def resources_of(status: dict[str, Any]) -> list[Any]:
            resources = status.get("resources", {})
            return [
                resources.get("limits"),
                resources.get("requests"),
                status.get("allocatedResources"),
            ]

        def is_resized() -> bool:
            status = pod(cluster, "resize", "web")["status"]
            kinds = {c["type"] for c in status["conditions"]}
            both = resources_of(status) + resources_of(status["containerStatuses"][0])
            return both == [large] * 6 and not any("Resize" in kind for kind in kinds)

        eventually(is_resized)
        after = pod(cluster, "resize", "web")["status"]["containerStatuses"][0]
        assert (after["containerID"], after["restartCount"]) == (before["containerID"], 0)


def test_exit_code_rule_restarts_all_containers(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    control_plane.create_namespace("anew")
    manifest = windows_pod("anew", "web", IMAGE, "simulate", "42", "3", nodeName="anew-win")
    rule = {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}
    manifest["spec"]["containers"][0] |= {"restartPolicy": "Never", "restartPolicyRules": [rule]}
    manifest["spec"]["containers"].append({"name": "other", "image": IMAGE})

    def restarts() -> list[int]:
        status = pod(control_plane, "anew", "web").get("status", {})
        return [container["restartCount"] for container in status.get("containerStatuses", [])]

    with simulated(control_plane, tmp_path, "--name", "anew-win"):
        eventually(lambda: is_ready(control_plane, "anew-win"))
        control_plane.apply(manifest)
        eventually(lambda: len(restarts()) == 2 and min(restarts()) >= 2)
        restarting = condition(pod(control_plane, "anew", "web"), "AllContainersRestarting")
        assert restarting["status"] in ("True", "False")
        control_plane.kubectl("delete", "pod", "web", "-n", "anew", IN_TIME)


def test_killed_node_finds_its_pods_and_restarts_none(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    image = _pack_image(tmp_path / "packed")
    control_plane.create_namespace("killed")
    with joined(control_plane, tmp_path, "killed-win", "--label", "killed=here") as process:
        eventually(lambda: is_ready(control_plane, "killed-win"))
        selector = {"killed": "here"}
        control_plane.apply(
            windows_pod("killed", "stays", image, "app.exe", nodeSelector=selector),
            windows_pod("killed", "leaves", image, "app.exe", nodeSelector=selector),
        )
        eventually(lambda: is_pod_ready(control_plane, "killed", "stays"))
        eventually(lambda: is_pod_ready(control_plane, "killed", "leaves"))
        before = pod(control_plane, "killed", "stays")["status"]["containerStatuses"][0]
        process.kill()
        path = f"{pods_path('killed')}/leaves"
        control_plane.request("DELETE", path, {"gracePeriodSeconds": 0})
        process.start()
        control_plane.apply(windows_pod("killed", "new", image, "app.exe", nodeSelector=selector))
        eventually(lambda: phase(control_plane, "killed", "new") == "Running")
        after = pod(control_plane, "killed", "stays")["status"]["containerStatuses"][0]
        assert after == before
        assert after["restartCount"] == 0


def test_static_pods_run_and_have_mirror_pods(control_plane: ControlPlane, tmp_path: Path) -> None:
    manifests = tmp_path / "manifests"
    manifests.mkdir()
    manifest = windows_pod("default", "proxy", IMAGE)
    (manifests / "proxy.json").write_text(json.dumps(manifest))
    arguments = ("--name", "static-win", "--manifests", str(manifests))
    with simulated(control_plane, tmp_path / "node", *arguments):
        eventually(lambda: phase(control_plane, "default", "proxy-static-win") == "Running")
        mirror = pod(control_plane, "default", "proxy-static-win")
        assert "kubernetes.io/config.mirror" in mirror["metadata"]["annotations"]
        control_plane.kubectl("delete", "pod", "proxy-static-win", IN_TIME)

        def is_recreated() -> bool:
            now = pod(control_plane, "default", "proxy-static-win")
            is_new = bool(now) and now["metadata"]["uid"] != mirror["metadata"]["uid"]
            return is_new and now["status"].get("phase") == "Running"

        eventually(is_recreated)
        recreated = pod(control_plane, "default", "proxy-static-win")["status"]
        assert (
            recreated["containerStatuses"][0]["containerID"]
            == mirror["status"]["containerStatuses"][0]["containerID"]
        )
        (manifests / "proxy.json").unlink()
        eventually(lambda: not pod(control_plane, "default", "proxy-static-win"))


def test_story_1_runtime_classes_place_pods_on_two_builds(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    control_plane.create_namespace("story")
    labels = {"example.test/story": "1"}
    for name, build in (("story-1809", BUILD_2019), ("story-2022", BUILD_2022)):
        manifest = runtime_class(name, PROCESS, build)
        manifest["scheduling"]["nodeSelector"] |= labels
        control_plane.apply(manifest)
    nodes = tmp_path / "nodes.yaml"
    nodes.write_text(
        json.dumps(
            {
                "nodes": [
                    {"name": "story-a", "build": "2019", "labels": labels},
                    {"name": "story-b", "build": "2022", "labels": labels},
                ]
            }
        )
    )
    with simulated(control_plane, tmp_path / "node", "--nodes", str(nodes)):
        eventually(lambda: is_ready(control_plane, "story-a"))
        eventually(lambda: is_ready(control_plane, "story-b"))
        for name in ("story-1809", "story-2022"):
            manifest = windows_pod("story", name, IMAGE, runtimeClassName=name)
            del manifest["spec"]["tolerations"]
            control_plane.apply(manifest)
        eventually(lambda: phase(control_plane, "story", "story-1809") == "Running")
        eventually(lambda: phase(control_plane, "story", "story-2022") == "Running")
        placed = {
            name: pod(control_plane, "story", name)["spec"]["nodeName"]
            for name in ("story-1809", "story-2022")
        }
        assert placed == {"story-1809": "story-a", "story-2022": "story-b"}


@pytest.fixture
def bootstrap_token(control_plane: ControlPlane) -> Iterator[str]:
    with bootstrap_token_of(control_plane) as token:
        yield token


def test_node_joins_with_a_token_and_serves_with_a_signed_certificate(
    control_plane: ControlPlane, tmp_path: Path, bootstrap_token: str
) -> None:
    runtime = simulated_runtime(tmp_path, "2019")
    kubeconfig = tmp_path / "kubeconfig"
    process = NodeProcess(
        tmp_path,
        *("--kubeconfig", str(kubeconfig), "--name", "token-win", "--build", "2019"),
        *("--server", control_plane.server, "--token", bootstrap_token),
        *("--runtime", str(tmp_path / "cri.sock"), "--port", "0"),
    )
    try:
        with process:
            eventually(lambda: is_ready(control_plane, "token-win"))
            requests = eventually(lambda: requests_of(control_plane, "system:node:token-win"))
            assert [item["spec"]["signerName"] for item in requests] == [
                "kubernetes.io/kubelet-serving"
            ]
            serving = tmp_path / "root/nodes/token-win/pki/serving.pem"
            self_signed = serving.read_bytes()
            control_plane.kubectl("certificate", "approve", requests[0]["metadata"]["name"])
            eventually(lambda: serving.read_bytes() != self_signed)
            assert "client-certificate" in kubeconfig.read_text()
            process.kill()
            process.start()
            eventually(lambda: _anonymous_status(control_plane, "token-win") == UNAUTHORIZED)
            assert len(requests_of(control_plane, "system:node:token-win")) == 1
    finally:
        runtime.stop()
        control_plane.request("DELETE", "/api/v1/nodes/token-win")


def test_node_joins_with_a_bootstrap_kubeconfig_and_restarts_without_it(
    control_plane: ControlPlane, tmp_path: Path, bootstrap_token: str
) -> None:
    config = json.loads(control_plane.public_kubeconfig())
    config["users"] = [{"name": "joining", "user": {"token": bootstrap_token}}]
    cluster = config["clusters"][0]["name"] = "joined"
    context = {"cluster": cluster, "user": "joining"}
    config |= {"contexts": [{"name": "joining", "context": context}], "current-context": "joining"}
    bootstrap, kubeconfig = tmp_path / "bootstrap.kubeconfig", tmp_path / "kubeconfig"
    bootstrap.write_text(json.dumps(config))
    runtime = simulated_runtime(tmp_path, "2019")
    process = NodeProcess(
        tmp_path,
        *("--kubeconfig", str(kubeconfig), "--bootstrap-kubeconfig", str(bootstrap)),
        *("--name", "boot-win", "--build", "2019", "--self-signed"),
        *("--runtime", str(tmp_path / "cri.sock"), "--port", "0"),
    )
    try:
        with process:
            eventually(lambda: is_ready(control_plane, "boot-win"))
            assert bootstrap_token not in kubeconfig.read_text()
            assert "client-certificate" in kubeconfig.read_text()
            process.kill()
            bootstrap.unlink()
            before = _lease_renewed(control_plane, "boot-win")
            process.start()
            eventually(lambda: _lease_renewed(control_plane, "boot-win") > before)
    finally:
        runtime.stop()
        control_plane.request("DELETE", "/api/v1/nodes/boot-win")


def _lease_renewed(cluster: ControlPlane, name: str) -> str:
    """Return the renewal time of the node's lease."""
    return str(found(cluster, f"{LEASES}/{name}").get("spec", {}).get("renewTime", ""))


@pytest.mark.parametrize(
    ("options", "taints"),
    [
        (
            ("--register-taint", "dedicated=shop:NoExecute", "--register-taint", "new:NoSchedule"),
            {("dedicated", "shop", "NoExecute"), ("new", "", "NoSchedule")},
        ),
        (("--register-taint", ""), set()),
    ],
    ids=["two", "none"],
)
def test_node_registers_with_its_configured_taints(
    control_plane: ControlPlane,
    tmp_path: Path,
    options: tuple[str, ...],
    taints: set[tuple[str, str, str]],
) -> None:
    """Taints of Kubernetes itself come and go with the node's conditions."""
    with joined(control_plane, tmp_path, f"taints-{len(taints)}", *options):
        eventually(lambda: is_ready(control_plane, f"taints-{len(taints)}"))
        registered = node(control_plane, f"taints-{len(taints)}")["spec"].get("taints", [])
    own = {(taint["key"], taint.get("value", ""), taint["effect"]) for taint in registered}
    assert {taint for taint in own if not taint[0].startswith("node.kubernetes.io/")} == taints


def _anonymous_status(cluster: ControlPlane, name: str) -> int:
    """Return the node API's status for an anonymous request, or 0 if it does not listen."""
    endpoints = node(cluster, name)["status"]["daemonEndpoints"]
    trust = ssl.create_default_context(cafile=cluster.authority)
    connection = http.client.HTTPSConnection(
        "127.0.0.1", endpoints["kubeletEndpoint"]["Port"], context=trust, timeout=10
    )
    try:
        connection.request("GET", "/pods")
        return connection.getresponse().status
    except OSError:
        return 0
    finally:
        connection.close()


def _pack_image(directory: Path) -> str:
    """Pack an image into a directory, from which a simulated runtime pulls it."""
    content = directory / "content"
    content.mkdir(parents=True)
    (content / "app.txt").write_text("app")
    name = f"oci:{directory / 'images'}:app:1"
    arguments = ["image", "pack", str(content), "-t", name, "--os-version", "2019"]
    app(arguments, standalone_mode=False)
    return name
