"""Failures of instances under an operator: bad input, blocked drains, hosts that die.

The control plane, the operator and SSH are real; instances are in-memory fakes.
"""

import json
from functools import partial
from pathlib import Path

from tests.e2e.controlplane import ControlPlane
from tests.support.e2e.instance_fleet import READY, Fleet, Instance, key_secret, payload
from tests.support.e2e.instance_operator import (
    PATH,
    Watching,
    ask_for,
    deployment,
    fleet,
    in_time,
    is_at,
    is_phase,
    operator,
    plane,
    ready,
    says,
    status,
    until_told,
)
from tests.support.e2e.node_process import condition, found, node
from tests.support.e2e.operator_process import NAMESPACE, configure

__all__ = ["fleet", "plane"]


def test_missing_key_and_damaged_payload_are_reported_on_every_instance(
    plane: ControlPlane, fleet: Fleet, tmp_path: Path
) -> None:
    payload_files = payload(tmp_path / "payload", "1.0.0")
    (payload_files / "kubelet.exe").write_bytes(b"MZ of somebody else")
    plane.request("DELETE", f"/api/v1/namespaces/{NAMESPACE}/secrets/cloud-private-key")
    instances = [fleet.add(name, features=dict(READY)) for name in ("win-f", "win-g")]
    ask_for(plane, *instances)
    with operator(plane, tmp_path):
        for instance in instances:
            missing = f"{instance.address}: there is no private key for instances. kubectl -n"
            in_time(plane, partial(says, plane, instance, missing))
        plane.apply(key_secret(NAMESPACE, fleet.key))
        for instance in instances:
            damaged = (
                f"{instance.address}: {payload_files}/kubelet.exe differs from the payload's list"
            )
            in_time(plane, partial(says, plane, instance, damaged))
            until_told(plane, instance, "InstancePayloadBad")
            assert instance.services == {}
        payload(payload_files, "1.0.0")
        for instance in instances:
            in_time(plane, partial(is_at, plane, instance, "1.0.0"))


def test_drain_blocked_by_a_disruption_budget_is_reported_and_resumed(
    plane: ControlPlane, fleet: Fleet, tmp_path: Path
) -> None:
    configure(plane, "instances: {joinSeconds: 900, drainSeconds: 4}\n")
    payload_files = payload(tmp_path / "payload", "1.0.0")
    instance = fleet.add("win-a", features=dict(READY))
    ask_for(plane, instance)
    with operator(plane, tmp_path):
        in_time(plane, partial(is_at, plane, instance, "1.0.0"))
        deployment(plane, "web", 1)
        in_time(plane, lambda: ready(plane, "web") == 1)
        before = pod_names(plane)
        plane.apply(budget("web"))
        payload(payload_files, "1.1.0")
        in_time(plane, lambda: says(plane, instance, "disruption budget"))
        in_time(plane, partial(is_phase, plane, instance, "Failed"))
        failure = status(plane, instance)["failure"]
        expected = (
            f"{instance.address}: its Node win-a was not drained after 4 s: pod shop/{before[0]}:"
        )
        assert expected in failure
        assert "Relax the disruption budget, or delete these pods" in failure
        assert until_told(plane, instance, "InstanceFailed")["InstanceFailed"] == failure
        now = found(plane, f"{PATH}/{instance.address}")
        assert condition(now, "NodeReady")["status"] == "True"
        assert condition(now, "Configured")["message"] == failure
        assert status(plane, instance)["version"] == "1.0.0"
        assert instance.services == {"containerd": "RUNNING", "kubelet": "RUNNING"}
        assert pod_names(plane) == before, "no pod is evicted against the budget"
        plane.kubectl("delete", "poddisruptionbudget", "-n", "shop", "web")
        in_time(plane, partial(is_at, plane, instance, "1.1.0"))
        in_time(plane, lambda: ready(plane, "web") == 1)
        assert "failure" not in status(plane, instance)


