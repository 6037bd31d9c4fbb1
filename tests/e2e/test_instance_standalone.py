"""`winpod instance` with a real control plane and without an operator: join, update, remove.

Instances are in-memory fakes behind real SSH; winpod's node agent acts as their kubelet.
"""

import base64
import json
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import pytest
import yaml
from tests.e2e.controlplane import ControlPlane
from tests.support.e2e.instance_fleet import READY, Fleet, payload
from tests.support.e2e.instance_operator import deployment, ready
from tests.support.e2e.node_process import found, is_ready, node, phase, windows_pod
from tests.support.e2e.waiting import eventually
from tests.support.winpod_cli import Ran, winpod

from winpod.instances.cluster.resource import CRD, KIND, instances_path
from winpod.k8s.crd import API_VERSION
from winpod.labels import CORDONED_ANNOTATION


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path_factory.mktemp("plane"), node_silence="1h") as running:
        running.create_namespace("shop")
        yield running


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(tmp_path / "fleet")
    (tmp_path / "key").write_bytes(made.key.export_private_key())
    with made.running():
        yield made


class InstanceCommand:
    """`winpod instance` for all hosts of a fleet and one address without a host."""

    def __init__(self, plane: ControlPlane, home: Path, fleet: Fleet) -> None:
        self._home = home
        self._cluster = ("--kubeconfig", str(plane.kubeconfig))
        file = home / "instances.yaml"
        entries = {instance.address: instance.entry for instance in fleet.instances.values()}
        file.write_text(yaml.safe_dump({**entries, "127.0.77.251": "username=x"}))
        self._targets = ("--key", str(home / "key"), "--instances", str(file))

    def instance(self, command: str, *more: str) -> Ran:
        return winpod("instance", command, *self._targets, *self._cluster, *more, home=self._home)

    def apply(self, version: str) -> Ran:
        made = payload(self._home / version, version)
        return self.instance("apply", "--payload", str(made), "-o", "json")

    def plan(self, version: str) -> Ran:
        return self.instance("plan", "--payload", str(self._home / version), "-o", "json")


def test_instances_join_are_updated_one_by_one_and_removed(
    plane: ControlPlane, fleet: Fleet, tmp_path: Path
) -> None:
    instances = [fleet.add("win-c"), fleet.add("win-d", features=dict(READY))]
    instances[0].windows.next_hostname = "WIN-CC"  # renamed; takes effect at its reboot
    command = InstanceCommand(plane, tmp_path, fleet)
    joined = command.apply("1.0.0")
    assert joined.code == 1, joined.err  # one address has no host
    first, second, dead = json.loads(joined.out)
    assert [first["version"], second["version"]] == ["1.0.0", "1.0.0"], joined.err
    assert "cannot be reached" in dead["failure"]
    for instance in instances:
        assert is_ready(plane, instance.node)
        node_info = node(plane, instance.node)["status"]["nodeInfo"]
        assert node_info["containerRuntimeVersion"].startswith("containerd://")
    steps = [result.get("steps") for result in json.loads(command.plan("1.0.0").out)]
    assert steps[:2] == [[], []]

    plane.apply(windows_pod("shop", "web", "registry.example/app:1", nodeName=instances[0].node))
    eventually(lambda: phase(plane, "shop", "web") == "Running")
    deployment(plane, "comes-back", 1, {"operator": "Exists"})
    eventually(lambda: ready(plane, "comes-back") == 1)
    changed = command.apply("1.1.0")
    assert [result.get("version") for result in json.loads(changed.out)[:2]] == ["1.1.0", "1.1.0"]
    assert f"cordoned node {instances[0].node}" in changed.err
    pods = found(plane, "/api/v1/namespaces/shop/pods")["items"]
    assert all(pod["metadata"]["name"].startswith("comes-back") for pod in pods)
    for instance in instances:
        assert is_ready(plane, instance.node)
        assert not node(plane, instance.node)["spec"].get("unschedulable")
    cordon = {
        "metadata": {"annotations": {CORDONED_ANNOTATION: "2026-01-01T00:00:00Z"}},
        "spec": {"unschedulable": True},
    }
    # A killed run leaves the node cordoned.
    plane.kubectl("patch", "node", instances[1].node, "-p", json.dumps(cordon))
    assert command.apply("1.1.0").code == 1
    assert not node(plane, instances[1].node)["spec"].get("unschedulable")
    refused = command.apply("1.0.0")
    assert "1.0.0 is older" in refused.err

    plane.apply(CRD)
    eventually(lambda: "items" in found(plane, instances_path("shop")))
    metadata = {"name": instances[0].address, "namespace": "shop"}
    spec = {"address": instances[0].address, "username": "Administrator"}
    body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}
    assert plane.request("POST", instances_path("shop"), body).status == HTTPStatus.CREATED
    skipped = command.apply("1.1.0")
    assert f"{instances[0].address}: it is managed by an operator" in skipped.err
    plane.request("DELETE", f"{instances_path('shop')}/{instances[0].address}")

    removed = command.instance("remove", "--yes")
    assert removed.code == 1, removed.err
    assert "If it is gone for good, --dead deletes its Node" in removed.err
    for instance in instances:
        assert not found(plane, f"/api/v1/nodes/{instance.node}")
        assert instance.services == {}
        assert not [name for name in instance.files if name.startswith("k/")]
    secrets = token_secrets(plane)
    assert len(secrets) == 2
    output = "".join(result.out + result.err for result in (joined, changed, refused, removed))
    assert not [secret for secret in secrets if secret in output]


def test_remove_dead_deletes_only_the_unready_node_of_an_unreachable_machine(
    plane: ControlPlane, fleet: Fleet, tmp_path: Path
) -> None:
    instance = fleet.add("win-e", features=dict(READY))
    command = InstanceCommand(plane, tmp_path, fleet)
    joined = command.apply("1.0.0")
    assert is_ready(plane, instance.node), joined.err
    assert (
        f"{instance.address}: it can be reached"
        in command.instance("remove", "--dead", "--yes").err
    )
    fleet.die("win-e")
    refused = command.instance("remove", "--dead", "--yes")
    assert "its Node win-e is ready, so the machine is running" in refused.err
    assert "no Windows Node of the cluster has the address 127.0.77.251" in refused.err
    not_ready = [{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}]
    patch = json.dumps({"status": {"conditions": not_ready}})
    plane.kubectl("patch", "node", "win-e", "--subresource=status", "-p", patch)
    removed = command.instance("remove", "--dead", "--yes")
    assert (
        f"{instance.address}: its Node win-e is deleted; the machine is left as it is"
        in removed.out
    )
    assert not found(plane, "/api/v1/nodes/win-e")


def token_secrets(plane: ControlPlane) -> list[str]:
    found_secrets = found(plane, "/api/v1/namespaces/kube-system/secrets")["items"]
    tokens = [
        secret for secret in found_secrets if secret["type"] == "bootstrap.kubernetes.io/token"
    ]
    assert all("expiration" in secret["data"] for secret in tokens)
    return [base64.b64decode(secret["data"]["token-secret"]).decode() for secret in tokens]
