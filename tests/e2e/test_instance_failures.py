"""Instances of an operator in trouble: bad input, pods that may not leave, hosts that die.

The control plane, the operator and SSH are real; instances are stand-ins that answer from memory.
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


def test_a_key_that_is_missing_and_a_payload_that_is_damaged_are_told_of_every_instance(
    plane: ControlPlane, fleet: Fleet, tmp_path: Path
) -> None:
    files = payload(tmp_path / "payload", "1.0.0")
    (files / "kubelet.exe").write_bytes(b"MZ of somebody else")
    plane.request("DELETE", f"/api/v1/namespaces/{NAMESPACE}/secrets/cloud-private-key")
    them = [fleet.add(name, features=dict(READY)) for name in ("win-f", "win-g")]
    ask_for(plane, *them)
    with operator(plane, tmp_path):
        for one in them:
            missing = f"{one.address}: there is no private key for instances. kubectl -n"
            in_time(plane, partial(says, plane, one, missing))
        plane.apply(key_secret(NAMESPACE, fleet.key))
        for one in them:
            damaged = f"{one.address}: {files}/kubelet.exe differs from the payload's list"
            in_time(plane, partial(says, plane, one, damaged))
            until_told(plane, one, "InstancePayloadBad")
            assert one.services == {}
        payload(files, "1.0.0")
        for one in them:
            in_time(plane, partial(is_at, plane, one, "1.0.0"))


def test_a_drain_that_a_disruption_budget_holds_up_is_told_and_goes_on_once_it_is_loosened(
    plane: ControlPlane, fleet: Fleet, tmp_path: Path
) -> None:
    configure(plane, "instances: {joinSeconds: 900, drainSeconds: 4}\n")
    files = payload(tmp_path / "payload", "1.0.0")
    one = fleet.add("win-a", features=dict(READY))
    ask_for(plane, one)
    with operator(plane, tmp_path):
        in_time(plane, partial(is_at, plane, one, "1.0.0"))
        deployment(plane, "web", 1)
        in_time(plane, lambda: ready(plane, "web") == 1)
        before = pod_names(plane)
        plane.apply(budget("web"))
        payload(files, "1.1.0")
        in_time(plane, lambda: says(plane, one, "disruption budget"))
        in_time(plane, partial(is_phase, plane, one, "Failed"))
        failure = status(plane, one)["failure"]
        late = f"{one.address}: its Node win-a was not drained after 4 s: pod shop/{before[0]}:"
        assert late in failure
        assert "Relax the disruption budget, or delete these pods" in failure
        assert until_told(plane, one, "InstanceFailed")["InstanceFailed"] == failure
        now = found(plane, f"{PATH}/{one.address}")
        assert condition(now, "NodeReady")["status"] == "True"
        assert condition(now, "Configured")["message"] == failure
        assert status(plane, one)["version"] == "1.0.0"
        assert one.services == {"containerd": "RUNNING", "kubelet": "RUNNING"}
        assert pod_names(plane) == before, "nobody was sent away against the budget"
        plane.kubectl("delete", "poddisruptionbudget", "-n", "shop", "web")
        in_time(plane, partial(is_at, plane, one, "1.1.0"))
        in_time(plane, lambda: ready(plane, "web") == 1)
        assert "failure" not in status(plane, one)


def budget(name: str) -> dict[str, object]:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": name}}},
    }


def pod_names(plane: ControlPlane) -> list[str]:
    return [
        one["metadata"]["name"] for one in found(plane, "/api/v1/namespaces/shop/pods")["items"]
    ]


def test_a_host_that_dies_while_it_changes_is_told_stops_nobody_who_has_begun_and_is_gone_on_with(
    plane: ControlPlane, fleet: Fleet, tmp_path: Path
) -> None:
    configure(plane, "instances: {atMost: 2, joinSeconds: 900}\n")
    files = payload(tmp_path / "payload", "1.0.0")
    them = [fleet.add(name, features=dict(READY)) for name in ("win-b", "win-c", "win-d")]
    ask_for(plane, *them)
    with operator(plane, tmp_path):
        for one in them:
            in_time(plane, partial(is_at, plane, one, "1.0.0"))
        watching = Watching(plane, [one.node for one in them])
        for one in them:
            one.windows.hangs_at = "containerd.exe.winpod-new"
        payload(files, "1.1.0")
        in_time(plane, lambda: watching.look() and sum(one.windows.hangs for one in them) == 2)
        dies, goes_on, waits = sorted(them, key=lambda one: not one.windows.hangs)
        waits.windows.hangs_at = ""
        fleet.die(dies.node)
        in_time(plane, partial(is_phase, plane, dies, "Failed"))
        told = status(plane, dies)
        assert told["failure"].startswith(f"{dies.address}: ")
        assert told["changingSince"]
        until_told(plane, dies, "InstanceUnreachable")
        unreachable = condition(found(plane, f"{PATH}/{dies.address}"), "Reachable")
        assert unreachable["status"] == "False"
        goes_on.windows.hangs_at = ""
        in_time(plane, partial(is_at, plane, goes_on, "1.1.0"))
        in_time(plane, lambda: says(plane, waits, f"the update of {dies.address} failed"))
        new = fleet.add("win-e", features=dict(READY))
        ask_for(plane, *them, new)
        in_time(plane, partial(is_at, plane, new, "1.1.0"))
        assert status(plane, waits)["version"] == "1.0.0"
        fleet.come_back(dies.node)
        configure(
            plane, "instances: {atMost: 2, joinSeconds: 901}\n"
        )  # which makes it look at once
        in_time(
            plane,
            lambda: watching.look() and all(is_at(plane, one, "1.1.0") for one in them),
        )
        assert watching.most_at_once <= 2
        assert not any("unschedulable" in node(plane, one.node)["spec"] for one in them)
        assert all("failure" not in status(plane, one) for one in them)
        assert_let_go(plane, fleet, waits, [dies, goes_on, new])


def assert_let_go(
    plane: ControlPlane, fleet: Fleet, dead: Instance, others: list[Instance]
) -> None:
    """One that will never answer again is forgotten when somebody says so, with its Node."""
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
    said = until_told(plane, dead, "InstanceRemoved")["InstanceRemoved"]
    assert f"its Node {dead.node}, which was not ready, was deleted" in said
    assert all(is_at(plane, one, "1.1.0") for one in others)
