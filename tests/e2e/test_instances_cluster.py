"""Instances in a real cluster: from a ConfigMap to nodes, migrated, upgraded, removed, replaced.

The control plane, the operator and SSH are real. Instances are stand-ins that answer from memory,
and their kubelets are played by winpod's node agent.
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


def test_entries_of_a_config_map_become_nodes_each_on_its_own(
    plane: ControlPlane, fleet: Fleet, tmp_path: Path
) -> None:
    payload(tmp_path / "payload", "1.0.0")
    fresh, prepared = fleet.add("win-a"), fleet.add("win-b", features=dict(READY))
    bad = {"127.0.77.300": "username=x", "127.0.77.250": "username", "127.0.77.251": "username=x"}
    ask_for(plane, fresh, prepared, **bad)
    with operator(plane, tmp_path) as running:
        for one in (fresh, prepared):
            eventually(partial(is_at, plane, one, "1.0.0"))
            assert is_ready(plane, one.node)
            told = node(plane, one.node)["status"]
            assert told["nodeInfo"]["containerRuntimeVersion"] == "containerd://2.4.2"
            assert one.services == {"containerd": "RUNNING", "kubelet": "RUNNING"}
            now = found(plane, f"{PATH}/{one.address}")
            for kind in ("Reachable", "Configured", "ContainerdRunning", "NodeReady"):
                assert condition(now, kind)["status"] == "True"
            assert "tokens" not in now["status"]
            until_told(plane, one, "InstanceConfiguring", "InstanceConfigured", "InstanceReady")
        eventually(partial(is_phase, plane, "127.0.77.251", "Failed"))
        assert "cannot be reached" in status(plane, "127.0.77.251")["failure"]
        for bad_word in ("neither an IPv4 address", '"username" is not valid'):
            eventually(partial(is_told, plane, "windows-instances", bad_word))
        table = plane.kubectl("get", "windowsinstances", "-n", NAMESPACE)
        assert "containerd://2.4.2" in table
        numbers = (
            'winpod_instances{phase="Ready",version="1.0.0"} 2.0',
            "winpod_instance_entries_bad 2.0",
        )
        eventually(
            lambda: running.answer("/metrics")[1],
            lambda told: all(number in told for number in numbers),
        )
        assert_no_secrets(plane, fleet, running)


def is_told(plane: ControlPlane, name: str, words: str) -> bool:
    return any(words in message for _, message in events_of(plane, NAMESPACE, name))


def test_kube_proxy_on_an_instance_may_read_what_it_needs_and_no_more(plane: ControlPlane) -> None:
    """It has the kubelet's credentials."""
    kubeconfig = ("--kubeconfig", str(plane.kubeconfig_for("system:node:win-q", "system:nodes")))
    for kind in ("services", "endpointslices.discovery.k8s.io"):
        assert "items" in plane.kubectl("get", kind, "-A", "-o", "json", *kubeconfig)
    with pytest.raises(KubectlFailed, match="cannot list resource"):
        plane.kubectl("get", "daemonsets", "-A", *kubeconfig)


def assert_no_secrets(plane: ControlPlane, fleet: Fleet, running: OperatorProcess) -> None:
    """Neither of keys nor of tokens is anything in logs, events and objects."""
    secrets = found(plane, "/api/v1/namespaces/kube-system/secrets")["items"]
    tokens = [
        base64.b64decode(one["data"]["token-secret"]).decode()
        for one in secrets
        if one["type"] == "bootstrap.kubernetes.io/token"
    ]
    assert tokens
    lines = fleet.key.export_private_key().decode().splitlines()[1:-1]
    told = running.log.read_text() + plane.kubectl("get", "events", "-A", "-o", "json")
    told += plane.kubectl("get", "windowsinstances", "-A", "-o", "json")
    for secret in (*tokens, *lines):
        assert secret not in told


