"""Instances in a real cluster: joined from a ConfigMap, migrated, upgraded, removed, replaced.

The control plane, the operator and SSH are real. Instances are in-memory fakes, and winpod's node
agent acts as their kubelet.
"""

import base64
import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import asyncssh
import pytest
from tests.e2e.controlplane import ControlPlane, KubectlFailed
from tests.support.e2e.instance_fleet import READY, Fleet, Instance, key_secret, payload
from tests.support.e2e.instance_operator import (
    PATH,
    SETTINGS,
    Watching,
    ask_for,
    deployment,
    fleet,
    is_at,
    is_phase,
    operator,
    plane,
    ready,
    says,
    status,
    until_told,
    wake,
)
from tests.support.e2e.node_process import condition, events_of, found, is_ready, node
from tests.support.e2e.operator_crash_points import live_until
from tests.support.e2e.operator_process import NAMESPACE, OperatorProcess, configure
from tests.support.e2e.waiting import eventually
from tests.support.ssh_server import AUTHORIZED

from winpod.instances.ssh.authorized_keys import public_line
from winpod.k8s.certificates import CertificateSubject, PrivateKey

__all__ = ["fleet", "plane"]

REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"


def test_config_map_entries_join_independently(
    plane: ControlPlane, fleet: Fleet, tmp_path: Path
) -> None:
    payload(tmp_path / "payload", "1.0.0")
    fresh, prepared = fleet.add("win-a"), fleet.add("win-b", features=dict(READY))
    bad = {"127.0.77.300": "username=x", "127.0.77.250": "username", "127.0.77.251": "username=x"}
    ask_for(plane, fresh, prepared, **bad)
    with operator(plane, tmp_path) as running:
        for instance in (fresh, prepared):
            eventually(partial(is_at, plane, instance, "1.0.0"))
            assert is_ready(plane, instance.node)
            node_status = node(plane, instance.node)["status"]
            assert node_status["nodeInfo"]["containerRuntimeVersion"] == "containerd://2.4.2"
            assert instance.services == {"containerd": "RUNNING", "kubelet": "RUNNING"}
            now = found(plane, f"{PATH}/{instance.address}")
            for kind in ("Reachable", "Configured", "ContainerdRunning", "NodeReady"):
                assert condition(now, kind)["status"] == "True"
            assert "tokens" not in now["status"]
            until_told(
                plane, instance, "InstanceConfiguring", "InstanceConfigured", "InstanceReady"
            )
        eventually(partial(is_phase, plane, "127.0.77.251", "Failed"))
        assert "cannot be reached" in status(plane, "127.0.77.251")["failure"]
        for error in ("neither an IPv4 address", '"username" is not valid'):
            eventually(partial(has_event, plane, "windows-instances", error))
        table = plane.kubectl("get", "windowsinstances", "-n", NAMESPACE)
        assert "containerd://2.4.2" in table
        numbers = (
            'winpod_instances{phase="Ready",version="1.0.0"} 2.0',
            "winpod_instance_entries_bad 2.0",
        )
        eventually(
            lambda: running.answer("/metrics")[1],
            lambda metrics: all(number in metrics for number in numbers),
        )
        assert_no_secrets(plane, fleet, running)


def has_event(plane: ControlPlane, name: str, text: str) -> bool:
    return any(text in message for _, message in events_of(plane, NAMESPACE, name))


def test_kube_proxy_of_an_instance_may_read_only_services_and_endpoint_slices(
    plane: ControlPlane,
) -> None:
    """kube-proxy uses the kubelet's credentials."""
    kubeconfig = ("--kubeconfig", str(plane.kubeconfig_for("system:node:win-q", "system:nodes")))
    for kind in ("services", "endpointslices.discovery.k8s.io"):
        assert "items" in plane.kubectl("get", kind, "-A", "-o", "json", *kubeconfig)
    with pytest.raises(KubectlFailed, match="cannot list resource"):
        plane.kubectl("get", "daemonsets", "-A", *kubeconfig)