def budget(name: str) -> dict[str, object]:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": name}}},
    }


def pod_names(plane: ControlPlane) -> list[str]:
    return [
        pod["metadata"]["name"] for pod in found(plane, "/api/v1/namespaces/shop/pods")["items"]
    ]


def test_host_that_dies_during_its_update_is_reported_and_resumed(
    plane: ControlPlane, fleet: Fleet, tmp_path: Path
) -> None:
    configure(plane, "instances: {atMost: 2, joinSeconds: 900}\n")
    payload_files = payload(tmp_path / "payload", "1.0.0")
    instances = [fleet.add(name, features=dict(READY)) for name in ("win-b", "win-c", "win-d")]
    ask_for(plane, *instances)
    with operator(plane, tmp_path):
        for instance in instances:
            in_time(plane, partial(is_at, plane, instance, "1.0.0"))
        watching = Watching(plane, [instance.node for instance in instances])
        for instance in instances:
            instance.windows.hangs_at = "containerd.exe.winpod-new"
        payload(payload_files, "1.1.0")
        in_time(
            plane,
            lambda: watching.look() and sum(instance.windows.hangs for instance in instances) == 2,
        )
        dead, continuing, waiting = sorted(
            instances, key=lambda instance: not instance.windows.hangs
        )
        waiting.windows.hangs_at = ""
        fleet.die(dead.node)
        in_time(plane, partial(is_phase, plane, dead, "Failed"))
        failed_status = status(plane, dead)
        assert failed_status["failure"].startswith(f"{dead.address}: ")
        assert failed_status["changingSince"]
        until_told(plane, dead, "InstanceUnreachable")
        unreachable = condition(found(plane, f"{PATH}/{dead.address}"), "Reachable")
        assert unreachable["status"] == "False"
        continuing.windows.hangs_at = ""
        in_time(plane, partial(is_at, plane, continuing, "1.1.0"))
        in_time(plane, lambda: says(plane, waiting, f"the update of {dead.address} failed"))
        new = fleet.add("win-e", features=dict(READY))
        ask_for(plane, *instances, new)
        in_time(plane, partial(is_at, plane, new, "1.1.0"))
        assert status(plane, waiting)["version"] == "1.0.0"
        fleet.come_back(dead.node)
        configure(plane, "instances: {atMost: 2, joinSeconds: 901}\n")  # triggers a reconcile
        in_time(
            plane,
            lambda: (
                watching.look() and all(is_at(plane, instance, "1.1.0") for instance in instances)
            ),
        )
        assert watching.most_at_once <= 2
        assert not any(
            "unschedulable" in node(plane, instance.node)["spec"] for instance in instances
        )
        assert all("failure" not in status(plane, instance) for instance in instances)
        assert_forgotten(plane, fleet, waiting, [dead, continuing, new])


def assert_forgotten(
    plane: ControlPlane, fleet: Fleet, dead: Instance, others: list[Instance]
) -> None:
    """A dead instance and its Node are deleted once it is annotated."""
    fleet.die(dead.node)
    ask_for(plane, *others)
    advice = f"annotate windowsinstance {dead.address} winpod.dev/forget=true"
    in_time(plane, partial(says, plane, dead, advice))
    assert is_phase(plane, dead, "Failed")
    not_ready = [{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}]
    patch = json.dumps({"status": {"conditions": not_ready}})
    plane.kubectl("patch", "node", dead.node, "--subresource=status", "-p", patch)
    plane.kubectl("-n", NAMESPACE, *advice.split())
    in_time(plane, lambda: not found(plane, f"{PATH}/{dead.address}"))
    assert not node(plane, dead.node)
    message = until_told(plane, dead, "InstanceRemoved")["InstanceRemoved"]
    assert f"its Node {dead.node}, which was not ready, was deleted" in message
    assert all(is_at(plane, instance, "1.1.0") for instance in others)
