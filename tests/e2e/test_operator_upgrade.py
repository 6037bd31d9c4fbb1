"""Upgrades to the next Windows Server in a real cluster: moved, blocked, killed, undone.

Nodes are simulated; the control plane, the scheduler and the controllers are real.
"""

import asyncio
import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.controlplane import ControlPlane
from tests.support.e2e.node_process import NodeProcess, condition, events_of, found, is_ready, node
from tests.support.e2e.objects import (
    BUILD_2019,
    BUILD_2022,
    HYPERVISOR,
    PROCESS,
    TAINT,
    add_nodes,
    pod,
    runtime_class,
    windows_node,
)
from tests.support.e2e.operator_process import NAMESPACE as SYSTEM
from tests.support.e2e.operator_process import OperatorProcess, ask_about_pods, classes
from tests.support.e2e.upgrade_kills import upgrade_until
from tests.support.e2e.waiting import eventually
from tests.support.registries import auths, basic_registry, home, log_in, registry

from winpod.k8s.kubeconfig import RestConfig, read_kubeconfig
from winpod.labels import RETIRING_ANNOTATION
from winpod.operator.upgrade.resource import CRD, UPGRADES
from winpod.operator.upgrade.spec import UpgradeStrategy
from winpod.placement.model import RuntimeClass

__all__ = ["basic_registry", "home", "registry"]