def assert_no_secrets(plane: ControlPlane, fleet: Fleet, running: OperatorProcess) -> None:
    """Logs, events and objects contain neither private keys nor tokens."""
    secrets = found(plane, "/api/v1/namespaces/kube-system/secrets")["items"]
    tokens = [
        base64.b64decode(secret["data"]["token-secret"]).decode()
        for secret in secrets
        if secret["type"] == "bootstrap.kubernetes.io/token"
    ]
    assert tokens
    lines = fleet.key.export_private_key().decode().splitlines()[1:-1]
    output = running.log.read_text() + plane.kubectl("get", "events", "-A", "-o", "json")
    output += plane.kubectl("get", "windowsinstances", "-A", "-o", "json")
    for secret in (*tokens, *lines):
        assert secret not in output


def test_node_on_docker_is_drained_and_migrated_and_docker_is_unchanged(
    plane: ControlPlane, fleet: Fleet, tmp_path: Path
) -> None:
    payload(tmp_path / "payload", "1.0.0")
    kubeconfig = plane.kubeconfig_for("system:node:win-d", "system:nodes")
    old = fleet.add_on_docker("win-d", kubeconfig)
    eventually(partial(is_ready, plane, old.node))
    deployment(plane, "web", 2)
    eventually(lambda: ready(plane, "web") == 2)
    docker = old.windows.services["docker"]
    before = (docker.line, docker.start, list(docker.depends), docker.state)
    ask_for(plane, old)
    with operator(plane, tmp_path):
        eventually(partial(is_at, plane, old, "1.0.0"))
        migrated = node(plane, old.node)
        assert migrated["status"]["nodeInfo"]["containerRuntimeVersion"].startswith("containerd://")
        assert not migrated["spec"].get("unschedulable")
        eventually(lambda: ready(plane, "web") == 2)
        assert (docker.line, docker.start, list(docker.depends), docker.state) == before
        assert old.windows.services["kubelet"].depends == ["containerd"]
        events = until_told(plane, old, "InstanceChangeBegins")
        assert "migration from Docker to containerd" in events["InstanceChangeBegins"]


def test_nodes_are_upgraded_one_by_one_and_a_failure_stops_the_rollout(
    plane: ControlPlane, fleet: Fleet, tmp_path: Path
) -> None:
    payload_files = payload(tmp_path / "payload", "1.0.0")
    instances = [fleet.add(name, features=dict(READY)) for name in ("win-e", "win-f", "win-g")]
    ask_for(plane, *instances)
    with operator(plane, tmp_path):
        for instance in instances:
            eventually(partial(is_at, plane, instance, "1.0.0"))
        deployment(plane, "web", 3)
        eventually(lambda: ready(plane, "web") == 3)
        watching = Watching(plane, [instance.node for instance in instances])
        for instance in instances:
            instance.windows.does_not_start = {"containerd"}
        payload(payload_files, "1.1.0")
        (failed,) = eventually(
            lambda: (
                watching.look()
                and [instance for instance in instances if is_phase(plane, instance, "Failed")]
            )
        )
        failed_status = status(plane, failed)
        assert "containerd is not running" in failed_status["failure"]
        assert failed_status["changingSince"]
        until_told(plane, failed, "ContainerdNotRunning")
        assert node(plane, failed.node)["spec"]["unschedulable"]
        for instance in (instance for instance in instances if instance is not failed):
            eventually(partial(is_phase, plane, instance, "Waiting"))
            reason = f"the update of {failed.address} failed"
            eventually(partial(says, plane, instance, reason))
            assert status(plane, instance)["version"] == "1.0.0"
            until_told(plane, instance, "InstanceWaiting")
        for instance in instances:
            instance.windows.does_not_start = set()
        wake(plane, "1")
        eventually(
            lambda: (
                watching.look() and all(is_at(plane, instance, "1.1.0") for instance in instances)
            )
        )
        assert watching.most_at_once == 1
        assert not any(
            "unschedulable" in node(plane, instance.node)["spec"] for instance in instances
        )
        eventually(lambda: ready(plane, "web") == 3)

        payload(payload_files, "1.0.9")
        for instance in instances:
            eventually(partial(is_phase, plane, instance, "Failed"))
            assert "1.0.9 is older" in status(plane, instance)["failure"]
            assert instance.path(r"C:\k\winpod-version").read_text().strip() == "1.1.0"
            assert is_ready(plane, instance.node)


