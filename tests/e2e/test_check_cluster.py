"""`winpod check --kubeconfig` on a real cluster: its verdicts match what the cluster does.

Every pod is checked first and then created: the API server must reject what winpod reports as
rejected, and the scheduler must bind a pod only to nodes that winpod does not report as blocked.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.controlplane import ControlPlane
from tests.support.e2e.objects import (
    BUILD_2019,
    BUILD_2022,
    BUILD_2025,
    HYPERVISOR,
    PROCESS,
    add_nodes,
    bound_to,
    linux_node,
    pod,
    pods_path,
    runtime_class,
    scheduled_to,
    windows_node,
)

NAMESPACE = "checked"
PODS = pods_path(NAMESPACE)
IMAGES = {
    "example.test/old:1": [f"{BUILD_2019}.805"],
    "example.test/both:1": [f"{BUILD_2019}.805", f"{BUILD_2022}.2113"],
    "example.test/new:1": [f"{BUILD_2025}.1742"],
}


NODES = [
    windows_node("win-2019", BUILD_2019, handlers=(PROCESS, HYPERVISOR)),
    windows_node("win-2022", BUILD_2022, handlers=(PROCESS, HYPERVISOR, f"{HYPERVISOR}-17763")),
    windows_node(
        "win-2022-containerd",
        BUILD_2022,
        runtime="containerd://2.1.0",
        handlers=(PROCESS, HYPERVISOR),
    ),
    linux_node("linux"),
]
CLASSES = [
    runtime_class("windows-2019", PROCESS, BUILD_2019),
    runtime_class("windows-2022", PROCESS, BUILD_2022),
    runtime_class(
        "windows-2019-hyperv",
        f"{HYPERVISOR}-17763",
        BUILD_2022,
        overhead={"podFixed": {"memory": "200Mi"}},
    ),
]


def make_pod(name: str, image: str, *, memory: str = "1Gi", **spec: Any) -> dict[str, Any]:
    resources = {"requests": {"memory": memory}}
    container = {"name": "main", "image": image, "resources": resources}
    return pod(name, NAMESPACE, {"containers": [container], **spec})


TENANT = make_pod("tenant", "example.test/both:1", memory="6Gi", nodeName="win-2022")


@dataclass(frozen=True)
class Case:
    """A pod and the expected report: its status, and each Windows node's outcome and cause."""

    pod: dict[str, Any]
    status: str
    win_2019: str
    win_2022: str
    win_2022_containerd: str
    refused: bool = False
    advice: str = ""
    chosen: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return str(self.pod["metadata"]["name"])

    @property
    def outcomes(self) -> dict[str, str]:
        return {
            "win-2019": self.win_2019,
            "win-2022": self.win_2022,
            "win-2022-containerd": self.win_2022_containerd,
        }