def test_a_node_on_docker_is_drained_moved_to_containerd_and_docker_stays_as_it_is(
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
        told = node(plane, old.node)
        assert told["status"]["nodeInfo"]["containerRuntimeVersion"].startswith("containerd://")
        assert not told["spec"].get("unschedulable")
        eventually(lambda: ready(plane, "web") == 2)
        assert (docker.line, docker.start, list(docker.depends), docker.state) == before
        assert old.windows.services["kubelet"].depends == ["containerd"]
        said = until_told(plane, old, "InstanceChangeBegins")
        assert "migration from Docker to containerd" in said["InstanceChangeBegins"]


def test_nodes_are_upgraded_one_by_one_and_one_that_fails_stops_the_others(
    plane: ControlPlane, fleet: Fleet, tmp_path: Path
) -> None:
    files = payload(tmp_path / "payload", "1.0.0")
    them = [fleet.add(name, features=dict(READY)) for name in ("win-e", "win-f", "win-g")]
    ask_for(plane, *them)
    with operator(plane, tmp_path):
        for one in them:
            eventually(partial(is_at, plane, one, "1.0.0"))
        deployment(plane, "web", 3)
        eventually(lambda: ready(plane, "web") == 3)
        watching = Watching(plane, [one.node for one in them])
        for one in them:
            one.windows.does_not_start = {"containerd"}
        payload(files, "1.1.0")
        (failed,) = eventually(
            lambda: watching.look() and [one for one in them if is_phase(plane, one, "Failed")]
        )
        said = status(plane, failed)
        assert "containerd is not running" in said["failure"]
        assert said["changingSince"]
        until_told(plane, failed, "ContainerdNotRunning")
        assert node(plane, failed.node)["spec"]["unschedulable"]
        for one in (one for one in them if one is not failed):
            eventually(partial(is_phase, plane, one, "Waiting"))
            why = f"the update of {failed.address} failed"
            eventually(partial(says, plane, one, why))
            assert status(plane, one)["version"] == "1.0.0"
            until_told(plane, one, "InstanceWaiting")
        for one in them:
            one.windows.does_not_start = set()
        wake(plane, "1")
        eventually(lambda: watching.look() and all(is_at(plane, one, "1.1.0") for one in them))
        assert watching.most_at_once == 1
        assert not any("unschedulable" in node(plane, one.node)["spec"] for one in them)
        eventually(lambda: ready(plane, "web") == 3)

        payload(files, "1.0.9")
        for one in them:
            eventually(partial(is_phase, plane, one, "Failed"))
            assert "1.0.9 is older" in status(plane, one)["failure"]
            assert one.path(r"C:\k\winpod-version").read_text().strip() == "1.1.0"
            assert is_ready(plane, one.node)


def test_an_instance_without_an_entry_is_emptied_cleaned_and_no_node_any_more(
    plane: ControlPlane, fleet: Fleet, tmp_path: Path
) -> None:
    payload(tmp_path / "payload", "1.0.0")
    stays, goes = fleet.add("win-h", features=dict(READY)), fleet.add("win-i", features=dict(READY))
    own = goes.path(r"C:\Users\me\notes.txt")
    own.parent.mkdir(parents=True)
    own.write_text("mine")
    ask_for(plane, stays, goes)
    with operator(plane, tmp_path):
        for one in (stays, goes):
            eventually(partial(is_at, plane, one, "1.0.0"))
        deployment(plane, "web", 2)
        eventually(lambda: ready(plane, "web") == 2)
        plane.request("DELETE", f"/api/v1/namespaces/{NAMESPACE}/configmaps/windows-instances")
        time.sleep(2)
        assert is_at(plane, goes, "1.0.0"), "a ConfigMap that is not there takes nothing away"
        ask_for(plane, stays)
        eventually(lambda: not found(plane, f"{PATH}/{goes.address}"))
        assert not node(plane, goes.node)
        assert goes.services == {}
        assert goes.files == [
            "ProgramData/ssh/administrators_authorized_keys",
            "Users/me/notes.txt",
        ]
        assert is_at(plane, stays, "1.0.0")
        eventually(lambda: ready(plane, "web") == 2)
        until_told(plane, goes, "InstanceRemoving", "InstanceRemoved")


def test_a_service_that_stopped_is_told_and_started_again_without_a_drain(
    plane: ControlPlane, fleet: Fleet, tmp_path: Path
) -> None:
    payload(tmp_path / "payload", "1.0.0")
    one = fleet.add("win-j", features=dict(READY))
    ask_for(plane, one)
    with operator(plane, tmp_path):
        eventually(partial(is_at, plane, one, "1.0.0"))
        for service in one.windows.services.values():
            service.state = "STOPPED"
        wake(plane, "1")
        eventually(lambda: one.services == {"containerd": "RUNNING", "kubelet": "RUNNING"})
        eventually(partial(is_at, plane, one, "1.0.0"))
        assert "InstanceChangeBegins" not in until_told(plane, one, "ContainerdNotRunning")


def test_a_stranger_s_certificate_is_not_approved_and_who_claims_to_be_an_instance_is_told_of(
    plane: ControlPlane, fleet: Fleet, tmp_path: Path
) -> None:
    payload(tmp_path / "payload", "1.0.0")
    one = fleet.add("win-k", features=dict(READY))
    ask_for(plane, one)
    with operator(plane, tmp_path):
        eventually(partial(is_at, plane, one, "1.0.0"))
        for name, subject in (
            ("stranger", CertificateSubject("system:node:master")),
            ("claims", CertificateSubject("system:node:win-k")),
        ):
            asked = base64.b64encode(PrivateKey.new().request(subject)).decode()
            spec = {
                "request": asked,
                "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
                "usages": ["client auth", "digital signature"],
            }
            ask_as(plane, "mallory", request_object(name, spec))
        until_told(plane, one, "InstanceCertificateNotApproved")
        time.sleep(6)
        for name in ("stranger", "claims"):
            assert not found(plane, f"{REQUESTS}/{name}")["status"].get("conditions")
            plane.request("DELETE", f"{REQUESTS}/{name}")
        assert eventually(partial(signed_for, plane, one)) == {"kubernetes.io/kubelet-serving"}


def signed_for(plane: ControlPlane, instance: Instance) -> set[str]:
    """Who signed what its kubelet asked for with its own name."""
    return {
        item["spec"]["signerName"]
        for item in found(plane, REQUESTS)["items"]
        if item["spec"]["username"] == f"system:node:{instance.node}"
        and item["status"].get("certificate")
    }


def ask_as(plane: ControlPlane, user: str, request: dict[str, Any]) -> None:
    """Somebody who may ask for certificates, and whom nobody else would give one."""
    who = plane.kubeconfig_for(user, "system:bootstrappers:winpod")
    plane.kubectl("--kubeconfig", str(who), "create", "-f", "-", stdin=json.dumps(request))


def request_object(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": name},
        "spec": spec,
    }


def test_a_new_key_takes_the_place_of_the_old_one_on_every_instance(
    plane: ControlPlane, fleet: Fleet, tmp_path: Path
) -> None:
    payload(tmp_path / "payload", "1.0.0")
    one = fleet.add("win-l", features=dict(READY))
    ask_for(plane, one)
    allowed = one.path(AUTHORIZED)
    new = asyncssh.generate_private_key("ssh-ed25519")
    with operator(plane, tmp_path):
        eventually(partial(is_at, plane, one, "1.0.0"))
        assert status(plane, one)["loginKey"] == public_line(fleet.key)
        plane.apply(key_secret(NAMESPACE, new))
        eventually(lambda: status(plane, one)["loginKey"] == public_line(new))
        assert public_line(new) in allowed.read_text()
        assert public_line(fleet.key) not in allowed.read_text()
        until_told(plane, one, "InstanceKeyReplaced")
        other = asyncssh.generate_private_key("ssh-ed25519")
        allowed.write_text(public_line(other))
        plane.apply(key_secret(NAMESPACE, asyncssh.generate_private_key("ssh-ed25519")))
        eventually(partial(is_phase, plane, one, "Failed"))
        assert "rejects the user Administrator with this key" in status(plane, one)["failure"]
        plane.apply(key_secret(NAMESPACE, other))
        eventually(partial(is_at, plane, one, "1.0.0"))


def test_a_host_key_that_changed_is_not_trusted_until_somebody_says_so(
    plane: ControlPlane, fleet: Fleet, tmp_path: Path
) -> None:
    payload(tmp_path / "payload", "1.0.0")
    one = fleet.add("win-m", features=dict(READY))
    ask_for(plane, one)
    with operator(plane, tmp_path):
        eventually(partial(is_at, plane, one, "1.0.0"))
        fleet.change_host_key("win-m")
        wake(plane, "2")
        eventually(partial(is_phase, plane, one, "Failed"))
        failure = status(plane, one)["failure"]
        assert "the host key of" in failure
        until_told(plane, one, "InstanceHostKeyChanged")
        assert condition(found(plane, f"{PATH}/{one.address}"), "Reachable")["status"] == "False"
        patch = ("--subresource=status", "--type=merge", "-p", '{"status":{"hostKey":""}}')
        plane.kubectl("patch", "-n", NAMESPACE, "windowsinstance", one.address, *patch)
        eventually(partial(is_at, plane, one, "1.0.0"))


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
    """One of the MachineSet: without its owner it would be collected."""
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
    there = found(plane, path)
    obj["metadata"] |= {"resourceVersion": there["metadata"]["resourceVersion"]} if there else {}
    asked = ("PUT", path) if there else ("POST", f"{MACHINES}/{plural}")
    assert plane.request(*asked, obj).status in (200, 201)


def serve_machines(plane: ControlPlane) -> None:
    plane.apply(MACHINE, MACHINE_SET)
    for plural in ("machines", "machinesets"):
        eventually(partial(found, plane, f"{MACHINES}/{plural}"))
    use_machines(plane)


def use_machines(plane: ControlPlane, seconds: int = 900) -> None:
    """Other seconds change nothing, but make the operator look at once."""
    settings = SETTINGS.replace("drainSeconds: 900", f"drainSeconds: {seconds}")
    configure(plane, settings.replace("{", "{machineNamespace: machines, "))


def test_a_machine_is_replaced_and_the_new_one_configured(
    plane: ControlPlane, fleet: Fleet, tmp_path: Path
) -> None:
    """The controller that makes and ends Machines is played here."""
    serve_machines(plane)
    files = payload(tmp_path / "payload", "1.0.0")
    old = fleet.add("win-n", 22, features=dict(READY))
    put(plane, "machinesets", machine_set(0))
    put(plane, "machines", machine(plane, "m-1", old))
    with operator(plane, tmp_path) as running:
        eventually(lambda: status(plane, "machine-m-1").get("phase") == "Ready")
        payload(files, "1.1.0")
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
    """Where Machines may not be listed, theirs stay as they are, and others are looked after."""
    pinned = status(plane, "machine-m-2")["hostKey"]
    configure(plane, SETTINGS.replace("{", "{machineNamespace: shop, "))
    eventually(lambda: "Failed to list Machines in shop" in running.log.read_text())
    ask_for(plane, other)
    eventually(partial(is_at, plane, other, "1.1.0"))
    assert status(plane, "machine-m-2")["hostKey"] == pinned
    use_machines(plane)


def test_of_machines_and_entries_one_changes_at_a_time_also_after_the_operator_died(
    plane: ControlPlane, fleet: Fleet, tmp_path: Path
) -> None:
    """The entry cannot be reached until the Machine is deleted, so the Machine goes first."""
    serve_machines(plane)
    files = payload(tmp_path / "payload", "1.0.0")
    old, entry = (
        fleet.add("win-t", 22, features=dict(READY)),
        fleet.add("win-u", features=dict(READY)),
    )
    put(plane, "machinesets", machine_set(1))
    put(plane, "machines", machine(plane, "m-3", old))
    ask_for(plane, entry)
    with operator(plane, tmp_path) as running:
        for one in ("machine-m-3", entry):
            eventually(partial(is_at, plane, one, "1.0.0"))
        fleet.die("win-u")
        payload(files, "1.1.0")
        eventually(lambda: not found(plane, f"{MACHINES}/machines/m-3"))
        running.kill()
        fleet.remove("win-t")
        plane.request("DELETE", "/api/v1/nodes/win-t")
        fleet.come_back("win-u")
        running.start()
        why = "one update at a time; in progress: MachineSet win has to create a Machine"
        eventually(partial(says, plane, entry, why))
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
        payload(files, "1.2.0")
        eventually(partial(is_phase, plane, entry, "Failed"))
        put(plane, "machinesets", machine_set(1))
        eventually(partial(says, plane, "machine-m-4", f"the update of {entry.address} failed"))
        entry.windows.does_not_start = set()
        use_machines(plane)
        eventually(lambda: not found(plane, f"{MACHINES}/machines/m-4"))
        assert is_at(plane, entry, "1.2.0")


def test_an_operator_that_is_killed_anywhere_goes_on_where_it_was(
    plane: ControlPlane, fleet: Fleet, tmp_path: Path
) -> None:
    """After each of its writes, in turn, and from then on nothing of it is done any more."""
    files = payload(tmp_path / "payload", "1.0.0")
    one = fleet.add("win-p", features=dict(READY))
    ask_for(plane, one)
    deaths = live_until(plane, files, lambda: is_at(plane, one, "1.0.0"))
    deployment(plane, "web", 1)
    eventually(lambda: ready(plane, "web") == 1)
    payload(files, "1.1.0")
    deaths += live_until(plane, files, lambda: is_at(plane, one, "1.1.0"))
    assert "unschedulable" not in node(plane, one.node)["spec"]
    eventually(lambda: ready(plane, "web") == 1)
    ask_for(plane)
    deaths += live_until(plane, files, lambda: not found(plane, f"{PATH}/{one.address}"))
    assert not node(plane, one.node)
    assert one.files == ["ProgramData/ssh/administrators_authorized_keys"]
    assert deaths >= 10


def test_an_operator_that_is_killed_anywhere_in_a_move_from_docker_goes_on_where_it_was(
    plane: ControlPlane, fleet: Fleet, tmp_path: Path
) -> None:
    """The old kubelet and its network go once, and Docker stays as it is through all deaths."""
    files = payload(tmp_path / "payload", "1.0.0")
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
    deaths = live_until(plane, files, lambda: is_at(plane, old, "1.0.0"))
    assert deaths >= 5
    told = node(plane, old.node)
    assert told["status"]["nodeInfo"]["containerRuntimeVersion"].startswith("containerd://")
    assert not told["spec"].get("unschedulable")
    assert repr(old.windows.services["docker"]) == before
    assert old.windows.services["kubelet"].depends == ["containerd"]
    assert old.windows.networks == [nat]
    deleted = [words for words in old.windows.called if words[:2] == ["sc.exe", "delete"]]
    assert deleted == [["sc.exe", "delete", "kubelet"]]
    eventually(lambda: ready(plane, "web") == 1)