def test_instance_without_an_entry_is_drained_and_removed(
    plane: ControlPlane, fleet: Fleet, tmp_path: Path
) -> None:
    payload(tmp_path / "payload", "1.0.0")
    kept, removed = (
        fleet.add("win-h", features=dict(READY)),
        fleet.add("win-i", features=dict(READY)),
    )
    own = removed.path(r"C:\Users\me\notes.txt")
    own.parent.mkdir(parents=True)
    own.write_text("mine")
    ask_for(plane, kept, removed)
    with operator(plane, tmp_path):
        for instance in (kept, removed):
            eventually(partial(is_at, plane, instance, "1.0.0"))
        deployment(plane, "web", 2)
        eventually(lambda: ready(plane, "web") == 2)
        plane.request("DELETE", f"/api/v1/namespaces/{NAMESPACE}/configmaps/windows-instances")
        time.sleep(2)
        assert is_at(plane, removed, "1.0.0"), "a missing ConfigMap removes no instance"
        ask_for(plane, kept)
        eventually(lambda: not found(plane, f"{PATH}/{removed.address}"))
        assert not node(plane, removed.node)
        assert removed.services == {}
        assert removed.files == [
            "ProgramData/ssh/administrators_authorized_keys",
            "Users/me/notes.txt",
        ]
        assert is_at(plane, kept, "1.0.0")
        eventually(lambda: ready(plane, "web") == 2)
        until_told(plane, removed, "InstanceRemoving", "InstanceRemoved")


def test_stopped_service_is_reported_and_restarted_without_a_drain(
    plane: ControlPlane, fleet: Fleet, tmp_path: Path
) -> None:
    payload(tmp_path / "payload", "1.0.0")
    instance = fleet.add("win-j", features=dict(READY))
    ask_for(plane, instance)
    with operator(plane, tmp_path):
        eventually(partial(is_at, plane, instance, "1.0.0"))
        for service in instance.windows.services.values():
            service.state = "STOPPED"
        wake(plane, "1")
        eventually(lambda: instance.services == {"containerd": "RUNNING", "kubelet": "RUNNING"})
        eventually(partial(is_at, plane, instance, "1.0.0"))
        assert "InstanceChangeBegins" not in until_told(plane, instance, "ContainerdNotRunning")


def test_foreign_certificate_requests_are_not_approved_and_claims_are_reported(
    plane: ControlPlane, fleet: Fleet, tmp_path: Path
) -> None:
    payload(tmp_path / "payload", "1.0.0")
    instance = fleet.add("win-k", features=dict(READY))
    ask_for(plane, instance)
    with operator(plane, tmp_path):
        eventually(partial(is_at, plane, instance, "1.0.0"))
        for name, subject in (
            ("stranger", CertificateSubject("system:node:master")),
            ("claims", CertificateSubject("system:node:win-k")),
        ):
            request = base64.b64encode(PrivateKey.new().request(subject)).decode()
            spec = {
                "request": request,
                "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
                "usages": ["client auth", "digital signature"],
            }
            create_as(plane, "mallory", certificate_request(name, spec))
        until_told(plane, instance, "InstanceCertificateNotApproved")
        time.sleep(6)
        for name in ("stranger", "claims"):
            assert not found(plane, f"{REQUESTS}/{name}")["status"].get("conditions")
            plane.request("DELETE", f"{REQUESTS}/{name}")
        assert eventually(partial(signers_of, plane, instance)) == {"kubernetes.io/kubelet-serving"}


def signers_of(plane: ControlPlane, instance: Instance) -> set[str]:
    """Signers of the certificates issued to the instance's kubelet."""
    return {
        item["spec"]["signerName"]
        for item in found(plane, REQUESTS)["items"]
        if item["spec"]["username"] == f"system:node:{instance.node}"
        and item["status"].get("certificate")
    }


def create_as(plane: ControlPlane, user: str, request: dict[str, Any]) -> None:
    """Create the request as a user that may request certificates but is not an instance."""
    kubeconfig = plane.kubeconfig_for(user, "system:bootstrappers:winpod")
    plane.kubectl("--kubeconfig", str(kubeconfig), "create", "-f", "-", stdin=json.dumps(request))


def certificate_request(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": name},
        "spec": spec,
    }