NAMESPACE = "shop"
GUEST = f"{HYPERVISOR}-17763"
NAME = "2019-to-2022"
UPGRADE = f"{UPGRADES}/{NAME}"
APPS = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
BUDGET = f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets/free"
OLD_CLASS = "/apis/node.k8s.io/v1/runtimeclasses/windows-2019"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A separate control plane, since an upgrade affects every node of a build."""
    directory = tmp_path_factory.mktemp("upgrade-plane")
    with ControlPlane(directory, node_silence="1h") as running:
        running.create_namespace(NAMESPACE)
        running.create_namespace(SYSTEM)
        running.apply(CRD)
        eventually(lambda: found(running, UPGRADES))
        yield running


@dataclass(frozen=True)
class Images:
    """Images of both builds, of both builds in a private registry, and of the old build."""

    both: str
    private: str
    old: str


@pytest.fixture
def images(home: Path, registry: str, basic_registry: str) -> Images:
    """Push the images; simulated nodes pull none, but the planner looks them up."""
    (home / "content").mkdir()
    (home / "content/app.exe").write_bytes(b"MZ")
    log_in(home, auths(basic_registry))
    found = Images(
        f"{registry}/upgrade/both:1",
        f"{basic_registry}/upgrade/both:1",
        f"{registry}/upgrade/old:1",
    )
    for name in (found.both, found.private, found.old):
        versions = (
            "--os-version",
            "2019",
            *(() if name == found.old else ("--os-version", "2022")),
        )
        packed = winpod("image", "pack", str(home / "content"), "-t", name, *versions)
        assert packed.returncode == 0, packed.stderr
    (home / ".docker/config.json").unlink()
    return found


def pull_secret(plane: ControlPlane, registry: str) -> dict[str, Any]:
    """Create a pull secret; return the pod spec that uses it."""
    config = base64.b64encode(json.dumps(auths(registry)).encode()).decode()
    plane.apply(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "pull", "namespace": NAMESPACE},
            "type": "kubernetes.io/dockerconfigjson",
            "data": {".dockerconfigjson": config},
        }
    )
    return {"imagePullSecrets": [{"name": "pull"}]}


def winpod(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "winpod", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "NO_COLOR": "1"},
    )


@contextmanager
def simulated_nodes(plane: ControlPlane, directory: Path, **builds: str) -> Iterator[None]:
    """Run simulated nodes by name; delete them and their workloads afterwards."""
    nodes = [{"name": name, "build": build} for name, build in builds.items()]
    directory.mkdir(exist_ok=True)
    (directory / "nodes.yaml").write_text(json.dumps({"nodes": nodes}))
    options = ("--simulated", "--nodes", str(directory / "nodes.yaml"))
    try:
        with NodeProcess(directory, "--kubeconfig", str(plane.kubeconfig), *options):
            for name in builds:
                eventually(partial(is_ready, plane, name))
            yield
            at_once = ("--all", "--grace-period=0", "--force")
            plane.kubectl("delete", "deployments,replicasets", "-n", NAMESPACE, "--all")
            plane.kubectl("delete", "pods,poddisruptionbudgets", "-n", NAMESPACE, *at_once)
    finally:
        for name in builds:
            plane.request("DELETE", f"/api/v1/nodes/{name}")
        remove_finalizers(plane)
        plane.kubectl("delete", "runtimeclasses,windowsupgrades", "--all")


def remove_finalizers(plane: ControlPlane) -> None:
    """Remove the finalizer of an upgrade whose operator was stopped before it did so."""
    if upgrade := found(plane, UPGRADE):
        upgrade["metadata"]["finalizers"] = []
        plane.request("PUT", UPGRADE, upgrade)


@contextmanager
def operator(plane: ControlPlane, directory: Path) -> Iterator[OperatorProcess]:
    """Run an operator with admission; wait for the classes of the nodes."""
    with OperatorProcess(plane, directory, "one") as process:
        ask_about_pods(plane, process.webhook_port)
        eventually(lambda: "windows-2019" in classes(plane))
        yield process


def deployment(plane: ControlPlane, name: str, image: str, replicas: int = 1, **spec: Any) -> None:
    labels = {"app": name}
    spec = {
        "containers": [{"name": "app", "image": image}],
        "terminationGracePeriodSeconds": 0,
        "tolerations": [TAINT | {"operator": "Equal"}],
        **spec,
    }
    template = {"metadata": {"labels": labels}, "spec": spec}
    body = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    metadata = {"name": name, "namespace": NAMESPACE}
    plane.apply({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": body})
    eventually(lambda: ready(plane, name) == replicas)


def ready(plane: ControlPlane, name: str) -> int:
    return int(found(plane, f"{APPS}/{name}").get("status", {}).get("readyReplicas", 0))


def nodes_of(plane: ControlPlane, name: str) -> set[str]:
    pods = found(plane, f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector=app%3D{name}")
    living = [p for p in pods["items"] if "deletionTimestamp" not in p["metadata"]]
    return {p["spec"].get("nodeName", "") for p in living}


def class_of(plane: ControlPlane, name: str) -> str:
    spec = found(plane, f"{APPS}/{name}")["spec"]["template"]["spec"]
    return str(spec.get("runtimeClassName", ""))


def block_eviction(plane: ControlPlane, name: str) -> None:
    """Create a disruption budget that allows no eviction."""
    spec = {"maxUnavailable": 0, "selector": {"matchLabels": {"app": name}}}
    metadata = {"name": "free", "namespace": NAMESPACE}
    plane.apply(
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": metadata,
            "spec": spec,
        }
    )
    eventually(lambda: found(plane, BUDGET).get("status", {}).get("expectedPods"))


def request_upgrade(plane: ControlPlane, **spec: Any) -> None:
    existing = found(plane, UPGRADE)
    body = {
        "apiVersion": CRD["spec"]["group"] + "/v1alpha1",
        "kind": "WindowsUpgrade",
        "metadata": existing.get("metadata", {"name": NAME}),
        "spec": {"from": "2019", "to": "2022", "patchWorkloads": True, **spec},
    }
    answer = plane.request(*(("PUT", UPGRADE) if existing else ("POST", UPGRADES)), body)
    assert answer.status in (200, 201), answer.message


def upgrade_command(command: str, plane: ControlPlane) -> list[str]:
    options = ("--from", "2019", "--to", "2022", "--patch-workloads")
    return ["upgrade", command, "--kubeconfig", str(plane.kubeconfig), *options]


def status(plane: ControlPlane) -> dict[str, Any]:
    return dict(found(plane, UPGRADE).get("status", {}))


def steps_of(plane: ControlPlane, kind: str) -> dict[str, dict[str, Any]]:
    return {step["target"]: step for step in status(plane)["steps"] if step["do"] == kind}


def phase(plane: ControlPlane) -> str:
    return str(status(plane).get("phase", ""))


def rejection(plane: ControlPlane) -> str:
    """Return the rejection of a new pod of the old class."""
    spec = {"containers": [{"name": "app", "image": "example.test/app:1"}], **OF_OLD_CLASS}
    path = f"/api/v1/namespaces/{NAMESPACE}/pods?dryRun=All"
    return plane.request("POST", path, pod("late", NAMESPACE, spec)).message


def is_cordoned(plane: ControlPlane, name: str) -> bool:
    return bool(node(plane, name)["spec"].get("unschedulable"))


def retiring(plane: ControlPlane) -> str:
    annotations = found(plane, OLD_CLASS)["metadata"].get("annotations", {})
    return str(annotations.get(RETIRING_ANNOTATION, ""))


RUNS_NOTHING = {"key": "runs-nothing", "effect": "NoSchedule"}
ON_WINDOWS: dict[str, Any] = {"nodeSelector": {"kubernetes.io/os": "windows"}}
OF_OLD_CLASS: dict[str, Any] = {"runtimeClassName": "windows-2019"}


def test_upgrade_respects_budgets_and_is_finished_by_a_restarted_operator(
    plane: ControlPlane, images: Images, basic_registry: str, tmp_path: Path
) -> None:
    with (
        simulated_nodes(plane, tmp_path / "nodes", **{"old-a": "2019", "new-a": "2022"}),
        operator(plane, tmp_path / "operator") as process,
    ):
        plane.kubectl("cordon", "new-a")
        deployment(plane, "free", images.both, 2, **ON_WINDOWS)
        secret = pull_secret(plane, basic_registry)
        deployment(plane, "classy", images.private, 2, **OF_OLD_CLASS, **secret)
        plane.kubectl("uncordon", "new-a")
        block_eviction(plane, "free")
        request_upgrade(plane, oldNodes="mark")
        eventually(lambda: "disruption budget" in status(plane).get("message", ""))
        process.kill()
        assert nodes_of(plane, "free") == {"old-a"}
        assert nodes_of(plane, "classy") == {"new-a"}
        assert "use windows-2022" in retiring(plane)
        plane.request("DELETE", BUDGET)
        process.start()
        eventually(lambda: phase(plane) == "Done")
        assert nodes_of(plane, "free") == nodes_of(plane, "classy") == {"new-a"}
        eventually(lambda: (ready(plane, "free"), ready(plane, "classy")) == (2, 2))
        assert class_of(plane, "classy") == "windows-2022"
        assert is_cordoned(plane, "old-a")
        assert node(plane, "old-a")["metadata"]["labels"]["winpod.dev/retired-by"] == NAME
        assert condition(found(plane, UPGRADE), "Complete")["status"] == "True"
        steps = status(plane)["steps"]
        assert [step["state"] for step in steps] == ["Done"] * len(steps)
        eventually(
            lambda: ("UpgradeDone", "everything has moved") in events_of(plane, "default", NAME)
        )


def test_unmovable_workload_blocks_the_upgrade_unless_left_behind(
    plane: ControlPlane, images: Images, tmp_path: Path
) -> None:
    nodes = {"old-a": "2019", "old-b": "2019", "new-a": "2022"}
    with (
        simulated_nodes(plane, tmp_path / "nodes", **nodes),
        operator(plane, tmp_path / "operator"),
    ):
        plane.kubectl("cordon", "old-b")
        deployment(plane, "stuck", images.old, 1, **OF_OLD_CLASS)
        plane.kubectl("uncordon", "old-b")
        deployment(plane, "free", images.both, 2, **OF_OLD_CLASS)
        planned = winpod(*upgrade_command("plan", plane), "-o", "json")
        assert planned.returncode == 1, planned.stderr
        assert json.loads(planned.stdout)["summary"] == {
            "new-image": 1,
            "hypervisor": 0,
            "cannot": 1,
        }
        assert not retiring(plane)
        request_upgrade(plane)
        eventually(lambda: phase(plane) == "Blocked")
        message = status(plane)["message"]
        assert (
            f"Deployment shop/stuck: {images.old} has no build 10.0.20348; it has 10.0.17763"
            in message
        )
        assert "or hypervisor isolation" in message
        drains = {s["target"]: s["state"] for s in status(plane)["steps"] if s["do"] == "drain"}
        assert drains == {"old-b": "Done", "old-a": "Running"}
        assert nodes_of(plane, "stuck") == {"old-a"}
        eventually(lambda: "use windows-2022" in rejection(plane))
        add_nodes(plane, windows_node("old-late", BUILD_2019, taints=(TAINT, RUNS_NOTHING)))
        eventually(partial(is_cordoned, plane, "old-late"))
        done = winpod(*upgrade_command("apply", plane), "--leave-behind", "--yes")
        assert done.returncode == 0, done.stderr
        assert "Deployment shop/stuck stays on its old nodes" in done.stdout
        assert nodes_of(plane, "stuck") == {"old-a"}
        assert nodes_of(plane, "free") == {"new-a"}
        undone = winpod("upgrade", "undo", "--yes", "--kubeconfig", str(plane.kubeconfig))
        assert "The upgrade was undone." in undone.stdout, undone.stderr
        assert not is_cordoned(plane, "old-a")
        assert not is_cordoned(plane, "old-b")
        assert not retiring(plane)
        assert class_of(plane, "free") == "windows-2019"
        assert nodes_of(plane, "free") <= {"old-a", "old-b"}
        uid = found(plane, UPGRADE)["metadata"]["uid"]
        again = winpod(*upgrade_command("apply", plane), "--leave-behind", "--yes")
        assert again.returncode == 0, again.stderr
        assert found(plane, UPGRADE)["metadata"]["uid"] != uid
        assert nodes_of(plane, "free") == {"new-a"}
        plane.request("DELETE", "/api/v1/nodes/old-late")


def selected_build(plane: ControlPlane) -> str:
    """Return the build that the old class selects."""
    selector = found(plane, OLD_CLASS)["scheduling"]["nodeSelector"]
    return str(selector["node.kubernetes.io/windows-build"])


def test_changed_node_selector_moves_pods_and_undo_moves_them_back(
    plane: ControlPlane, images: Images, tmp_path: Path
) -> None:
    with (
        simulated_nodes(plane, tmp_path / "nodes", **{"old-a": "2019", "new-a": "2022"}),
        operator(plane, tmp_path / "operator"),
    ):
        deployment(plane, "classy", images.both, 2, **OF_OLD_CLASS)
        assert nodes_of(plane, "classy") == {"old-a"}
        template = found(plane, f"{APPS}/classy")["spec"]["template"]
        spec = {"way": str(UpgradeStrategy.NODE_SELECTOR), "patchWorkloads": False}
        request_upgrade(plane, **spec)
        eventually(lambda: phase(plane) == "Done")
        eventually(lambda: (ready(plane, "classy"), nodes_of(plane, "classy")) == (2, {"new-a"}))
        assert selected_build(plane) == BUILD_2022
        assert found(plane, f"{APPS}/classy")["spec"]["template"] == template
        assert is_cordoned(plane, "old-a")
        request_upgrade(plane, **spec, undo=True)
        eventually(lambda: phase(plane) == "Undone")
        assert selected_build(plane) == BUILD_2019
        assert not is_cordoned(plane, "old-a")
        plane.kubectl("rollout", "restart", "deployment/classy", "-n", NAMESPACE)
        eventually(lambda: (ready(plane, "classy"), nodes_of(plane, "classy")) == (2, {"old-a"}))


def test_step_that_times_out_undoes_the_upgrade(
    plane: ControlPlane, images: Images, tmp_path: Path
) -> None:
    nodes = {"old-a": "2019", "new-a": "2022"}
    with (
        simulated_nodes(plane, tmp_path / "nodes", **nodes),
        operator(plane, tmp_path / "operator"),
    ):
        plane.kubectl("cordon", "new-a")
        deployment(plane, "classy", images.both, 2, **OF_OLD_CLASS)
        deployment(plane, "free", images.both, 1, **ON_WINDOWS)
        block_eviction(plane, "free")
        request_upgrade(plane)
        eventually(lambda: phase(plane) == "Blocked")
        assert "that is not cordoned to move to" in status(plane)["message"]
        plane.kubectl("uncordon", "new-a")
        eventually(lambda: "disruption budget" in status(plane)["message"])
        result = winpod(*upgrade_command("apply", plane), "--patience", "4", "--yes")
        assert result.returncode == 1, result.stderr
        assert "The upgrade was undone." in result.stdout
        assert "disruption budget" in status(plane)["failure"]
        assert condition(found(plane, UPGRADE), "Failed")["status"] == "True"
        assert not is_cordoned(plane, "old-a")
        assert not retiring(plane)
        assert class_of(plane, "classy") == "windows-2019"
        eventually(lambda: (ready(plane, "classy"), nodes_of(plane, "classy")) == (2, {"old-a"}))


def idle_deployment(plane: ControlPlane, runtime_class_name: str) -> None:
    """Create a Deployment without pods."""
    template = {
        "metadata": {"labels": {"app": "idle"}},
        "spec": {
            "runtimeClassName": runtime_class_name,
            "containers": [{"name": "app", "image": "example.test/app:1"}],
        },
    }
    plane.apply(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "idle", "namespace": NAMESPACE},
            "spec": {
                "replicas": 0,
                "selector": {"matchLabels": {"app": "idle"}},
                "template": template,
            },
        }
    )


def upgraded_state(plane: ControlPlane) -> Any:
    classes = found(plane, "/apis/node.k8s.io/v1/runtimeclasses")["items"]
    nodes = found(plane, "/api/v1/nodes")["items"]
    return (
        [RuntimeClass.from_object(obj) for obj in classes],
        [obj["metadata"].get("labels") for obj in classes],
        [obj["metadata"].get("annotations", {}).get(RETIRING_ANNOTATION) for obj in classes],
        [(n["metadata"]["labels"], n["spec"].get("unschedulable", False)) for n in nodes],
        class_of(plane, "idle"),
    )


def has_beta_labels(plane: ControlPlane, name: str) -> bool:
    """Whether the controller manager has added its labels."""
    return "beta.kubernetes.io/os" in node(plane, name)["metadata"]["labels"]


@pytest.fixture
def bare_cluster(plane: ControlPlane) -> Iterator[None]:
    """Objects without a controller: old nodes, a new one, a class, a workload."""
    add_nodes(
        plane,
        windows_node("old-a", BUILD_2019),
        windows_node("old-b", BUILD_2019),
        windows_node("new-a", BUILD_2022, handlers=(PROCESS, GUEST)),
    )
    metadata = {"labels": {"app.kubernetes.io/managed-by": "winpod"}, "name": "windows-2019"}
    plane.apply(runtime_class("windows-2019", PROCESS, BUILD_2019) | {"metadata": metadata})
    idle_deployment(plane, "windows-2019")
    for name in ("old-a", "old-b", "new-a"):
        eventually(partial(has_beta_labels, plane, name))
    yield
    remove_finalizers(plane)
    plane.kubectl("delete", "runtimeclasses,nodes,windowsupgrades", "--all")


@pytest.mark.parametrize("strategy", list(UpgradeStrategy))
@pytest.mark.usefixtures("bare_cluster")
def test_upgrade_killed_between_writes_is_finished_and_can_be_undone(
    plane: ControlPlane, strategy: UpgradeStrategy
) -> None:
    access = read_kubeconfig(plane.kubeconfig)
    before = upgraded_state(plane)
    after: Any = None
    writes, is_finished = 1, False
    while not is_finished:
        request_upgrade(plane, way=str(strategy), oldNodes="mark", leaveBehind=True)
        is_finished = asyncio.run(upgrade_until(access, NAME, "Done", writes))
        asyncio.run(upgrade_until(access, NAME, "Done"))
        after = after or upgraded_state(plane)
        assert upgraded_state(plane) == after != before, writes
        request_upgrade(plane, way=str(strategy), oldNodes="mark", leaveBehind=True, undo=True)
        asyncio.run(upgrade_until(access, NAME, "Undone", writes))
        asyncio.run(upgrade_until(access, NAME, "Undone"))
        assert upgraded_state(plane) == before, writes
        plane.request("DELETE", UPGRADE)
        writes += 2 if strategy is UpgradeStrategy.NEW_CLASS else 4
    request_upgrade(plane, way=str(strategy), oldNodes="remove", leaveBehind=True)
    asyncio.run(upgrade_until(access, NAME, "Done"))
    assert (node(plane, "old-a"), bool(node(plane, "new-a"))) == ({}, True)
    handlers = {runtime.name: runtime.handler for runtime in after[0]}
    expected = {UpgradeStrategy.SAME_CLASS: GUEST}.get(strategy, PROCESS)
    assert handlers["windows-2019"] == expected


@pytest.mark.usefixtures("bare_cluster")
def test_deleted_upgrade_is_undone_before_it_is_removed_despite_kills(
    plane: ControlPlane,
) -> None:
    access = read_kubeconfig(plane.kubeconfig)
    before = upgraded_state(plane)
    writes, is_done = 1, False
    while not is_done:
        request_upgrade(plane, leaveBehind=True)
        asyncio.run(upgrade_until(access, NAME, "Done", writes))
        is_done, current = phase(plane) == "Done", upgraded_state(plane)
        plane.request("DELETE", UPGRADE)
        is_gone = asyncio.run(upgrade_until(access, NAME, "gone", writes))
        if not is_gone:
            asyncio.run(upgrade_until(access, NAME, "gone"))
        expected = current if is_done else before
        assert upgraded_state(plane) == expected, writes
        writes += 3


def block_at_node(plane: ControlPlane) -> RestConfig:
    """Block an upgrade by a pod without a controller; then delete the pod and its node."""
    bare = f"/api/v1/namespaces/{NAMESPACE}/pods/bare"
    spec = {"containers": [{"name": "app", "image": "example.test/app:1"}], "nodeName": "old-a"}
    plane.apply(pod("bare", NAMESPACE, spec))
    access = read_kubeconfig(plane.kubeconfig)
    request_upgrade(plane, oldNodes="remove")
    asyncio.run(upgrade_until(access, NAME, "Blocked"))
    assert is_cordoned(plane, "old-a")
    at_once = {"gracePeriodSeconds": 0}
    plane.request("DELETE", bare, at_once)
    plane.request("DELETE", "/api/v1/nodes/old-a")
    eventually(lambda: not found(plane, bare))
    return access


@pytest.mark.usefixtures("bare_cluster")
def test_node_recreated_with_the_new_build_is_not_changed(plane: ControlPlane) -> None:
    access = block_at_node(plane)
    add_nodes(plane, windows_node("old-a", BUILD_2022))
    asyncio.run(upgrade_until(access, NAME, "Done"))
    assert "is not changed" in steps_of(plane, "drain")["old-a"]["message"]
    assert "runs 10.0.20348" in steps_of(plane, "remove-node")["old-a"]["message"]
    assert not is_cordoned(plane, "old-a")
    plane.kubectl("cordon", "old-a")
    request_upgrade(plane, oldNodes="remove", undo=True)
    asyncio.run(upgrade_until(access, NAME, "Undone"))
    assert "is not changed" in steps_of(plane, "cordon")["old-a"]["message"]
    assert is_cordoned(plane, "old-a")


@pytest.mark.usefixtures("bare_cluster")
def test_recreated_old_node_is_upgraded_again(plane: ControlPlane) -> None:
    access = block_at_node(plane)
    add_nodes(plane, windows_node("old-a", BUILD_2019))
    uid = node(plane, "old-a")["metadata"]["uid"]
    asyncio.run(upgrade_until(access, NAME, "Done"))
    steps = [steps_of(plane, kind)["old-a"] for kind in ("cordon", "drain", "remove-node")]
    assert [step["before"]["uid"] for step in steps] == [uid] * 3
    assert [s["do"] for s in status(plane)["steps"]].count("cordon") == 2
    assert node(plane, "old-a") == {}
