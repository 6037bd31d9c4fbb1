"""`winpod instance` and a real control plane, without an operator: join, change, leave.

Instances are stand-ins that answer from memory over real SSH; winpod's node agent plays kubelets.
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


class Laptop:
    def __init__(self, plane: ControlPlane, home: Path, fleet: Fleet) -> None:
        self._home = home
        self._cluster = ("--kubeconfig", str(plane.kubeconfig))
        file = home / "instances.yaml"
        entries = {one.address: one.entry for one in fleet.instances.values()}
        file.write_text(yaml.safe_dump({**entries, "127.0.77.251": "username=x"}))
        self._which = ("--key", str(home / "key"), "--instances", str(file))

    def instance(self, command: str, *more: str) -> Ran:
        return winpod("instance", command, *self._which, *self._cluster, *more, home=self._home)

    def apply(self, version: str) -> Ran:
        made = payload(self._home / version, version)
        return self.instance("apply", "--payload", str(made), "-o", "json")

    def plan(self, version: str) -> Ran:
        return self.instance("plan", "--payload", str(self._home / version), "-o", "json")


def test_instances_join_change_one_by_one_and_leave_from_a_laptop(
    plane: ControlPlane, fleet: Fleet, tmp_path: Path
) -> None:
    ones = [fleet.add("win-c"), fleet.add("win-d", features=dict(READY))]
    ones[0].windows.next_hostname = "WIN-CC"  # a person renamed it, and it starts anew in between
    laptop = Laptop(plane, tmp_path, fleet)
    joined = laptop.apply("1.0.0")
    assert joined.code == 1, joined.err  # one address has nobody
    first, second, dead = json.loads(joined.out)
    assert [first["version"], second["version"]] == ["1.0.0", "1.0.0"], joined.err
    assert "cannot be reached" in dead["failure"]
    for one in ones:
        assert is_ready(plane, one.node)
        told = node(plane, one.node)["status"]["nodeInfo"]
        assert told["containerRuntimeVersion"].startswith("containerd://")
    steps = [one.get("steps") for one in json.loads(laptop.plan("1.0.0").out)]
    assert steps[:2] == [[], []]

    plane.apply(windows_pod("shop", "web", "registry.example/app:1", nodeName=ones[0].node))
    eventually(lambda: phase(plane, "shop", "web") == "Running")
    deployment(plane, "comes-back", 1, {"operator": "Exists"})
    eventually(lambda: ready(plane, "comes-back") == 1)
    changed = laptop.apply("1.1.0")
    assert [one.get("version") for one in json.loads(changed.out)[:2]] == ["1.1.0", "1.1.0"]
    assert f"cordoned node {ones[0].node}" in changed.err
    stayed = [one["metadata"] for one in found(plane, "/api/v1/namespaces/shop/pods")["items"]]
    assert all(one["name"].startswith("comes-back") for one in stayed)
    for one in ones:
        assert is_ready(plane, one.node)
        assert not node(plane, one.node)["spec"].get("unschedulable")
    mark = {
        "metadata": {"annotations": {CORDONED_ANNOTATION: "2026-01-01T00:00:00Z"}},
        "spec": {"unschedulable": True},
    }
    plane.kubectl("patch", "node", ones[1].node, "-p", json.dumps(mark))  # as one that was killed
    assert laptop.apply("1.1.0").code == 1
    assert not node(plane, ones[1].node)["spec"].get("unschedulable")
    refused = laptop.apply("1.0.0")
    assert "1.0.0 is older" in refused.err

    plane.apply(CRD)
    eventually(lambda: "items" in found(plane, instances_path("shop")))
    kept = {"name": ones[0].address, "namespace": "shop"}
    spec = {"address": ones[0].address, "username": "Administrator"}
    body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": kept, "spec": spec}
    assert plane.request("POST", instances_path("shop"), body).status == HTTPStatus.CREATED
    stays = laptop.apply("1.1.0")
    assert f"{ones[0].address}: it is managed by an operator" in stays.err
    plane.request("DELETE", f"{instances_path('shop')}/{ones[0].address}")

    left = laptop.instance("remove", "--yes")
    assert left.code == 1, left.err
    assert "If it is gone for good, --dead deletes its Node" in left.err
    for one in ones:
        assert not found(plane, f"/api/v1/nodes/{one.node}")
        assert one.services == {}
        assert not [name for name in one.files if name.startswith("k/")]
    secrets = token_secrets(plane)
    assert len(secrets) == 2
    told = "".join(ran.out + ran.err for ran in (joined, changed, refused, left))
    assert not [secret for secret in secrets if secret in told]


def test_of_a_machine_that_is_dead_only_the_node_goes_and_nobody_is_taken_for_dead(
    plane: ControlPlane, fleet: Fleet, tmp_path: Path
) -> None:
    one = fleet.add("win-e", features=dict(READY))
    laptop = Laptop(plane, tmp_path, fleet)
    joined = laptop.apply("1.0.0")
    assert is_ready(plane, one.node), joined.err
    assert f"{one.address}: it can be reached" in laptop.instance("remove", "--dead", "--yes").err
    fleet.die("win-e")
    refused = laptop.instance("remove", "--dead", "--yes")
    assert "its Node win-e is ready, so the machine is running" in refused.err
    assert "no Windows Node of the cluster has the address 127.0.77.251" in refused.err
    not_ready = [{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}]
    patch = json.dumps({"status": {"conditions": not_ready}})
    plane.kubectl("patch", "node", "win-e", "--subresource=status", "-p", patch)
    gone = laptop.instance("remove", "--dead", "--yes")
    assert f"{one.address}: its Node win-e is deleted; the machine is left as it is" in gone.out
    assert not found(plane, "/api/v1/nodes/win-e")


def token_secrets(plane: ControlPlane) -> list[str]:
    found_secrets = found(plane, "/api/v1/namespaces/kube-system/secrets")["items"]
    tokens = [one for one in found_secrets if one["type"] == "bootstrap.kubernetes.io/token"]
    assert all("expiration" in one["data"] for one in tokens)
    return [base64.b64decode(one["data"]["token-secret"]).decode() for one in tokens]