def test_login_key_is_replaced_on_instances(
    plane: ControlPlane, fleet: Fleet, tmp_path: Path
) -> None:
    payload(tmp_path / "payload", "1.0.0")
    instance = fleet.add("win-l", features=dict(READY))
    ask_for(plane, instance)
    allowed = instance.path(AUTHORIZED)
    new = asyncssh.generate_private_key("ssh-ed25519")
    with operator(plane, tmp_path):
        eventually(partial(is_at, plane, instance, "1.0.0"))
        assert status(plane, instance)["loginKey"] == public_line(fleet.key)
        plane.apply(key_secret(NAMESPACE, new))
        eventually(lambda: status(plane, instance)["loginKey"] == public_line(new))
        assert public_line(new) in allowed.read_text()
        assert public_line(fleet.key) not in allowed.read_text()
        until_told(plane, instance, "InstanceKeyReplaced")
        other = asyncssh.generate_private_key("ssh-ed25519")
        allowed.write_text(public_line(other))
        plane.apply(key_secret(NAMESPACE, asyncssh.generate_private_key("ssh-ed25519")))
        eventually(partial(is_phase, plane, instance, "Failed"))
        assert "rejects the user Administrator with this key" in status(plane, instance)["failure"]
        plane.apply(key_secret(NAMESPACE, other))
        eventually(partial(is_at, plane, instance, "1.0.0"))


def test_changed_host_key_is_refused_until_it_is_reset(
    plane: ControlPlane, fleet: Fleet, tmp_path: Path
) -> None:
    payload(tmp_path / "payload", "1.0.0")
    instance = fleet.add("win-m", features=dict(READY))
    ask_for(plane, instance)
    with operator(plane, tmp_path):
        eventually(partial(is_at, plane, instance, "1.0.0"))
        fleet.change_host_key("win-m")
        wake(plane, "2")
        eventually(partial(is_phase, plane, instance, "Failed"))
        failure = status(plane, instance)["failure"]
        assert "the host key of" in failure
        until_told(plane, instance, "InstanceHostKeyChanged")
        assert (
            condition(found(plane, f"{PATH}/{instance.address}"), "Reachable")["status"] == "False"
        )
        patch = ("--subresource=status", "--type=merge", "-p", '{"status":{"hostKey":""}}')
        plane.kubectl("patch", "-n", NAMESPACE, "windowsinstance", instance.address, *patch)
        eventually(partial(is_at, plane, instance, "1.0.0"))


MACHINE = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": "machines.machine.openshift.io",
        "annotations": {"api-approved.kubernetes.io": "unapproved, a stand-in"},
    },
    "spec": {
        "group": "machine.openshift.io",
        "scope": "Namespaced",
        "names": {"kind": "Machine", "listKind": "MachineList", "plural": "machines"},
        "versions": [
            {
                "name": "v1beta1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "x-kubernetes-preserve-unknown-fields": True,
                    }
                },
            }
        ],
    },
}
MACHINE_SET = json.loads(
    json.dumps(MACHINE)
    .replace("machines.m", "machinesets.m")
    .replace('"Machine', '"MachineSet')
    .replace('"machines"', '"machinesets"')
)
MACHINES = "/apis/machine.openshift.io/v1beta1/namespaces/machines"


def machine(plane: ControlPlane, name: str, instance: Instance) -> dict[str, Any]:
    """A Machine of the MachineSet; without the owner it would be garbage-collected."""
    owner = found(plane, f"{MACHINES}/machinesets/win")["metadata"]["uid"]
    return {
        "apiVersion": "machine.openshift.io/v1beta1",
        "kind": "Machine",
        "metadata": {
            "name": name,
            "namespace": "machines",
            "labels": {"machine.openshift.io/os-id": "Windows"},
            "ownerReferences": [
                {
                    "apiVersion": "machine.openshift.io/v1beta1",
                    "kind": "MachineSet",
                    "name": "win",
                    "uid": owner,
                }
            ],
        },
        "status": {"addresses": [{"type": "InternalIP", "address": instance.address}]},
    }


def machine_set(ready: int) -> dict[str, Any]:
    labels = {"machine.openshift.io/os-id": "Windows"}
    return {
        "apiVersion": "machine.openshift.io/v1beta1",
        "kind": "MachineSet",
        "metadata": {"name": "win", "namespace": "machines"},
        "spec": {"replicas": 1, "template": {"metadata": {"labels": labels}}},
        "status": {"readyReplicas": ready},
    }