CASES = [
    Case(
        make_pod("class-sends-it-home", "example.test/both:1", runtimeClassName="windows-2019"),
        "runs",
        "runs",
        "blocked node-selector",
        "blocked node-selector",
        chosen={"win-2019": f"{BUILD_2019}.805"},
    ),
    Case(
        make_pod("one-name-other-build", "example.test/both:1", runtimeClassName="windows-2022"),
        "runs",
        "blocked node-selector",
        "runs",
        "runs",
        chosen={"win-2022": f"{BUILD_2022}.2113"},
    ),
    Case(
        make_pod(
            "older-image-in-a-guest", "example.test/old:1", runtimeClassName="windows-2019-hyperv"
        ),
        "may-fail",
        "blocked node-selector",
        "runs",
        "fails handler",
        chosen={"win-2022": f"{BUILD_2019}.805"},
    ),
    Case(
        make_pod("older-image-no-guest", "example.test/old:1", runtimeClassName="windows-2022"),
        "cannot-run",
        "blocked node-selector",
        "fails build",
        "fails build",
        advice="set runtimeClassName: windows-2019",
    ),
    Case(
        make_pod("newer-image", "example.test/new:1", runtimeClassName="windows-2022"),
        "cannot-run",
        "blocked node-selector",
        "fails build",
        "fails build",
    ),
    Case(
        make_pod(
            "untolerated", "example.test/both:1", nodeSelector={"kubernetes.io/os": "windows"}
        ),
        "cannot-run",
        "blocked taint",
        "blocked taint",
        "blocked taint",
        advice="tolerate os=windows:NoSchedule",
    ),
    Case(
        make_pod("large", "example.test/both:1", memory="3Gi", runtimeClassName="windows-2022"),
        "runs",
        "blocked node-selector",
        "blocked resources",
        "runs",
    ),
    Case(
        make_pod(
            "large-with-overhead",
            "example.test/old:1",
            memory="1900Mi",
            runtimeClassName="windows-2019-hyperv",
            nodeSelector={"kubernetes.io/hostname": "win-2022"},
        ),
        "waits",
        "blocked node-selector",
        "blocked resources",
        "blocked node-selector",
    ),
    Case(
        make_pod("huge", "example.test/both:1", memory="9Gi", runtimeClassName="windows-2019"),
        "cannot-run",
        "blocked resources",
        "blocked node-selector",
        "blocked node-selector",
    ),
    Case(
        make_pod(
            "two-minds",
            "example.test/both:1",
            runtimeClassName="windows-2019",
            nodeSelector={"node.kubernetes.io/windows-build": BUILD_2022},
        ),
        "cannot-run",
        "blocked node-selector",
        "runs",
        "runs",
        refused=True,
    ),
    Case(
        make_pod("no-such-class", "example.test/both:1", runtimeClassName="nope"),
        "cannot-run",
        "blocked taint",
        "blocked taint",
        "blocked taint",
        refused=True,
    ),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A cluster without a controller manager, so nodes without heartbeats stay ready."""
    directory = tmp_path_factory.mktemp("check-cluster")
    with ControlPlane(directory, controller_manager=False) as running:
        running.create_namespace(NAMESPACE)
        running.apply(*CLASSES)
        add_nodes(running, *NODES)
        created = running.request("POST", PODS, TENANT)
        assert created.status == 201, created.message
        yield running


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("images")
    content = directory / "content"
    content.mkdir()
    (content / "app.exe").write_bytes(b"MZ")
    for name, versions in IMAGES.items():
        builds = [argument for version in versions for argument in ("--os-version", version)]
        packed = winpod("image", "pack", str(content), "-t", f"oci:{directory}/oci:{name}", *builds)
        assert packed.returncode == 0, packed.stderr
    return directory / "oci"


@pytest.fixture(scope="module")
def report(
    cluster: ControlPlane, layout: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    manifest = tmp_path_factory.mktemp("manifests") / "app.yaml"
    manifest.write_text("\n---\n".join(json.dumps(case.pod) for case in CASES))
    checked = winpod(
        *("check", "-f", str(manifest), "--kubeconfig", str(cluster.kubeconfig)),
        *("--offline", "--layout", str(layout), "-o", "json"),
    )
    assert checked.returncode == 1, checked.stderr
    answer: dict[str, Any] = json.loads(checked.stdout)
    return answer


def winpod(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "winpod", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "NO_COLOR": "1"},
    )


def workload(report: dict[str, Any], case: Case) -> dict[str, Any]:
    found: dict[str, Any] = next(w for w in report["workloads"] if w["name"] == case.name)
    return found


def verdicts(report: dict[str, Any], case: Case) -> dict[str, dict[str, Any]]:
    return {name: v for v in workload(report, case)["verdicts"] for name in v["nodes"]}


def test_nodes_are_read_from_the_api_server(report: dict[str, Any]) -> None:
    nodes = {node["name"]: node for node in report["nodes"]}
    assert nodes["win-2022"] == {
        "name": "win-2022",
        "os": "windows",
        "architecture": "amd64",
        "build": BUILD_2022,
        "product": "Windows Server 2022",
        "runtime": "winpod",
        "handlers": sorted([PROCESS, HYPERVISOR, f"{HYPERVISOR}-17763"]),
    }
    assert nodes["win-2019"]["build"] == BUILD_2019
    assert nodes["linux"]["os"] == "linux"
    assert nodes["linux"]["handlers"] is None


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_verdict_of_each_node_is_reported(report: dict[str, Any], case: Case) -> None:
    answer = workload(report, case)
    found = verdicts(report, case)
    assert answer["status"] == case.status
    assert bool(answer["refusals"]) == case.refused
    for name, expected in case.outcomes.items():
        outcome, _, cause = expected.partition(" ")
        assert found[name]["outcome"] == outcome, name
        assert not cause or cause in [reason["cause"] for reason in found[name]["reasons"]], name
    for name, version in case.chosen.items():
        (manifest,) = found[name]["manifests"].values()
        assert manifest["platform"] == f"windows/amd64 {version}"
    assert not case.advice or any(case.advice in advice for advice in answer["advice"])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_cluster_behaves_as_reported(
    cluster: ControlPlane, report: dict[str, Any], case: Case
) -> None:
    created = cluster.request("POST", PODS, case.pod)
    if case.refused:
        symptoms = [refusal["symptom"] for refusal in workload(report, case)["refusals"]]
        assert created.status == 403
        assert all(symptom in created.message for symptom in symptoms), created.message
        return
    assert created.status == 201, created.message
    found = verdicts(report, case)
    reachable = {name for name, verdict in found.items() if verdict["outcome"] != "blocked"}
    try:
        bound = (bound_to if reachable else scheduled_to)(cluster, NAMESPACE, case.name)
    finally:
        cluster.request("DELETE", f"{PODS}/{case.name}?gracePeriodSeconds=0")
    assert bound in reachable if reachable else bound == ""


def test_user_without_permission_to_list_nodes_gets_an_error(
    cluster: ControlPlane, tmp_path: Path
) -> None:
    manifest = tmp_path / "app.yaml"
    manifest.write_text(json.dumps(CASES[0].pod))
    kubeconfig = cluster.kubeconfig_for("guest")
    result = winpod("check", "-f", str(manifest), "--kubeconfig", str(kubeconfig), "--offline")
    assert result.returncode == 2
    assert "to list nodes, pods and runtimeclasses" in result.stderr
    assert "Traceback" not in result.stderr