def put(plane: ControlPlane, plural: str, obj: dict[str, Any]) -> None:
    path = f"{MACHINES}/{plural}/{obj['metadata']['name']}"
    existing = found(plane, path)
    obj["metadata"] |= (
        {"resourceVersion": existing["metadata"]["resourceVersion"]} if existing else {}
    )
    target = ("PUT", path) if existing else ("POST", f"{MACHINES}/{plural}")
    assert plane.request(*target, obj).status in (200, 201)


def serve_machines(plane: ControlPlane) -> None:
    plane.apply(MACHINE, MACHINE_SET)
    for plural in ("machines", "machinesets"):
        eventually(partial(found, plane, f"{MACHINES}/{plural}"))
    use_machines(plane)


def use_machines(plane: ControlPlane, seconds: int = 900) -> None:
    """Set the Machine namespace; another drainSeconds value only triggers a reconcile."""
    settings = SETTINGS.replace("drainSeconds: 900", f"drainSeconds: {seconds}")
    configure(plane, settings.replace("{", "{machineNamespace: machines, "))


def test_machine_is_replaced_and_the_new_one_is_configured(
    plane: ControlPlane, fleet: Fleet, tmp_path: Path
) -> None:
    """The test acts as the controller that creates and deletes Machines."""
    serve_machines(plane)
    payload_files = payload(tmp_path / "payload", "1.0.0")
    old = fleet.add("win-n", 22, features=dict(READY))
    put(plane, "machinesets", machine_set(0))
    put(plane, "machines", machine(plane, "m-1", old))
    with operator(plane, tmp_path) as running:
        eventually(lambda: status(plane, "machine-m-1").get("phase") == "Ready")
        payload(payload_files, "1.1.0")
        eventually(
            lambda: "only 0 of 1 Machines" in status(plane, "machine-m-1").get("message", "")
        )
        put(plane, "machinesets", machine_set(1))
        eventually(lambda: not found(plane, f"{MACHINES}/machines/m-1"))
        eventually(lambda: not found(plane, f"{PATH}/machine-m-1"))
        assert old.path(r"C:\k\winpod-version").read_text().strip() == "1.0.0"
        fleet.remove("win-n")
        plane.request("DELETE", "/api/v1/nodes/win-n")
        new = fleet.add("win-o", 22, features=dict(READY))
        put(plane, "machines", machine(plane, "m-2", new))
        eventually(lambda: status(plane, "machine-m-2").get("version") == "1.1.0")
        eventually(lambda: status(plane, "machine-m-2").get("phase") == "Ready")
        assert_kept_while_unknown(plane, fleet.add("win-s", features=dict(READY)), running)
        plane.request("DELETE", f"{MACHINES}/machines/m-2")
        eventually(lambda: not found(plane, f"{PATH}/machine-m-2"))
        assert new.services == {"containerd": "RUNNING", "kubelet": "RUNNING"}
    until_told(plane, "machine-m-1", "InstanceReplaced")


def assert_kept_while_unknown(
    plane: ControlPlane, other: Instance, running: OperatorProcess
) -> None:
    """While Machines cannot be listed, their instances are kept and others are reconciled."""
    pinned = status(plane, "machine-m-2")["hostKey"]
    configure(plane, SETTINGS.replace("{", "{machineNamespace: shop, "))
    eventually(lambda: "Failed to list Machines in shop" in running.log.read_text())
    ask_for(plane, other)
    eventually(partial(is_at, plane, other, "1.1.0"))
    assert status(plane, "machine-m-2")["hostKey"] == pinned
    use_machines(plane)


def test_machines_and_entries_are_updated_one_at_a_time_across_operator_restarts(
    plane: ControlPlane, fleet: Fleet, tmp_path: Path
) -> None:
    """The entry is unreachable until the Machine is deleted, so the Machine is updated first."""
    serve_machines(plane)
    payload_files = payload(tmp_path / "payload", "1.0.0")
    old, entry = (
        fleet.add("win-t", 22, features=dict(READY)),
        fleet.add("win-u", features=dict(READY)),
    )
    put(plane, "machinesets", machine_set(1))
    put(plane, "machines", machine(plane, "m-3", old))
    ask_for(plane, entry)
    with operator(plane, tmp_path) as running:
        for instance in ("machine-m-3", entry):
            eventually(partial(is_at, plane, instance, "1.0.0"))
        fleet.die("win-u")
        payload(payload_files, "1.1.0")
        eventually(lambda: not found(plane, f"{MACHINES}/machines/m-3"))
        running.kill()
        fleet.remove("win-t")
        plane.request("DELETE", "/api/v1/nodes/win-t")
        fleet.come_back("win-u")
        running.start()
        reason = "one update at a time; in progress: MachineSet win has to create a Machine"
        eventually(partial(says, plane, entry, reason))
        new = fleet.add("win-v", 22, features=dict(READY), does_not_start={"containerd"})
        put(plane, "machines", machine(plane, "m-4", new))
        eventually(partial(says, plane, entry, "the update of machine-m-4 failed"))
        assert status(plane, entry)["version"] == "1.0.0"
        new.windows.does_not_start = set()
        use_machines(plane, 901)
        eventually(partial(is_at, plane, "machine-m-4", "1.1.0"))
        eventually(partial(is_at, plane, entry, "1.1.0"))

        put(plane, "machinesets", machine_set(0))
        entry.windows.does_not_start = {"containerd"}
        payload(payload_files, "1.2.0")
        eventually(partial(is_phase, plane, entry, "Failed"))
        put(plane, "machinesets", machine_set(1))
        eventually(partial(says, plane, "machine-m-4", f"the update of {entry.address} failed"))
        entry.windows.does_not_start = set()
        use_machines(plane)
        eventually(lambda: not found(plane, f"{MACHINES}/machines/m-4"))
        assert is_at(plane, entry, "1.2.0")


def test_operator_killed_after_each_write_resumes(
    plane: ControlPlane, fleet: Fleet, tmp_path: Path
) -> None:
    """Kill the operator after each of its writes in turn; it takes no further action."""
    payload_files = payload(tmp_path / "payload", "1.0.0")
    instance = fleet.add("win-p", features=dict(READY))
    ask_for(plane, instance)
    kills = live_until(plane, payload_files, lambda: is_at(plane, instance, "1.0.0"))
    deployment(plane, "web", 1)
    eventually(lambda: ready(plane, "web") == 1)
    payload(payload_files, "1.1.0")
    kills += live_until(plane, payload_files, lambda: is_at(plane, instance, "1.1.0"))
    assert "unschedulable" not in node(plane, instance.node)["spec"]
    eventually(lambda: ready(plane, "web") == 1)
    ask_for(plane)
    kills += live_until(
        plane, payload_files, lambda: not found(plane, f"{PATH}/{instance.address}")
    )
    assert not node(plane, instance.node)
    assert instance.files == ["ProgramData/ssh/administrators_authorized_keys"]
    assert kills >= 10


def test_operator_killed_during_a_docker_migration_resumes(
    plane: ControlPlane, fleet: Fleet, tmp_path: Path
) -> None:
    """The old kubelet and its network are removed once; Docker is unchanged by all kills."""
    payload_files = payload(tmp_path / "payload", "1.0.0")
    kubeconfig = plane.kubeconfig_for("system:node:win-r", "system:nodes")
    old = fleet.add_on_docker("win-r", kubeconfig)
    nat = {"ID": "11111111-2222-3333-4444-555555555555", "Name": "nat", "Type": "nat"}
    overlay = {"ID": "66666666-7777-8888-9999-000000000000", "Type": "overlay"}
    overlay["Name"] = "OVNKubernetesHybridOverlayNetwork"
    old.windows.networks = [nat, overlay]
    eventually(partial(is_ready, plane, old.node))
    deployment(plane, "web", 1)
    eventually(lambda: ready(plane, "web") == 1)
    before = repr(old.windows.services["docker"])
    ask_for(plane, old)
    kills = live_until(plane, payload_files, lambda: is_at(plane, old, "1.0.0"))
    assert kills >= 5
    migrated = node(plane, old.node)
    assert migrated["status"]["nodeInfo"]["containerRuntimeVersion"].startswith("containerd://")
    assert not migrated["spec"].get("unschedulable")
    assert repr(old.windows.services["docker"]) == before
    assert old.windows.services["kubelet"].depends == ["containerd"]
    assert old.windows.networks == [nat]
    deleted = [command for command in old.windows.called if command[:2] == ["sc.exe", "delete"]]
    assert deleted == [["sc.exe", "delete", "kubelet"]]
    eventually(lambda: ready(plane, "web") == 1)
